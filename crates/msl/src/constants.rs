//! Function constants: what a kernel is compiled for, or told before it runs.

use crate::token::Tokens;
use crate::{Error, FunctionConstant, Target};

/// Function constants, and the names of constants that are computed from them.
#[derive(Debug, Default)]
pub(crate) struct Constants {
    pub(crate) list: Vec<FunctionConstant>,
    /// Host only: CUDA computes them as it compiles.
    pub(crate) derived: Vec<String>,
}

/// Turns function constants into what `target` has for them: variables that are set before a dispatch runs, or macros
/// that each pipeline defines.
pub(crate) fn function_constants(target: Target, tokens: &mut Tokens) -> Result<Constants, Error> {
    let mut constants = Constants::default();
    for at in 0..tokens.list.len() {
        if tokens.is(at, "function_constant") {
            let constant = function_constant(target, tokens, at)?;
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
    if target == Target::Host {
        derive(tokens, &mut constants)?;
    }
    Ok(constants)
}

/// Reads `constant T NAME [[function_constant(N)]];` around `at` and makes `static T NAME;` of it, or `constexpr T NAME =
/// MSL_VALUE_N;`.
fn function_constant(
    target: Target,
    tokens: &mut Tokens,
    at: usize,
) -> Result<FunctionConstant, Error> {
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
    match target {
        Target::Host => {
            let text = format!("MSL_UNUSED static bool msl_defined_{name_text}; MSL_UNUSED static");
            tokens.replace(constant, text);
        }
        Target::Cuda => {
            let text =
                format!("constexpr bool msl_defined_{name_text} = MSL_DEFINED_{index}; constexpr");
            tokens.replace(constant, text);
            tokens.replace(attribute, format!("= MSL_VALUE_{index}"));
        }
    }
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
