//! Whether twins fit the kernels that they stand for, and compile: where there is NVRTC, which needs no GPU.

use super::{TWINS, find};
use crate::compiler::{Architecture, Compiler};
use crate::library::Library;
use calla_gpu::Dispatch;
use std::collections::HashSet;
use std::path::Path;

const ARCHITECTURES: [Architecture; 3] = [
    Architecture { major: 8, minor: 0 },
    Architecture { major: 9, minor: 0 },
    Architecture { major: 12, minor: 0 },
];

/// Function constants of the full shape and of an odd one, by name; bits of the two matrices.
fn value(name: &str, odd: bool, bits: [u32; 2]) -> u32 {
    match (name, odd) {
        ("BITS", _) => bits[0],
        ("OTHER_BITS", _) => bits[1],
        ("HIDDEN" | "IN_DIM", false) => 2048,
        ("HIDDEN" | "IN_DIM", true) => 192,
        ("HEADS" | "KEY_HEADS", false) => 16,
        ("HEADS", true) => 3,
        ("KV_HEADS", false) => 2,
        ("KV_HEADS" | "KEY_HEADS", true) => 1,
        ("VALUE_HEADS", false) => 32,
        ("VALUE_HEADS", true) => 3,
        ("EXPERTS", false) => 256,
        ("EXPERTS", true) => 20,
        ("TOP_K", false) => 8,
        ("TOP_K", true) => 5,
        ("EXPERT_HIDDEN" | "SHARED_HIDDEN", false) => 512,
        ("EXPERT_HIDDEN" | "SHARED_HIDDEN", true) => 64,
        _ => 1,
    }
}

#[test]
fn each_entry_point_has_one_twin_at_most_and_each_file_is_used() {
    let library = Library::new(None).unwrap();
    let mut entries = HashSet::new();
    for twin in TWINS {
        for entry in twin.entries {
            assert!(library.entry(entry).is_some(), "{}: no kernel {entry}", twin.file);
            assert!(entries.insert(entry), "{entry} has two twins");
        }
    }
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels");
    let known: HashSet<&str> = TWINS
        .iter()
        .map(|twin| twin.file)
        .chain(super::HEADERS.iter().map(|(name, _)| name.to_str().unwrap()))
        .collect();
    for file in folder.read_dir().unwrap() {
        let name = file.unwrap().file_name().into_string().unwrap();
        assert!(known.contains(name.as_str()), "kernels/{name} is used by no twin");
    }
}

#[test]
fn twins_wait_for_what_they_depend_on() {
    for twin in TWINS {
        let header = if twin.text.contains("#include \"qmv.cuh\"") {
            include_str!("../../kernels/qmv.cuh")
        } else {
            ""
        };
        let calls = |call| twin.text.contains(call) || header.contains(call);
        assert!(calls("start_next();") && calls("wait_for_previous();"), "{}", twin.file);
    }
}

#[test]
fn twins_compile_for_all_constants() {
    let compiler = match Compiler::find() {
        Ok(compiler) => compiler,
        Err(error) if error.is_missing() => {
            println!("skipped: {error}");
            return;
        }
        Err(error) => panic!("{error}"),
    };
    let library = Library::new(None).unwrap();
    for twin in TWINS {
        for &entry in twin.entries {
            let (file, _) = library.entry(entry).unwrap();
            let translation = &file.translation;
            for (odd, bits) in [(false, [4, 4]), (true, [4, 8]), (true, [8, 8])] {
                let constants = translation
                    .constants
                    .iter()
                    .map(|constant| (constant.index, value(&constant.name, odd, bits)));
                let mut dispatch = Dispatch::new(entry);
                dispatch.constants = constants.collect();
                // Enough parameters for any.
                dispatch.params = vec![0; 256];
                assert!(
                    find(&dispatch, u32::MAX).is_some(),
                    "{entry} with {:?}",
                    dispatch.constants
                );
                let source = twin.source(translation, &dispatch);
                for architecture in ARCHITECTURES {
                    let code = compiler
                        .compile(twin.file, &source, architecture)
                        .unwrap_or_else(|error| panic!("{entry}, {architecture}: {error}"));
                    assert_eq!(code[..4], *b"\x7fELF", "{entry}");
                }
            }
        }
    }
}
