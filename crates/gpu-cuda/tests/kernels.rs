//! All kernels as CUDA: translated, and compiled where there is NVRTC, which needs no GPU.

use calla_gpu::sources::{HEADERS, KERNELS};
use calla_gpu_cuda::{Architecture, Compiler};
use calla_msl::{FunctionConstant, Target, cuda, translate};
use std::sync::Mutex;

const ARCHITECTURES: [Architecture; 3] = [
    Architecture { major: 8, minor: 0 },
    Architecture { major: 9, minor: 0 },
    Architecture { major: 12, minor: 0 },
];

/// Of the full shape, with 4 bits.
fn value(constant: &FunctionConstant) -> u32 {
    match constant.name.as_str() {
        "HIDDEN" | "IN_DIM" => 2048,
        "HEADS" | "KEY_HEADS" => 16,
        "KV_HEADS" => 2,
        "VALUE_HEADS" => 32,
        "EXPERTS" => 256,
        "TOP_K" => 8,
        "EXPERT_HIDDEN" | "SHARED_HIDDEN" => 512,
        "BITS" | "OTHER_BITS" => 4,
        _ => 1,
    }
}

#[test]
fn all_kernels_translate_and_compile() {
    let headers: Vec<(&str, &str)> = HEADERS.iter().map(|s| (s.name, s.text)).collect();
    let mut pipelines = vec![];
    for source in KERNELS {
        let translation = translate(Target::Cuda, source.name, source.text, &headers)
            .unwrap_or_else(|error| panic!("{error}"));
        assert!(!translation.entries.is_empty(), "{}", source.name);
        let constants: Vec<(u32, u32)> =
            translation.constants.iter().map(|c| (c.index, value(c))).collect();
        for entry in &translation.entries {
            let text = cuda::pipeline(&translation, &entry.name, &constants);
            pipelines.push((source.name, entry.name.clone(), text));
        }
    }
    let compiler = match Compiler::find() {
        Ok(compiler) => compiler,
        Err(error) if error.is_missing() => {
            println!("skipped: translated, but not compiled: {error}");
            return;
        }
        Err(error) => panic!("{error}"),
    };
    let next = Mutex::new(pipelines.iter());
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while let Some((file, entry, text)) = { next.lock().unwrap().next() } {
                    for architecture in ARCHITECTURES {
                        let code = compiler
                            .compile(file, text, architecture)
                            .unwrap_or_else(|error| panic!("{entry}, {architecture}: {error}"));
                        // The machine code is an ELF file.
                        assert_eq!(code[..4], *b"\x7fELF", "{entry}");
                    }
                }
            });
        }
    });
}
