//! Reads `kernels/`: the sources as they are compiled into the program, and a constant for each entry point.

use calla_msl::{Target, translate};
use std::fmt::Write as _;
use std::path::Path;
use std::{env, fs, io};

fn main() -> io::Result<()> {
    println!("cargo::rerun-if-changed=kernels");
    let (kernels, headers) = read("kernels")?;
    // No compiler here takes these: they are embedded as they are.
    let (metal4, metal4_headers) = read("kernels/metal4")?;

    let out = env::var("OUT_DIR").expect("set by cargo");
    let mut sources = String::new();
    list(&mut sources, "Headers that kernels include.", "HEADERS", "", &headers);
    list(&mut sources, "Kernels: each file is compiled by itself.", "KERNELS", "", &kernels);
    let documentation = "Headers that kernels for Metal 4 include besides.";
    list(&mut sources, documentation, "METAL4_HEADERS", "metal4/", &metal4_headers);
    let documentation =
        "Kernels for Metal 4 ([`crate::metal4`]): each takes the place of the file of its name.";
    list(&mut sources, documentation, "METAL4_KERNELS", "metal4/", &metal4);
    fs::write(Path::new(&out).join("sources.rs"), sources)?;
    fs::write(Path::new(&out).join("entries.rs"), entries(&kernels, &headers))
}

/// Names and texts.
type Files = Vec<(String, String)>;

/// The kernels and headers of a folder.
fn read(folder: &str) -> io::Result<(Files, Files)> {
    let path = Path::new(&env::var("CARGO_MANIFEST_DIR").expect("set by cargo")).join(folder);
    let (mut kernels, mut headers) = (vec![], vec![]);
    for file in fs::read_dir(path)? {
        let path = file?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("metal") => kernels.push((name, fs::read_to_string(path)?)),
            Some("h") => headers.push((name, fs::read_to_string(path)?)),
            _ if path.is_dir() && name == "metal4" => {}
            _ => error(&format!("{folder}/{name} is neither a kernel (.metal) nor a header (.h)")),
        }
    }
    kernels.sort();
    headers.sort();
    for (name, _) in &headers {
        let include = format!("#include \"{name}\"");
        if !kernels.iter().chain(&headers).any(|(_, text)| text.contains(&include)) {
            error(&format!("{folder}/{name}: nothing includes it"));
        }
    }
    Ok((kernels, headers))
}

/// `pub const NAME: &[Source]` of files in a folder of `kernels/`.
fn list(out: &mut String, documentation: &str, constant: &str, folder: &str, files: &Files) {
    let _ = writeln!(out, "/// {documentation}\npub const {constant}: &[Source] = &[");
    for (name, _) in files {
        let text = format!(
            "include_str!(concat!(env!(\"CARGO_MANIFEST_DIR\"), \"/kernels/{folder}{name}\"))"
        );
        let _ = writeln!(out, "    Source {{ name: {name:?}, text: {text} }},");
    }
    out.push_str("];\n");
}

/// A constant for each entry point. Where one is never used, the compiler shows its line: so the line says what that means.
fn entries(kernels: &[(String, String)], headers: &[(String, String)]) -> String {
    let headers: Vec<(&str, &str)> =
        headers.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect();
    let mut out = String::new();
    for (file, text) in kernels {
        match translate(Target::Host, file, text, &headers) {
            Ok(translation) => {
                for entry in translation.entries {
                    let (constant, name) = (entry.name.to_uppercase(), &entry.name);
                    let _ = writeln!(
                        out,
                        "pub(crate) const {constant}: &str = {name:?}; // a kernel of {file}: some twin dispatches it"
                    );
                }
            }
            Err(reason) => error(&reason.to_string()),
        }
    }
    out
}

/// Fails the build, and lets it find more that is wrong.
fn error(reason: &str) {
    println!("cargo::error={reason}");
}
