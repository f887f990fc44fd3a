//! What kernels declare, read from the text that the driver hands to the compiler.

use calla_msl::{FunctionConstant, Memory, ParamKind, Target, translate};
use std::collections::HashMap;

/// A buffer of a kernel.
#[derive(Clone, Debug)]
pub struct Slot {
    pub index: u32,
    pub name: String,
    pub memory: Memory,
    /// Whether it is of `uint`, as packed integers are.
    pub is_uint: bool,
    /// Bytes of the structure, for `constant T&`.
    pub bytes: Option<usize>,
}

/// What an entry point takes.
#[derive(Clone, Debug)]
pub struct Declared {
    pub slots: Vec<Slot>,
    pub constants: Vec<FunctionConstant>,
    pub max_threads: Option<u32>,
}

/// The entry points of a source.
pub fn read(name: &str, source: &str) -> Result<HashMap<String, Declared>, String> {
    let lines = source.lines().filter(|line| !line.starts_with("#line"));
    let text: String = lines.flat_map(|line| [line, "\n"]).collect();
    let translation = translate(Target::Host, name, &text, &[]).map_err(|e| e.to_string())?;
    let mut all = HashMap::new();
    for entry in translation.entries {
        let mut slots = vec![];
        for param in entry.params {
            let ParamKind::Buffer { index, memory } = param.kind else { continue };
            let bytes = (memory == Memory::Constant).then(|| {
                let kind = param.kind_text.replace("constant", "").replace('&', "");
                size_of(kind.trim(), &text)
            });
            let is_uint = param.kind_text.split([' ', '*']).any(|word| word == "uint");
            slots.push(Slot { index, name: param.name, memory, is_uint, bytes });
        }
        let constants = translation.constants.clone();
        let declared = Declared { slots, constants, max_threads: entry.max_threads };
        all.insert(entry.name, declared);
    }
    Ok(all)
}

/// Bytes of `struct NAME { uint a; float b[4]; };`, whose fields are all of four bytes.
fn size_of(name: &str, text: &str) -> usize {
    let start = text.find(&format!("struct {name} {{"));
    let start = start.unwrap_or_else(|| panic!("no struct {name}"));
    let body = &text[start..];
    let body = &body[body.find('{').unwrap() + 1..body.find('}').unwrap()];
    let code = |line: &str| line.split("//").next().unwrap_or_default().to_owned();
    let body: String = body.lines().map(code).collect();
    let mut bytes = 0;
    for field in body.split(';').map(str::trim).filter(|field| !field.is_empty()) {
        let (kind, names) = field.split_once(' ').unwrap();
        assert!(["uint", "int", "float"].contains(&kind), "{name}: {field}");
        for one in names.split(',') {
            let count = one.split_once('[').map(|(_, rest)| rest.trim_end_matches(']').trim());
            bytes += 4 * count.map_or(1, |count| count.parse::<usize>().unwrap());
        }
    }
    bytes
}

#[test]
fn sizes_of_structures_are_read() {
    let text = "struct A {\n  uint rows;  // of 3; all\n  float b[4];\n  int c, d;\n};";
    assert_eq!(size_of("A", text), 28);
}
