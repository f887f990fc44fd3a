//! C++ for the runtime of the host driver: function constants as variables, and tables that describe the entry points.

use crate::builtin::Builtin;
use crate::kernels::Kernel;
use crate::token::Tokens;
use crate::{Error, FunctionConstant, Memory, ParamKind};
use std::fmt::Write as _;

/// Function constants, and the names of constants that are computed from them.
#[derive(Debug, Default)]
pub(crate) struct Constants {
    pub(crate) list: Vec<FunctionConstant>,
    derived: Vec<String>,
}

/// Turns function constants into variables.
pub(crate) fn function_constants(tokens: &mut Tokens) -> Result<Constants, Error> {
    let mut constants = Constants::default();
    for at in 0..tokens.list.len() {
        if tokens.is(at, "function_constant") {
            let constant = function_constant(tokens, at)?;
            if constants.list.iter().any(|c| c.index == constant.index) {
                let index = constant.index;
                return Err(
                    tokens.error(at, format!("function constant {index} is declared twice"))
                );
            }
            constants.list.push(constant);
        }
    }
    for at in 0..tokens.list.len() {
        if tokens.is(at, "is_function_constant_defined") {
            let open = tokens.next(at);
            let close = tokens.close(open)?;
            let name = tokens.text(open + 1..close);
            let constant = constants.list.iter_mut().find(|c| c.name == name);
            let Some(constant) = constant else {
                return Err(tokens.error(at, format!("{name} is no function constant")));
            };
            constant.required = false;
            tokens.blank(at..close + 1);
            tokens.replace(at, format!("msl_defined_{name}"));
        }
    }
    derive(tokens, &mut constants)?;
    Ok(constants)
}

/// Reads `constant T NAME [[function_constant(N)]];` around `at` and makes `static T NAME;` of it.
fn function_constant(tokens: &mut Tokens, at: usize) -> Result<FunctionConstant, Error> {
    let form = "a function constant reads `constant T NAME [[function_constant(N)]];`";
    let unreadable = || tokens.error(at, form);
    let attribute = tokens.prev(at).and_then(|i| tokens.prev(i)).ok_or_else(unreadable)?;
    let name = tokens.prev(attribute).ok_or_else(unreadable)?;
    let scalar = tokens.prev(name).ok_or_else(unreadable)?;
    let constant = tokens.prev(scalar).ok_or_else(unreadable)?;
    let number = tokens.next(tokens.next(at));
    if !tokens.is_attribute(attribute) || !tokens.is(constant, "constant") {
        return Err(unreadable());
    }
    let end = tokens.close(attribute)?;
    if !tokens.is(tokens.next(end), ";") {
        return Err(unreadable());
    }
    let index = tokens.list[number].text.parse().map_err(|_| unreadable())?;
    let (name_text, type_text) = (tokens.text(name..name + 1), tokens.text(scalar..scalar + 1));
    if !["bool", "int", "uint", "float"].contains(&type_text.as_str()) {
        let reason = format!("{name_text}: a function constant is bool, int, uint or float");
        return Err(tokens.error(scalar, reason));
    }
    tokens.blank(attribute..end + 1);
    // Its clause for `is_function_constant_defined` stays even where nothing asks.
    tokens.replace(
        constant,
        format!("MSL_UNUSED static bool msl_defined_{name_text}; MSL_UNUSED static"),
    );
    Ok(FunctionConstant { index, name: name_text, scalar: type_text, required: true })
}

/// `constant T NAME = EXPRESSION;` with function constants in it becomes a variable and a function that computes it.
fn derive(tokens: &mut Tokens, constants: &mut Constants) -> Result<(), Error> {
    let mut at = 0;
    while at < tokens.list.len() {
        if tokens.is(at, "{") || tokens.is(at, "(") {
            // Only file scope counts.
            at = tokens.close(at)?;
        }
        if tokens.is(at, "constant") {
            let end = tokens.find(at, ";")?;
            let equals = (at..end).find(|&i| tokens.is(i, "="));
            let varies = (at..end).any(|i| {
                let text = tokens.list[i].text.as_str();
                text.starts_with("msl_defined_")
                    || constants.list.iter().any(|c| tokens.is(i, &c.name))
                    || constants.derived.iter().any(|name| tokens.is(i, name))
            });
            if let (Some(equals), true) = (equals, varies) {
                let name = tokens.prev(equals).map(|i| tokens.list[i].text.clone());
                let name = name.ok_or_else(|| tokens.error(at, "a constant has no name"))?;
                tokens.replace(at, "MSL_UNUSED static".to_owned());
                let start = format!("; static void msl_derive_{name}() {{ {name} =");
                tokens.replace(equals, start);
                tokens.replace(end, "; }".to_owned());
                constants.derived.push(name);
            }
            at = end;
        }
        at += 1;
    }
    Ok(())
}

