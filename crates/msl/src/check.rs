//! What a kernel may not say: what Metal has not and C++ would take, and what this project's rules for kernels forbid.

use crate::Error;
use crate::builtin::Builtin;
use crate::token::{Kind, Token, Tokens};

/// Words that Metal has not, or that its kernels here may not use.
const DENIED: [(&str, &str); 22] = [
    ("double", "Metal has no double"),
    ("goto", "Metal has no goto"),
    ("new", "Metal has no new"),
    ("delete", "Metal has no delete"),
    ("try", "Metal has no exceptions"),
    ("throw", "Metal has no exceptions"),
    ("catch", "Metal has no exceptions"),
    ("noexcept", "Metal has no exceptions"),
    ("virtual", "Metal has no virtual functions"),
    ("dynamic_cast", "Metal has no type information"),
    ("typeid", "Metal has no type information"),
    ("thread_local", "Metal has no thread_local"),
    ("register", "Metal has no register"),
    ("asm", "Metal has no asm"),
    ("printf", "Metal 3.1 cannot print"),
    ("std", "Metal has no std"),
    ("const_cast", "a buffer that is written is bound as such"),
    ("ptrdiff_t", "use int or long"),
    ("quad_sum", "use simd functions"),
    ("thread_scope_device", "threadgroups do not communicate"),
    ("memory_order_seq_cst", "atomics are relaxed"),
    ("memory_order_acq_rel", "atomics are relaxed"),
];

/// Attributes that may appear.
const ATTRIBUTES: [&str; 5] =
    ["kernel", "host_name", "buffer", "function_constant", "max_total_threads_per_threadgroup"];

const SPACES: [&str; 4] = ["device", "constant", "threadgroup", "thread"];

/// Refuses words that Metal has not, lambdas, and kernels hidden in macros.
pub(crate) fn words(tokens: &Tokens) -> Result<(), Error> {
    for (at, token) in tokens.list.iter().enumerate() {
        match token.kind {
            Kind::Word => {
                if token.text.starts_with("__") || token.text.starts_with("msl") {
                    let reason = format!("{}: a name of the compiler or the runtime", token.text);
                    return Err(tokens.error_at(token, reason));
                }
                if let Some((word, why)) = DENIED.iter().find(|(word, _)| token.text == *word) {
                    return Err(tokens.error_at(token, format!("{word}: {why}")));
                }
            }
            Kind::Directive => {
                let words = token.text.split(|c: char| !c.is_alphanumeric() && c != '_');
                for word in words {
                    if let Some((word, why)) = DENIED.iter().find(|(denied, _)| word == *denied) {
                        return Err(tokens.error_at(token, format!("{word}: {why}")));
                    }
                    if ["kernel", "host_name", "function_constant", "threadgroup"].contains(&word) {
                        let reason = format!("{word} in a macro: write it out");
                        return Err(tokens.error_at(token, reason));
                    }
                }
            }
            Kind::Punct if token.text == "[" && !tokens.is_attribute(at) => {
                let close = tokens.close(at)?;
                let lambda = ["(", "{"].iter().any(|open| tokens.is(tokens.next(close), open))
                    && tokens.follows(at, &["(", ",", "=", "return", "{", ";"]);
                if lambda {
                    return Err(tokens.error_at(token, "Metal 3.1 has no lambda expressions"));
                }
            }
            _ => {}
        }
    }
    Ok(())
}

/// Refuses C-style casts to pointers: they would cross address spaces unseen.
pub(crate) fn casts(tokens: &Tokens) -> Result<(), Error> {
    for at in 0..tokens.list.len() {
        if !tokens.is(at, "(") {
            continue;
        }
        let close = tokens.close(at)?;
        let Some(last) = tokens.prev(close) else { continue };
        let after = tokens.next(close);
        let operand = tokens
            .list
            .get(after)
            .is_some_and(|t| matches!(t.kind, Kind::Word | Kind::Number) || t.is("(") || t.is("&"));
        // A word before it makes it a call, a declaration or an operator such as sizeof.
        let called = tokens.prev(at).is_some_and(|i| {
            let before = &tokens.list[i];
            before.kind == Kind::Word && before.text != "return" || before.is(">")
        });
        if (tokens.is(last, "*") || tokens.is(last, "&")) && operand && !called {
            let reason = "a C-style cast to a pointer: use reinterpret_cast";
            return Err(tokens.error(at, reason));
        }
    }
    Ok(())
}

