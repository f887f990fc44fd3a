//! Linking what only macOS compiles, where there is no Mac: a symbol that no library of Apple's is known to have is an
//! error.
//!
//! The linker is LLVM's, which comes with Rust. In place of Apple's SDK stand lists of symbols (`xtask/darwin`), each
//! with the source by which the library is known to have them. The program is never run.

use crate::report::{cargo, run};
use anyhow::{Context as _, Result};
use std::fmt::Write as _;
use std::fs;
use std::hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A library of Apple's, as far as it is used.
struct Library {
    /// Where an SDK has it.
    path: &'static str,
    /// Where a Mac has it.
    install_name: &'static str,
    /// A symbol a line; lines that begin with `#` say where they are from.
    symbols: &'static str,
}

macro_rules! framework {
    ($name:literal, $version:literal, $symbols:expr) => {
        Library {
            path: concat!("System/Library/Frameworks/", $name, ".framework/", $name, ".tbd"),
            install_name: concat!(
                "/System/Library/Frameworks/",
                $name,
                ".framework/Versions/",
                $version,
                "/",
                $name
            ),
            symbols: $symbols,
        }
    };
}

const LIB_SYSTEM: &str = "/usr/lib/libSystem.B.dylib";

const LIBRARIES: [Library; 9] = [
    Library {
        path: "usr/lib/libSystem.tbd",
        install_name: LIB_SYSTEM,
        symbols: include_str!("../darwin/libSystem.txt"),
    },
    Library {
        path: "usr/lib/libobjc.tbd",
        install_name: "/usr/lib/libobjc.A.dylib",
        symbols: include_str!("../darwin/libobjc.txt"),
    },
    // Other names of libSystem.
    Library { path: "usr/lib/libc.tbd", install_name: LIB_SYSTEM, symbols: "" },
    Library { path: "usr/lib/libm.tbd", install_name: LIB_SYSTEM, symbols: "" },
    // Rust's bindings to the C library ask for it, and use nothing of it here.
    Library {
        path: "usr/lib/libiconv.tbd",
        install_name: "/usr/lib/libiconv.2.dylib",
        symbols: "",
    },
    // Their classes are looked up when the program runs.
    framework!("CoreFoundation", "A", ""),
    framework!("CoreGraphics", "A", ""),
    framework!("Foundation", "C", ""),
    framework!("Metal", "A", include_str!("../darwin/Metal.txt")),
];

/// What to do about a symbol that is missing.
const ADVICE: &str = "what calls Metal does not link for macOS. An `undefined symbol` above is in none of the lists in \
    xtask/darwin: if a library of Apple's has it (a newer standard library of Rust, or newer bindings, may use more of \
    one), add it to that library's list, and say there by which source you know; else no Mac would link it either";

/// A linker with what stands for Apple's SDK.
pub(crate) struct Linker {
    program: PathBuf,
    sdk: PathBuf,
}

impl Linker {
    /// Writes the stubs into `folder`.
    ///
    /// # Errors
    /// With the reason if there is no linker: `Err` inside of `Ok`.
    pub(crate) fn new(folder: &Path) -> Result<Result<Self, String>> {
        let program = match find_linker() {
            Some(program) => program,
            None => return Ok(Err("this Rust comes without rust-lld; rustup's has it".to_owned())),
        };
        // Named by what is in it, and so in the arguments: cargo links again when a list has changed.
        let stubs = LIBRARIES.each_ref().map(Library::stub);
        let sdk = folder.join(format!(
            "sdk-{:016x}",
            BuildHasherDefault::<DefaultHasher>::default().hash_one(&stubs)
        ));
        for (library, stub) in LIBRARIES.iter().zip(stubs) {
            let path = sdk.join(library.path);
            let parent = path.parent().context("the path of a stub has a folder")?;
            fs::create_dir_all(parent).with_context(|| parent.display().to_string())?;
            fs::write(&path, stub).with_context(|| path.display().to_string())?;
        }
        Ok(Ok(Self { program, sdk }))
    }

    /// Has the compiler link for macOS with it.
    fn link_with<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        command.env("SDKROOT", &self.sdk).args(["-C", "linker-flavor=ld64.lld", "-C"]);
        command.arg(format!("linker={}", self.program.display()));
        command.arg("-C").arg(format!("link-arg=-L{}", self.sdk.join("usr/lib").display()))
    }

    /// Links the program of `calla-gpu-metal` that opens a GPU: all calls of Metal, without code in C. It need not be
    /// fast, so it is compiled fast.
    pub(crate) fn link_metal(&self, target: &str) -> Result<()> {
        let mut command = cargo();
        command.args(["rustc", "--package", "calla-gpu-metal", "--bin", "families"]);
        command.args(["--target", target, "--features", "blake3/pure", "--"]);
        command.env("CARGO_PROFILE_DEV_OPT_LEVEL", "0").env("CARGO_PROFILE_DEV_DEBUG", "false");
        run(self.link_with(&mut command)).context(ADVICE)
    }
}