/// The whole source: runtime, kernels, tables.
pub(crate) fn emit(tokens: &Tokens, kernels: &[Kernel], constants: &Constants) -> String {
    let mut code = format!("#include \"msl.h\"\n{}\n#line 1 \"entries\"\n", tokens.join());
    let out = &mut code;
    let mut functions: Vec<&Kernel> = vec![];
    for kernel in kernels {
        if !functions.iter().any(|other| other.entry.function == kernel.entry.function) {
            functions.push(kernel);
        }
    }
    for kernel in functions {
        function(out, kernel);
    }
    line(out, "static const msl::Kernel msl_kernels[] = {");
    for kernel in kernels {
        let entry = &kernel.entry;
        let arguments = match entry.arguments.join(", ") {
            arguments if arguments.is_empty() => arguments,
            arguments => format!("<{arguments}>"),
        };
        let buffers = entry.params.iter().filter(|p| matches!(p.kind, ParamKind::Buffer { .. }));
        let _ = writeln!(
            out,
            "    {{\"{}\", msl_entry_{f}{arguments}, msl_buffers_{f}{arguments}(), {}, {}}},",
            entry.name,
            buffers.count(),
            entry.max_threads.unwrap_or(0),
            f = entry.function,
        );
    }
    line(out, "    {}\n};");
    for constant in &constants.list {
        let FunctionConstant { name, scalar, .. } = constant;
        let _ = writeln!(
            out,
            "static void msl_set_{name}(const uint* value) {{ {name} = value ? \
             msl::constant_value<{scalar}>(*value) : {scalar}(0); msl_defined_{name} = value; }}"
        );
    }
    line(out, "static void msl_derive() {");
    for name in &constants.derived {
        let _ = writeln!(out, "    msl_derive_{name}();");
    }
    line(out, "}\nstatic const msl::Constant msl_constants[] = {");
    for constant in &constants.list {
        let FunctionConstant { index, name, required, .. } = constant;
        let _ = writeln!(out, "    {{{index}, {required}, \"{name}\", msl_set_{name}}},");
    }
    line(out, "    {}\n};");
    let _ = writeln!(
        out,
        "extern \"C\" MSL_EXPORT const msl::Module msl_module;\n\
         const msl::Module msl_module = {{msl_kernels, {}, msl_constants, {}, msl_derive}};",
        kernels.len(),
        constants.list.len(),
    );
    code
}

fn line(out: &mut String, text: &str) {
    out.push_str(text);
    out.push('\n');
}

/// The function that calls a kernel with its arguments, and the table of its buffers.
fn function(out: &mut String, kernel: &Kernel) {
    let entry = &kernel.entry;
    let arguments: Vec<String> = entry.params.iter().map(argument).collect();
    let instance = match kernel.template_params.join(", ") {
        names if names.is_empty() => names,
        names => format!("<{names}>"),
    };
    let _ = writeln!(
        out,
        "{} static void msl_entry_{f}(const msl::Lane& t) {{ (void)t; {f}{instance}({}); }}",
        kernel.template,
        arguments.join(", "),
        f = entry.function,
    );
    let buffers = entry.params.iter().filter_map(|param| {
        let ParamKind::Buffer { memory, .. } = param.kind else { return None };
        let kind = match memory {
            Memory::Read => "Read",
            Memory::Write => "Write",
            Memory::Constant => "Constant",
        };
        Some(format!("MSL_BUFFER({kind}, {})", pointee(&param.kind_text)))
    });
    let buffers: Vec<String> = buffers.collect();
    let _ = writeln!(
        out,
        "{} static const msl::Buffer* msl_buffers_{}() {{ \
         static const msl::Buffer list[] = {{{}{{}}}}; return list; }}",
        kernel.template,
        entry.function,
        buffers.iter().map(|b| format!("{b}, ")).collect::<String>(),
    );
}

/// The type that a pointer or reference refers to.
fn pointee(text: &str) -> &str {
    text.trim_end_matches(['*', '&']).trim_end()
}

fn argument(param: &crate::Param) -> String {
    let kind = &param.kind_text;
    match param.kind {
        ParamKind::Buffer { index, memory: Memory::Constant } => {
            format!("MSL_REFERENCE({index}, {})", pointee(kind))
        }
        ParamKind::Buffer { index, .. } => format!("MSL_POINTER({index}, {kind})"),
        ParamKind::Builtin(builtin) => {
            let value = match builtin {
                Builtin::ThreadPositionInGrid => "msl::position_in_grid(t)",
                Builtin::ThreadgroupPositionInGrid => "t.group->position",
                Builtin::ThreadPositionInThreadgroup => "t.position",
                Builtin::ThreadsPerThreadgroup => "t.group->launch->threads",
                Builtin::ThreadgroupsPerGrid => "t.group->launch->grid",
                Builtin::ThreadsPerGrid => "msl::threads_in_grid(t)",
                Builtin::ThreadIndexInThreadgroup => "t.index",
                Builtin::ThreadIndexInSimdgroup => "t.lane",
                Builtin::SimdgroupIndexInThreadgroup => "t.index / 32",
                Builtin::SimdgroupsPerThreadgroup => "msl::simdgroups(t)",
                Builtin::ThreadsPerSimdgroup => "32u",
            };
            let convert = if builtin.is_scalar() { "MSL_NUMBER" } else { "MSL_POSITION" };
            format!("{convert}({kind}, {value})")
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::{Target, translate};

    #[test]
    fn constants_become_variables() {
        let text = "constant uint A [[function_constant(3)]];\n\
            constant bool B [[function_constant(16)]];\n\
            constant bool C = is_function_constant_defined(B) && B;\n\
            constant uint D = C ? A : 1;\n\
            constant uint E = 7;\n";
        let translation = translate(Target::Host, "k.metal", text, &[]).unwrap();
        let required: Vec<_> =
            translation.constants.iter().map(|c| (c.index, c.required)).collect();
        assert_eq!(required, [(3, true), (16, false)]);
        let code = translation.code;
        assert!(code.contains("static uint A ;"), "{code}");
        assert!(code.contains("bool C ; static void msl_derive_C() { C = msl_defined_B && B; }"));
        assert!(code.contains("msl_derive_C();\n    msl_derive_D();"));
        assert!(code.contains("constant uint E = 7;"));
    }

    #[test]
    fn an_index_belongs_to_one_constant() {
        let text =
            "constant uint A [[function_constant(3)]]; constant uint B [[function_constant(3)]];";
        let error = translate(Target::Host, "k.metal", text, &[]).unwrap_err().to_string();
        assert_eq!(error, "k.metal:1: function constant 3 is declared twice");
    }
}