/// Refuses pointers and references of functions and of locals that do not say their address space.
pub(crate) fn pointers(tokens: &Tokens) -> Result<(), Error> {
    for at in 0..tokens.list.len() {
        if tokens.is(at, "{") && tokens.prev(at).is_some_and(|i| tokens.is(i, ")")) {
            function_parameters(tokens, at)?;
        }
        if tokens.follows(at, &["{", ";", "}"]) && tokens.list[at].kind == Kind::Word {
            local(tokens, at)?;
        }
    }
    Ok(())
}

/// The parameters of the function whose body opens at `body`, if it is one.
fn function_parameters(tokens: &Tokens, body: usize) -> Result<(), Error> {
    let mut depth = 0;
    let mut open = body;
    loop {
        let Some(before) = tokens.prev(open) else { return Ok(()) };
        open = before;
        if tokens.is(open, ")") {
            depth += 1;
        } else if tokens.is(open, "(") {
            depth -= 1;
            if depth == 0 {
                break;
            }
        }
    }
    let Some(name) = tokens.prev(open) else { return Ok(()) };
    let word = &tokens.list[name];
    if word.kind != Kind::Word || ["if", "for", "while", "switch"].contains(&word.text.as_str()) {
        return Ok(());
    }
    for part in tokens.split(open + 1..tokens.close(open)?) {
        let points = part.clone().any(|i| tokens.is(i, "*") || tokens.is(i, "&"));
        let spaced = part.clone().any(|i| SPACES.iter().any(|space| tokens.is(i, space)));
        if points && !spaced {
            let reason = format!(
                "{}: say thread, threadgroup, device or constant",
                tokens.text(part.clone())
            );
            return Err(tokens.error(part.start, reason));
        }
    }
    Ok(())
}

/// A statement `[const] Type * name =` at `at`: as an expression it would be senseless.
fn local(tokens: &Tokens, at: usize) -> Result<(), Error> {
    let mut i = at;
    while tokens.is(i, "const") {
        i = tokens.next(i);
    }
    let is_type = |token: &Token| {
        token.kind == Kind::Word && !["return", "else", "case"].contains(&token.text.as_str())
    };
    if !tokens.list.get(i).is_some_and(is_type) {
        return Ok(());
    }
    i = tokens.next(i);
    if !(tokens.is(i, "*") || tokens.is(i, "&")) {
        return Ok(());
    }
    let name = tokens.next(i);
    let end = tokens.next(name);
    let is_name = tokens.list.get(name).is_some_and(|token| token.kind == Kind::Word);
    let assigned = tokens.is(end, "=") && !tokens.is(end + 1, "=");
    if is_name && (assigned || tokens.is(end, ";")) {
        let reason =
            format!("{}: say thread, threadgroup, device or constant", tokens.text(at..name + 1));
        return Err(tokens.error(at, reason));
    }
    Ok(())
}

/// What a declaration at file scope may start with; functions end with a brace.
const FILE_SCOPE: [&str; 7] =
    ["struct", "enum", "using", "typedef", "template", "namespace", "static_assert"];

/// Refuses variables that all threads would share: those at file scope are constant, and none is static.
pub(crate) fn variables(tokens: &Tokens) -> Result<(), Error> {
    let mut start = None;
    let mut at = 0;
    while at < tokens.list.len() {
        if start.is_none() && matches!(tokens.list[at].kind, Kind::Word | Kind::Punct) {
            start = Some(at);
        }
        let in_braces = tokens.is(at, "{");
        let mut is_function = false;
        if in_braces || tokens.is(at, "(") || tokens.is(at, "[") {
            is_function = in_braces && tokens.follows(at, &[")"]);
            at = tokens.close(at)?;
        }
        if tokens.is(at, ";") {
            let first = start.take().unwrap_or(at);
            // A declaration of a function has parameters; a lone semicolon declares nothing.
            let is_function = (first..at).any(|i| tokens.is(i, "("));
            let known = FILE_SCOPE.iter().any(|word| tokens.is(first, word))
                || (first..at).any(|i| tokens.is(i, "constant"));
            if !known && !is_function && first != at {
                let text = tokens.text(first..at);
                let reason = format!("{text}: variables at file scope are `constant`");
                return Err(tokens.error(first, reason));
            }
        } else if is_function {
            start = None;
        }
        at += 1;
    }
    for at in 0..tokens.list.len() {
        let next = tokens.next(at);
        let is_function = ["inline", "void"].iter().any(|word| tokens.is(next, word));
        let is_constant = ["constant", "constexpr"].iter().any(|word| tokens.is(next, word));
        if tokens.is(at, "static") && !is_function && !is_constant {
            return Err(tokens.error(at, "static: functions are `inline`, constants `constant`"));
        }
    }
    Ok(())
}

