//! Finds entry points: plain kernels, and explicit instantiations of templates under a host name.

use crate::builtin::Builtin;
use crate::token::{Kind, Tokens};
use crate::{Entry, Error, Memory, Param, ParamKind};
use std::ops::Range;

/// An entry point, with what emission needs of its template.
#[derive(Debug)]
pub(crate) struct Kernel {
    pub(crate) entry: Entry,
    /// `template <typename T>`, or nothing.
    pub(crate) template: String,
    /// Names of the template's parameters.
    pub(crate) template_params: Vec<String>,
}

/// A kernel function as it is defined.
struct Function {
    at: usize,
    name: String,
    template: String,
    template_params: Vec<String>,
    params: Vec<Param>,
    max_threads: Option<u32>,
}

/// Finds all entry points, and removes instantiations from the text.
pub(crate) fn find(tokens: &mut Tokens) -> Result<Vec<Kernel>, Error> {
    let instances = instances(tokens)?;
    let functions = functions(tokens)?;
    let mut kernels = vec![];
    for function in &functions {
        let own = instances.iter().filter(|instance| instance.function == function.name);
        let names: Vec<(String, Vec<String>)> = if function.template.is_empty() {
            vec![(function.name.clone(), vec![])]
        } else {
            own.map(|instance| (instance.name.clone(), instance.arguments.clone())).collect()
        };
        if names.is_empty() {
            let reason = format!("{} is a template without an instantiation", function.name);
            return Err(tokens.error(function.at, reason));
        }
        kernels.extend(names.into_iter().map(|(name, arguments)| Kernel {
            entry: Entry {
                name,
                function: function.name.clone(),
                arguments,
                params: function.params.clone(),
                max_threads: function.max_threads,
            },
            template: function.template.clone(),
            template_params: function.template_params.clone(),
        }));
    }
    for instance in &instances {
        let is_template = |f: &Function| f.name == instance.function && !f.template.is_empty();
        if !functions.iter().any(is_template) {
            let reason = format!("{} is no template of a kernel", instance.function);
            return Err(tokens.error(instance.at, reason));
        }
    }
    for (i, kernel) in kernels.iter().enumerate() {
        if kernels[..i].iter().any(|other| other.entry.name == kernel.entry.name) {
            return Err(tokens.error(0, format!("two kernels are called {}", kernel.entry.name)));
        }
    }
    Ok(kernels)
}

struct Instance {
    at: usize,
    name: String,
    function: String,
    arguments: Vec<String>,
}

/// Reads and removes each `template [[host_name("name")]] ... function<arguments>...;`.
fn instances(tokens: &mut Tokens) -> Result<Vec<Instance>, Error> {
    let mut found = vec![];
    for at in 0..tokens.list.len() {
        if !tokens.is(at, "template") || !tokens.is_attribute(tokens.next(at)) {
            continue;
        }
        let end = tokens.find(at, ";")?;
        let unreadable = || {
            let form = "template [[host_name(\"name\")]] [[kernel]] decltype(f<T>) f<T>;";
            tokens.error(at, format!("an instantiation reads {form}"))
        };
        let host_name = (at..end).find(|&i| tokens.is(i, "host_name")).ok_or_else(unreadable)?;
        let name = &tokens.list[tokens.next(tokens.next(host_name))];
        if name.kind != Kind::Literal {
            return Err(unreadable());
        }
        let name = name.text.trim_matches('"').to_owned();
        let mut i = at + 1;
        let mut callee = None;
        while i < end {
            if tokens.is(i, "[") || tokens.is(i, "(") {
                // Attributes, what decltype names, and parameters that are written out.
                i = tokens.close(i)?;
            } else if tokens.list[i].kind == Kind::Word && tokens.is(tokens.next(i), "<") {
                callee = Some(i);
                i = tokens.close(tokens.next(i))?;
            }
            i += 1;
        }
        let callee = callee.ok_or_else(unreadable)?;
        let open = tokens.next(callee);
        let arguments = tokens.split(open + 1..tokens.close(open)?);
        found.push(Instance {
            at,
            name,
            function: tokens.list[callee].text.clone(),
            arguments: arguments.into_iter().map(|part| tokens.text(part)).collect(),
        });
        tokens.blank(at..end + 1);
    }
    Ok(found)
}

