//! Embeds an archive of machine code, if there is one of the sources as they are.
//!
//! `CALLA_CUBINS` names its file, which has to be there and right then. Without the variable a release build takes
//! `target/calla.cubins` of the workspace, where `cargo xtask cubins` puts it, if it is there; one of other sources is left
//! out with a warning.

use std::path::{Path, PathBuf};
use std::{env, fs, io};

/// Files and folders, beside this crate, whose text decides over the kernels, what they are compiled with, and which are
/// asked for.
const SOURCES: [&str; 8] = [
    "gpu/kernels",
    "gpu/src",
    "gpu-cuda/kernels",
    "gpu-cuda/runtime",
    "gpu-cuda/src/compiler.rs",
    "gpu-cuda/src/twins",
    "gpu-cuda/src/twins.rs",
    "msl/src",
];

fn main() -> io::Result<()> {
    let crates = Path::new(&variable("CARGO_MANIFEST_DIR")).join("..");
    let sources = digest(&crates)?;
    println!("cargo::rustc-env=CALLA_CUBIN_SOURCES={sources}");

    println!("cargo::rerun-if-env-changed=CALLA_CUBINS");
    let named = env::var_os("CALLA_CUBINS").map(PathBuf::from);
    let usual = crates.join("../target/calla.cubins");
    let file = named.as_ref().unwrap_or(&usual);
    println!("cargo::rerun-if-changed={}", file.display());
    let is_wanted = named.is_some() || variable("PROFILE") == "release" && usual.exists();
    let mut embedded = "None".to_owned();
    if is_wanted {
        match check(file, &sources) {
            Ok(path) => embedded = format!("Some(include_bytes!({path:?}))"),
            Err(reason) if named.is_some() => {
                println!("cargo::error=CALLA_CUBINS, {}: {reason}", file.display());
            }
            Err(reason) => {
                println!("cargo::warning={} is not embedded: {reason}", file.display());
            }
        }
    }
    fs::write(Path::new(&variable("OUT_DIR")).join("embedded.rs"), embedded)
}

fn variable(name: &str) -> String {
    env::var(name).expect("set by cargo")
}

/// The whole path of an archive of the sources.
fn check(file: &Path, sources: &str) -> Result<PathBuf, String> {
    let bytes = fs::read(file).map_err(|error| error.to_string())?;
    // As `src/archive.rs` says.
    let head = format!("calla cubins 1\nsources {sources}\n");
    if !bytes.starts_with(head.as_bytes()) {
        return Err(
            "it is of other sources than these; make it anew with `cargo xtask cubins`".to_owned()
        );
    }
    file.canonicalize().map_err(|error| error.to_string())
}

/// Of all sources, with their names.
fn digest(crates: &Path) -> io::Result<String> {
    let mut files = vec![];
    for name in SOURCES {
        println!("cargo::rerun-if-changed={}", crates.join(name).display());
        gather(crates, Path::new(name), &mut files)?;
    }
    files.sort();
    let mut hasher = blake3::Hasher::new();
    for name in files {
        let text = fs::read(crates.join(&name))?;
        let name = name.to_string_lossy().replace('\\', "/");
        for part in [name.as_bytes(), &text] {
            hasher.update(&(part.len() as u64).to_le_bytes()).update(part);
        }
    }
    Ok(hasher.finalize().to_hex().to_string())
}

fn gather(crates: &Path, name: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    let path = crates.join(name);
    if path.is_file() {
        files.push(name.to_owned());
        return Ok(());
    }
    for entry in fs::read_dir(path)? {
        gather(crates, &name.join(entry?.file_name()), files)?;
    }
    Ok(())
}