/// Refuses attributes that are not known.
pub(crate) fn attributes(tokens: &Tokens) -> Result<(), Error> {
    for at in 0..tokens.list.len() {
        if !tokens.is_attribute(at) {
            continue;
        }
        for part in tokens.split(at + 2..tokens.close(at + 1)?) {
            let word = tokens.text(part.clone());
            let name = word.split(['(', ' ']).next().unwrap_or_default();
            if name == "threadgroup" {
                let reason = "threadgroup memory is declared in the kernel, with a constant size";
                return Err(tokens.error(at, reason));
            }
            if !ATTRIBUTES.contains(&name) && Builtin::named(name).is_none() {
                return Err(tokens.error(at, format!("[[{word}]]: an attribute that is not known")));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::{Target, translate};

    fn refusal(text: &str) -> String {
        translate(Target::Host, "k.metal", text, &[]).expect_err(text).to_string()
    }

    fn body(text: &str) -> String {
        format!("kernel void k(device float* y [[buffer(0)]]) {{\n{text}\n}}\n")
    }

    #[test]
    fn what_metal_has_not_is_refused_where_it_stands() {
        for (text, expected) in [
            ("double d = 1;", "k.metal:2: double: Metal has no double"),
            (
                "auto f = [&](int i) { return i; };",
                "k.metal:2: Metal 3.1 has no lambda expressions",
            ),
            ("#define D double", "k.metal:2: double: Metal has no double"),
            ("[[unroll]] for (;;) {}", "k.metal:2: [[unroll]]: an attribute that is not known"),
        ] {
            assert_eq!(refusal(&body(text)), expected);
        }
    }

    #[test]
    fn variables_belong_to_a_thread_or_are_constant() {
        assert!(refusal("uint n;\n").starts_with("k.metal:1: uint n: variables at file scope"));
        assert!(
            refusal("constant uint a = 1;\nfloat t[4] = {1};").contains("k.metal:2: float t[4]")
        );
        assert!(refusal(&body("static uint n = 0;")).contains("k.metal:2: static"));
        assert!(refusal(&body("y[0] = __builtin_sqrtf(2.0f);")).contains("a name of the compiler"));
        let fine = "struct P { uint n; };\nstatic constexpr constant uint Z = 1;\nconstant uint A[2] = {1, 2};\nenum { B = 2 };\n\
            using namespace metal;\ninline float f(float x);\n\
            template <typename T> struct Q { static constant constexpr uint N = 3; T v; };\n\
            inline float f(float x) { return x; }\n;\n";
        let text = format!("{fine}{}", body("y[0] = f(float(A[1] + B + Q<uint>::N));"));
        translate(Target::Host, "k.metal", &text, &[]).expect("it is fine");
    }

    #[test]
    fn pointers_say_where_they_point() {
        assert!(
            refusal("inline float f(const float* p) { return *p; }")
                .contains("const float* p: say")
        );
        assert!(refusal(&body("const uint* q = y;")).contains("const uint* q: say thread"));
        assert!(refusal(&body("uint& q = y[0];")).contains("say thread"));
        assert!(refusal(&body("device uint* q = (device uint*)y;")).contains("reinterpret_cast"));
        let fine = [
            "float a = y[0]; float b = a * (a) + sizeof(device float*);",
            "device const uint* q = reinterpret_cast<device const uint*>(y);",
            "thread const float& r = y[0]; y[0] = r * r;",
            "y[0] *= 2.0f; float c = (y[0] * y[1]) * 3.0f; if (c * c > 2.0f) { y[1] = c; }",
        ];
        for text in fine {
            translate(Target::Host, "k.metal", &body(text), &[]).expect(text);
        }
    }

    #[test]
    fn dynamic_threadgroup_memory_is_refused() {
        let text = "kernel void k(threadgroup float* t [[threadgroup(0)]]) {}";
        assert!(refusal(text).contains("declared in the kernel"), "{}", refusal(text));
    }
}
