//! `calla-cubins FILE`: writes the archive of machine code that a release is built with. `cargo xtask cubins` runs it.

use anyhow::{Context as _, Result, ensure};
use calla_cubins::asked;
use calla_cubins::make::{self, USUAL};
use calla_gpu_cuda::archive::{self, Archive};
use calla_gpu_cuda::{Architecture, Compiler, SOURCES};
use clap::Parser;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::path::PathBuf;
use std::time::Instant;

/// Writes the archive of machine code that a release is built with.
#[derive(Parser)]
struct Args {
    /// Where it is written.
    file: PathBuf,
    /// Architectures, as sm_80,sm_90; those that all GPUs but systems on a chip can do with otherwise.
    #[arg(long, value_delimiter = ',')]
    arch: Vec<Architecture>,
}

fn main() -> Result<()> {
    let args = Args::parse();
    let usual = USUAL.map(|(major, minor)| Architecture { major, minor });
    let architectures: BTreeSet<Architecture> =
        if args.arch.is_empty() { usual.into() } else { args.arch.into_iter().collect() };
    let compiler = Compiler::find()?;
    let start = Instant::now();
    let dispatches = asked::asked()?;
    println!(
        "{} pipelines are asked for ({:.1} s); NVRTC {}",
        dispatches.len(),
        start.elapsed().as_secs_f64(),
        compiler.version()
    );
    let mut blocks = BTreeMap::new();
    for &architecture in &architectures {
        let start = Instant::now();
        let gpus: Vec<Architecture> = make::served(architecture, &architectures).collect();
        ensure!(!gpus.is_empty(), "no GPU would take machine code for {architecture}");
        let sources = make::sources(&dispatches, gpus.iter().copied())?;
        let pipelines = make::compile(&compiler, sources, architecture)?;
        let codes: HashSet<&Vec<u8>> = pipelines.values().collect();
        let bytes: usize = codes.iter().map(|code| code.len()).sum();
        let gpus: Vec<String> = gpus.iter().map(ToString::to_string).collect();
        println!(
            "{architecture} for {}: {} sources, {} of other machine code, {bytes} bytes, {:.0} s",
            gpus.join(", "),
            pipelines.len(),
            codes.len(),
            start.elapsed().as_secs_f64()
        );
        blocks.insert(architecture, pipelines);
    }
    let start = Instant::now();
    let bytes = archive::write(SOURCES, compiler.version(), &blocks)?;
    let seconds = start.elapsed().as_secs_f64();
    // What a program will do with it.
    let start = Instant::now();
    for &architecture in &architectures {
        let read = Archive::read(&bytes).and_then(|archive| archive.block(architecture));
        let count = read.map_err(anyhow::Error::msg)?.map_or(0, |block| block.len());
        ensure!(count == blocks[&architecture].len(), "{architecture}: {count} came back");
    }
    println!("packed in {seconds:.1} s, all read again in {:.2} s", start.elapsed().as_secs_f64());
    std::fs::write(&args.file, &bytes).with_context(|| args.file.display().to_string())?;
    println!("{}: {} bytes", args.file.display(), bytes.len());
    Ok(())
}