fn functions(tokens: &Tokens) -> Result<Vec<Function>, Error> {
    let mut found = vec![];
    for at in 0..tokens.list.len() {
        if !tokens.is(at, "kernel") {
            continue;
        }
        let mut void = tokens.next(at);
        while tokens.is(void, "]") {
            void = tokens.next(void);
        }
        let name = tokens.next(void);
        let open = tokens.next(name);
        if !tokens.is(void, "void") || !tokens.is(open, "(") {
            return Err(tokens.error(at, "a kernel reads `kernel void name(...)`"));
        }
        let start = attributes_before(tokens, at);
        let (template, template_params) = template_before(tokens, start)?;
        let close = tokens.close(open)?;
        found.push(Function {
            at,
            name: tokens.list[name].text.clone(),
            template,
            template_params,
            params: parameters(tokens, open + 1..close)?,
            max_threads: max_threads(tokens, start..at)?,
        });
    }
    Ok(found)
}

/// Where the attributes before `at` start.
fn attributes_before(tokens: &Tokens, at: usize) -> usize {
    let mut start = at;
    while let Some(before) = tokens.prev(start) {
        if tokens.is(before, "[") {
            start = before;
        } else if tokens.is(before, "]") {
            let Some(open) = (0..before).rev().find(|&i| tokens.is_attribute(i)) else { break };
            start = open;
        } else {
            break;
        }
    }
    start
}

fn max_threads(tokens: &Tokens, attributes: Range<usize>) -> Result<Option<u32>, Error> {
    for i in attributes {
        if tokens.is(i, "max_total_threads_per_threadgroup") {
            let number = &tokens.list[tokens.next(tokens.next(i))];
            let number = number.text.parse();
            return number.map(Some).map_err(|_| tokens.error(i, "write the number out"));
        }
    }
    Ok(None)
}

/// `template <...>` before `start`, and its parameters' names.
fn template_before(tokens: &Tokens, start: usize) -> Result<(String, Vec<String>), Error> {
    let Some(shut) = tokens.prev(start).filter(|&i| tokens.is(i, ">")) else {
        return Ok(Default::default());
    };
    let template = (0..shut).rev().find(|&i| tokens.is(i, "template"));
    let template = template.ok_or_else(|| tokens.error(start, "no template before >"))?;
    let open = tokens.next(template);
    let mut names = vec![];
    for part in tokens.split(open + 1..shut) {
        let end = part.clone().find(|&i| tokens.is(i, "=")).unwrap_or(part.end);
        let last = tokens.prev(end).filter(|&i| tokens.list[i].kind == Kind::Word);
        let last = last.ok_or_else(|| tokens.error(open, "a template parameter has no name"))?;
        names.push(tokens.list[last].text.clone());
    }
    Ok((tokens.text(template..shut + 1), names))
}

fn parameters(tokens: &Tokens, range: Range<usize>) -> Result<Vec<Param>, Error> {
    let mut params: Vec<Param> = vec![];
    for part in tokens.split(range.clone()) {
        let text = tokens.text(part.clone());
        let attribute = part.clone().find(|&i| tokens.is_attribute(i));
        let Some(attribute) = attribute else {
            let reason = format!("{text}: every parameter needs an attribute, as [[buffer(0)]]");
            return Err(tokens.error(part.start, reason));
        };
        let name = tokens.prev(attribute).filter(|i| part.contains(i));
        let name = name.ok_or_else(|| tokens.error(attribute, "a parameter has no name"))?;
        let kind_text = tokens.text(part.start..name);
        let word = tokens.next(attribute + 1);
        let kind = if tokens.is(word, "buffer") {
            let index = &tokens.list[tokens.next(tokens.next(word))].text;
            let index: u32 = index.parse().map_err(|_| {
                tokens.error(word, format!("[[buffer({index})]]: write the index out"))
            })?;
            let expected = params.iter().filter(|p| matches!(p.kind, ParamKind::Buffer { .. }));
            if index as usize != expected.count() {
                let reason = format!("{text}: buffers are declared in the order of their indices");
                return Err(tokens.error(part.start, reason));
            }
            ParamKind::Buffer { index, memory: memory(tokens, part.start, &kind_text)? }
        } else if let Some(builtin) = Builtin::named(&tokens.list[word].text) {
            ParamKind::Builtin(builtin)
        } else {
            let reason = format!("{text}: an attribute that kernels here may not have");
            return Err(tokens.error(word, reason));
        };
        params.push(Param { name: tokens.list[name].text.clone(), kind_text, kind });
    }
    let is_constant =
        |p: &&Param| matches!(p.kind, ParamKind::Buffer { memory: Memory::Constant, .. });
    let buffers = params.iter().filter(|p| matches!(p.kind, ParamKind::Buffer { .. }));
    let early = buffers.rev().skip(1).find(is_constant);
    if let Some(early) = early {
        let reason = format!("{}: parameters (constant T&) are the last buffer", early.name);
        return Err(tokens.error(range.start, reason));
    }
    Ok(params)
}