impl Library {
    /// The stub that a linker reads, a text in the format of Apple's SDKs.
    fn stub(&self) -> String {
        let symbols: Vec<&str> = self.symbols().collect();
        let mut text = format!(
            "--- !tapi-tbd\ntbd-version: 4\ntargets: [ arm64-macos ]\ninstall-name: '{}'\n",
            self.install_name
        );
        if !symbols.is_empty() {
            // Writing to a string does not fail.
            let _ = write!(
                text,
                "exports:\n  - targets: [ arm64-macos ]\n    symbols: [ '{}' ]\n",
                symbols.join("', '")
            );
        }
        text + "...\n"
    }

    fn symbols(&self) -> impl Iterator<Item = &'static str> {
        let lines = self.symbols.lines().map(str::trim);
        lines.filter(|line| !line.is_empty() && !line.starts_with('#'))
    }
}

/// The linker that comes with the compiler.
fn find_linker() -> Option<PathBuf> {
    // For this machine, so of its tools.
    let output = compiler().args(["--print", "target-libdir"]).output().ok()?;
    let folder = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
    let linker = folder.parent()?.join("bin").join("rust-lld");
    linker.is_file().then_some(linker)
}

/// The compiler that cargo uses.
pub(crate) fn compiler() -> Command {
    let mut command = Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
    command.current_dir(crate::root());
    command
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check_darwin::{TARGET, has_target};

    /// Compiles and links a program of one file: what linker and compiler said, if they failed.
    fn link(name: &str, text: &str) -> Option<Result<(), String>> {
        let folder = std::env::temp_dir().join(format!("calla-link-{name}-{}", std::process::id()));
        let linker = match Linker::new(&folder).unwrap() {
            Ok(linker) if has_target() => linker,
            Ok(_) => {
                println!("skipped: the target {TARGET} is not there");
                return None;
            }
            Err(reason) => {
                println!("skipped: {reason}");
                return None;
            }
        };
        let source = folder.join("main.rs");
        fs::write(&source, text).unwrap();
        let mut command = compiler();
        command.args(["--edition", "2024", "--target", TARGET, "--out-dir"]).arg(&folder);
        let output = linker.link_with(command.arg(&source)).output().unwrap();
        let program = fs::read(folder.join("main"));
        fs::remove_dir_all(&folder).unwrap();
        if !output.status.success() {
            return Some(Err(String::from_utf8_lossy(&output.stderr).into_owned()));
        }
        // A Mach-O of 64 bits.
        assert_eq!(program.unwrap()[..4], 0xfeed_facf_u32.to_le_bytes());
        Some(Ok(()))
    }

    #[test]
    fn a_program_on_the_standard_library_links() {
        let text = r#"
            fn main() {
                let thread = std::thread::spawn(|| std::env::args().count());
                std::fs::write("count", thread.join().unwrap().to_string()).unwrap();
            }
        "#;
        if let Some(result) = link("good", text) {
            assert_eq!(result, Ok(()));
        }
    }

    #[test]
    fn a_symbol_that_no_library_has_is_an_error() {
        for (name, symbol) in [
            ("unknown", "calla_has_no_such_symbol"),
            // One that a library of Apple's has, and that is not used and so not listed.
            ("unlisted", "OSAtomicAdd32"),
        ] {
            let text = format!(
                "unsafe extern \"C\" {{ fn {symbol}(); }}\nfn main() {{ unsafe {{ {symbol}() }} }}"
            );
            if let Some(result) = link(name, &text) {
                let error = result.unwrap_err();
                assert!(error.contains(&format!("undefined symbol: _{symbol}")), "{error}");
            }
        }
    }

    #[test]
    fn lists_say_their_source_and_have_each_symbol_once_in_order() {
        for library in LIBRARIES.iter().filter(|library| !library.symbols.is_empty()) {
            assert!(library.symbols.starts_with("# "), "{}: no source", library.path);
            let symbols: Vec<&str> = library.symbols().collect();
            assert!(symbols.is_sorted_by(|a, b| a < b), "{}", library.path);
            // Nothing that would end a list of the stub's.
            let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '$';
            assert!(symbols.iter().all(|symbol| symbol.chars().all(is_word)), "{}", library.path);
        }
    }
}
