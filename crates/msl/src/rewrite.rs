//! Rewrites what C++ reads otherwise than Metal: threadgroup variables, literals, vector constructors, attributes.

use crate::Error;
use crate::token::{Kind, Tokens};

/// `threadgroup T name[n], other;` becomes `MSL_THREADGROUP(name, [n], T); ...`: one block for all threads.
pub(crate) fn threadgroup_variables(tokens: &mut Tokens) -> Result<(), Error> {
    for at in 0..tokens.list.len() {
        if !tokens.is(at, "threadgroup") || !tokens.follows(at, &["{", ";", "}"]) {
            continue;
        }
        let end = tokens.find(at, ";")?;
        let head = (at..end).find(|&i| tokens.is(i, "[")).unwrap_or(end);
        if (at..head).any(|i| ["*", "&", "=", "("].iter().any(|sign| tokens.is(i, sign))) {
            continue;
        }
        let mut declared = vec![];
        let mut scalar = String::new();
        for part in tokens.split(at + 1..end) {
            let open = part.clone().find(|&i| tokens.is(i, "[")).unwrap_or(part.end);
            let name = tokens.prev(open).filter(|i| part.contains(i));
            let name =
                name.ok_or_else(|| tokens.error(at, "a threadgroup variable has no name"))?;
            if declared.is_empty() {
                scalar = tokens.text(part.start..name);
            }
            let (size, name) = (tokens.text(open..part.end), &tokens.list[name].text);
            declared.push(format!("MSL_THREADGROUP({name}, {size}, {scalar})"));
        }
        if scalar.is_empty() {
            return Err(tokens.error(at, "a threadgroup variable has no type"));
        }
        tokens.blank(at..end);
        tokens.replace(at, declared.join("; "));
    }
    Ok(())
}

/// Literals of Metal: `1.0` is a float, `1.0h` a half, `1.0bf` a bfloat.
pub(crate) fn literals(tokens: &mut Tokens) {
    for token in &mut tokens.list {
        if token.kind != Kind::Number || token.text.starts_with("0x") {
            continue;
        }
        let text = token.text.as_str();
        let real = |digits: &str| digits.contains(['.', 'e', 'E']);
        let float =
            |digits: &str| if real(digits) { format!("{digits}f") } else { digits.to_owned() };
        token.text = if let Some(digits) = text.strip_suffix("bf").or(text.strip_suffix("BF")) {
            format!("bfloat({})", float(digits))
        } else if let Some(digits) = text.strip_suffix(['h', 'H']) {
            format!("half({})", float(digits))
        } else if real(text) && !text.ends_with(['f', 'F']) {
            format!("{text}f")
        } else {
            continue;
        };
    }
}

const SCALARS: [&str; 12] = [
    "float", "half", "bfloat", "int", "uint", "short", "ushort", "char", "uchar", "long", "ulong",
    "bool",
];

/// `vec<T, N>(...)` makes a vector, and so does `float4(...)`, but `float4 (&name)[2]` declares a reference.
pub(crate) fn vectors(tokens: &mut Tokens) -> Result<(), Error> {
    for at in 0..tokens.list.len() {
        if tokens.list[at].kind != Kind::Word {
            continue;
        }
        let next = tokens.next(at);
        if tokens.is(at, "vec") && tokens.is(next, "<") {
            let shut = tokens.close(next)?;
            let open = tokens.next(shut);
            if tokens.is(open, "(") && !tokens.is(tokens.next(open), "&") {
                tokens.replace(at, "msl::make".to_owned());
                tokens.replace(shut, ">::from".to_owned());
            }
        } else if let Some((scalar, n)) = vector(&tokens.list[at].text)
            && tokens.is(next, "(")
            && tokens.is(tokens.next(next), "&")
        {
            tokens.replace(at, format!("metal::vec<{scalar}, {n}>"));
        }
    }
    Ok(())
}

/// Scalar type and number of components of a vector type's name.
fn vector(word: &str) -> Option<(&str, &str)> {
    let (scalar, n) = word.split_at_checked(word.len().checked_sub(1)?)?;
    (SCALARS.contains(&scalar) && ["2", "3", "4"].contains(&n)).then_some((scalar, n))
}

/// `v.xy` becomes a call: only clang's vectors have components by several names.
pub(crate) fn swizzles(tokens: &mut Tokens) {
    for at in 1..tokens.list.len() {
        let components: Option<Vec<String>> = tokens.list[at]
            .text
            .chars()
            .map(|c| "xyzw".find(c).map(|component| component.to_string()))
            .collect();
        let after_dot = tokens.prev(at).is_some_and(|i| tokens.is(i, "."));
        if let Some(components) = components
            && tokens.list[at].kind == Kind::Word
            && components.len() > 1
            && after_dot
        {
            let order = components.join(", ");
            tokens.replace(at, format!("msl_swizzle(msl::order<{order}>())"));
        }
    }
}

/// Attributes have been read by now.
pub(crate) fn drop_attributes(tokens: &mut Tokens) -> Result<(), Error> {
    for at in 0..tokens.list.len() {
        if tokens.is_attribute(at) {
            let close = tokens.close(at)?;
            tokens.blank(at..close + 1);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::{Target, translate};

    fn code(body: &str) -> String {
        let text = format!("kernel void k(device float* y [[buffer(0)]]) {{ {body} }}");
        translate(Target::Host, "k.metal", &text, &[]).unwrap().code
    }

    #[test]
    fn threadgroup_variables_become_blocks() {
        let code = code("threadgroup float a[4 * 8], b[2][3]; threadgroup vec<half, 4> c;");
        for line in [
            "MSL_THREADGROUP(a, [4 * 8], float);",
            "MSL_THREADGROUP(b, [2][3], float);",
            "MSL_THREADGROUP(c, , vec<half, 4>);",
        ] {
            assert!(code.contains(line), "{line} in {code}");
        }
        assert!(self::code("threadgroup float* p = q;").contains("threadgroup float* p = q;"));
    }

    #[test]
    fn literals_have_no_double() {
        assert!(code("x = 1.5 + 2e3 + .5f + 3;").contains("x = 1.5f + 2e3f + .5f + 3;"));
        assert!(code("x = 1.5h + 1bf;").contains("half(1.5f) + bfloat(1)"));
    }

    #[test]
    fn vectors_are_made_and_referred_to() {
        assert!(code("x = vec<float, 4>(1);").contains("msl::make<float, 4>::from(1)"));
        let reference = code("thread float4 (&r)[2] = x;");
        assert!(reference.contains("metal::vec<float, 4> (&r)[2]"), "{reference}");
    }
}
