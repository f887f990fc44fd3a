//! Where machine code is taken from, with a compiler that only says what it was asked.

use super::*;
use crate::archive::{self, Archive, Pipelines};
use std::collections::BTreeMap;

const V12: Version = Version { major: 12, minor: 9 };
const V13: Version = Version { major: 13, minor: 0 };
const SM_90: Architecture = Architecture { major: 9, minor: 0 };
const GPU: Gpu = Gpu { architecture: SM_90, driver: V13 };

/// Puts a name before the source, and knows of one that it does not compile.
#[derive(Debug)]
struct Fake(Version);

impl Compile for Fake {
    fn version(&self) -> Version {
        self.0
    }

    fn compile(&self, source: &Source, architecture: Architecture) -> Result<Vec<u8>, String> {
        if source.text == "wrong" {
            return Err("a mistake in line 1".to_owned());
        }
        Ok(format!("{architecture} {} {}", self.0, source.text).into_bytes())
    }
}

fn fake12() -> Option<Box<dyn Compile>> {
    Some(Box::new(Fake(V12)))
}

fn fake13() -> Option<Box<dyn Compile>> {
    Some(Box::new(Fake(V13)))
}

fn none() -> Option<Box<dyn Compile>> {
    None
}

fn unasked() -> Option<Box<dyn Compile>> {
    panic!("the compiler is loaded")
}

fn source(text: &str) -> Source {
    Source { entry: "kernel", file: "kernel.metal", text: text.to_owned(), twin: None }
}

fn text(code: Result<Vec<Vec<u8>>, (usize, String)>) -> Vec<String> {
    code.unwrap().into_iter().map(|code| String::from_utf8(code).unwrap()).collect()
}

fn block(sources: &[&str]) -> Block {
    let code = |text: &&str| (source(text).key(), format!("embedded {text}").into_bytes());
    let pipelines: Pipelines = sources.iter().map(code).collect();
    let bytes = archive::write("abc", V13, &BTreeMap::from([(SM_90, pipelines)])).unwrap();
    Archive::read(&bytes).unwrap().block(SM_90).unwrap().unwrap()
}

fn cache(folder: &tempfile::TempDir) -> Option<Cache> {
    Some(Cache::open(folder.path().to_owned()).unwrap())
}

#[test]
fn the_compiler_is_loaded_for_what_is_nowhere_else() {
    let folder = tempfile::tempdir().unwrap();
    let embedded = || Some(block(&["a", "b"]));
    let code = MachineCode::new(GPU, embedded(), cache(&folder), unasked);
    code.check(&source("a")).unwrap();
    assert_eq!(text(code.get(&[source("b"), source("a")])), ["embedded b", "embedded a"]);
    assert_eq!(code.origins(), "2 embedded, 0 from the cache, 0 compiled by NVRTC");

    let code = MachineCode::new(GPU, embedded(), cache(&folder), fake13);
    let all = [source("c"), source("a"), source("d")];
    assert_eq!(text(code.get(&all)), ["9.0 13.0 c", "embedded a", "9.0 13.0 d"]);
    assert_eq!(code.origins(), "1 embedded, 0 from the cache, 2 compiled by NVRTC");

    // What was compiled is found again without a compiler.
    let code = MachineCode::new(GPU, embedded(), cache(&folder), unasked);
    assert_eq!(text(code.get(&all)), ["9.0 13.0 c", "embedded a", "9.0 13.0 d"]);
    assert_eq!(code.origins(), "1 embedded, 2 from the cache, 0 compiled by NVRTC");
    code.check(&source("c")).unwrap();
}

#[test]
fn machine_code_of_other_sources_is_not_used() {
    let folder = tempfile::tempdir().unwrap();
    let stale = Some(block(&["a, as it was"]));
    let code = MachineCode::new(GPU, stale, cache(&folder), fake13);
    assert_eq!(text(code.get(&[source("a")])), ["9.0 13.0 a"]);
}

#[test]
fn what_a_newer_compiler_made_is_compiled_anew_for_an_older_driver() {
    let folder = tempfile::tempdir().unwrap();
    text(MachineCode::new(GPU, None, cache(&folder), fake13).get(&[source("a")]));
    let older = Gpu { driver: V12, ..GPU };
    let code = MachineCode::new(older, None, cache(&folder), fake12);
    assert_eq!(text(code.get(&[source("a")])), ["9.0 12.9 a"]);
    // The newer driver takes what the older compiler made.
    let code = MachineCode::new(GPU, None, cache(&folder), unasked);
    assert_eq!(text(code.get(&[source("a")])), ["9.0 12.9 a"]);
}

#[test]
fn an_archive_serves_gpus_whose_driver_takes_it() {
    let pipelines = Pipelines::from([(source("a").key(), b"code".to_vec())]);
    let bytes = archive::write("abc", V13, &BTreeMap::from([(SM_90, pipelines)])).unwrap();
    let found = embedded(&bytes, GPU).unwrap().unwrap();
    assert_eq!(found.get(source("a").key()), Some(b"code".as_slice()));
    let blackwell = Architecture { major: 10, minor: 0 };
    assert!(embedded(&bytes, Gpu { architecture: blackwell, ..GPU }).unwrap().is_none());
    let error = embedded(&bytes, Gpu { driver: V12, ..GPU }).unwrap_err();
    assert!(error.contains("made by CUDA 13.0") && error.contains("CUDA 12.9"), "{error}");
    assert!(embedded(b"calla cubins 2\n\n", GPU).is_err());
}

#[test]
fn without_a_compiler_the_error_says_what_is_missing() {
    let code = MachineCode::new(GPU, Some(block(&["a"])), None, none);
    code.check(&source("a")).unwrap();
    let error = code.check(&source("b")).unwrap_err();
    assert!(error.is_missing(), "{error}");
    let (index, reason) = code.get(&[source("a"), source("b")]).unwrap_err();
    assert_eq!(index, 1);
    for part in ["compute capability 9.0", "libnvrtc", "install", "--device cpu"] {
        assert!(reason.contains(part), "{reason}");
    }
}

#[test]
fn a_source_that_does_not_compile_is_named() {
    let code = MachineCode::new(GPU, None, None, fake13);
    let error = code.get(&[source("a"), source("b"), source("wrong")]).unwrap_err();
    assert_eq!(error, (2, "a mistake in line 1".to_owned()));
}