/// The type that a pointer or reference refers to.
pub(crate) fn pointee(text: &str) -> &str {
    text.trim_end_matches(['*', '&']).trim_end()
}

fn memory(tokens: &Tokens, at: usize, text: &str) -> Result<Memory, Error> {
    let has =
        |word: &str| text.split(|c: char| !c.is_alphanumeric() && c != '_').any(|w| w == word);
    match (has("device"), has("constant"), text.chars().last()) {
        (true, false, Some('*')) if has("const") => Ok(Memory::Read),
        (true, false, Some('*')) => Ok(Memory::Write),
        (false, true, Some('&')) => Ok(Memory::Constant),
        _ => {
            let reason = format!("{text}: a buffer is device const T*, device T* or constant T&");
            Err(tokens.error(at, reason))
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::{Memory, ParamKind, Target, translate};

    #[test]
    fn entries_say_what_they_take() {
        let text = "struct P { uint n; };\n\
            template <typename T, uint N = 2>\n\
            [[max_total_threads_per_threadgroup(128)]] kernel void f(device const T* x [[buffer(0)]],\n\
            device vec<T, 4>* y [[buffer(1)]], constant P& p [[buffer(2)]],\n\
            uint2 at [[threadgroup_position_in_grid]]) {}\n\
            template [[host_name(\"f_half\")]] [[kernel]] decltype(f<half, 3>) f<half, 3>;\n\
            kernel void g(uint lane [[thread_index_in_simdgroup]]) {}\n";
        let translation = translate(Target::Host, "k.metal", text, &[]).unwrap();
        let names: Vec<_> = translation.entries.iter().map(|e| e.name.as_str()).collect();
        assert_eq!(names, ["f_half", "g"]);
        let f = &translation.entries[0];
        assert_eq!(f.arguments, ["half", "3"]);
        assert_eq!(f.max_threads, Some(128));
        let kinds: Vec<_> = f.params.iter().map(|p| p.kind).collect();
        let buffer = |index, memory| ParamKind::Buffer { index, memory };
        assert_eq!(
            kinds[..3],
            [buffer(0, Memory::Read), buffer(1, Memory::Write), buffer(2, Memory::Constant)]
        );
        assert_eq!(f.params[1].kind_text, "device vec<T, 4>*");
    }

    #[test]
    fn signatures_that_a_twin_cannot_bind_are_refused() {
        for (params, expected) in [
            ("device float* y", "needs an attribute"),
            ("device float* y [[buffer(1)]]", "in the order of their indices"),
            ("constant float* y [[buffer(0)]]", "a buffer is"),
            ("constant uint& n [[buffer(0)]], device float* y [[buffer(1)]]", "the last buffer"),
        ] {
            let text = format!("kernel void k({params}) {{}}");
            let error = translate(Target::Host, "k.metal", &text, &[]).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn templates_need_instantiations() {
        let text = "template <typename T> kernel void k(device T* y [[buffer(0)]]) {}";
        let error = translate(Target::Host, "k.metal", text, &[]).unwrap_err().to_string();
        assert_eq!(error, "k.metal:1: k is a template without an instantiation");
    }
}
