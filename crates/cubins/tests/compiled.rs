//! An archive of a few kernels, compiled and found again: where there is NVRTC, which needs no GPU.

use calla_cubins::asked::by_checks;
use calla_cubins::make;
use calla_gpu_cuda::archive::{self, Archive, Pipelines};
use calla_gpu_cuda::{Architecture, Compiler, Library};
use std::collections::BTreeMap;

#[test]
fn compiled_kernels_are_found_again_for_the_gpus_that_run_them() {
    let compiler = match Compiler::find() {
        Ok(compiler) => compiler,
        Err(error) if error.is_missing() => {
            println!("skipped: {error}");
            return;
        }
        Err(error) => panic!("{error}"),
    };
    // A translated kernel, one with two function constants, and one that has a twin where memory allows.
    let few = ["clear", "embed", "gated_delta_scan"];
    let dispatches: Vec<_> =
        by_checks().into_iter().filter(|dispatch| few.contains(&dispatch.entry)).collect();
    assert!(few.iter().all(|entry| dispatches.iter().any(|d| d.entry == *entry)));
    let [ampere, ada, hopper] =
        [(8, 0), (8, 9), (9, 0)].map(|(major, minor)| Architecture { major, minor });
    let mut blocks: BTreeMap<Architecture, Pipelines> = BTreeMap::new();
    for (architecture, gpus) in [(ampere, vec![ampere, ada]), (hopper, vec![hopper])] {
        let sources = make::sources(&dispatches, gpus.into_iter()).unwrap();
        let pipelines = make::compile(&compiler, sources, architecture).unwrap();
        blocks.insert(architecture, pipelines);
    }
    let bytes = archive::write("sources", compiler.version(), &blocks).unwrap();
    let archive = Archive::read(&bytes).unwrap();
    let mut scans = vec![];
    for gpu in [ampere, ada, hopper] {
        let block = archive.block(gpu).unwrap().unwrap();
        for memory in [Some(gpu.block_memory()), None] {
            let library = Library::new(memory).unwrap();
            for dispatch in &dispatches {
                let source = library.source(dispatch).unwrap();
                let code = block.get(source.key()).unwrap_or_else(|| panic!("{gpu}: {source:?}"));
                assert_eq!(code[..4], *b"\x7fELF", "{gpu}: {}", source.entry);
                if dispatch.entry == "gated_delta_scan" {
                    scans.push(source.file);
                }
            }
        }
    }
    // Only from 9.0 on has a block the memory for the twin.
    let (twin, plain) = ("gated_delta_scan.cu", "gated_delta.metal");
    assert_eq!(scans, [plain, plain, plain, plain, twin, plain]);
}

#[test]
fn a_kernel_that_does_not_compile_is_named() {
    let Ok(compiler) = Compiler::find() else {
        println!("skipped: there is no NVRTC");
        return;
    };
    let dispatches: Vec<_> = by_checks().into_iter().filter(|d| d.entry == "clear").collect();
    let gpu = Architecture::OLDEST;
    let mut sources = make::sources(&dispatches, [gpu].into_iter()).unwrap();
    sources[0].text.push_str("\nnothing like this;\n");
    let error = make::compile(&compiler, sources, gpu).unwrap_err().to_string();
    assert!(error.starts_with("clear, 8.0: ") && error.contains("nothing"), "{error}");
}
