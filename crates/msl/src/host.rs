//! C++ for the runtime of the host driver: function constants as variables, and tables that describe the entry points.

use crate::builtin::Builtin;
use crate::constants::Constants;
use crate::kernels::{Kernel, pointee};
use crate::token::Tokens;
use crate::{FunctionConstant, Memory, ParamKind};
use std::fmt::Write as _;

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
