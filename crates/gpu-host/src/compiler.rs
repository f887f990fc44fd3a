//! Calls clang, and keeps what it made for the next time.

use crate::error::{Kind, io_error};
use std::hash::{DefaultHasher, Hasher as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::{env, fs, process};

/// Compilers that will do, the preferred one first: from 17 on, clang computes with `__bf16`.
const COMPILERS: [&str; 4] = ["clang++-19", "clang++-18", "clang++-17", "clang++"];
const VERSION_MIN: u32 = 17;

/// Files of the runtime, as they are compiled into the program.
const RUNTIME: [(&str, &str); 10] = [
    ("lane.h", include_str!("../runtime/lane.h")),
    ("msl.h", include_str!("../runtime/msl.h")),
    ("types.h", include_str!("../runtime/types.h")),
    ("math.h", include_str!("../runtime/math.h")),
    ("simd.h", include_str!("../runtime/simd.h")),
    ("matrix.h", include_str!("../runtime/matrix.h")),
    ("atomic.h", include_str!("../runtime/atomic.h")),
    ("fibers.h", include_str!("../runtime/fibers.h")),
    ("fibers.cpp", include_str!("../runtime/fibers.cpp")),
    ("executor.cpp", include_str!("../runtime/executor.cpp")),
];

/// What every file is compiled with. Products and sums are never fused unless the kernel says `fma`, and halves and
/// bfloats are rounded after each operation.
const FLAGS: [&str; 8] = [
    "-O2",
    "-fPIC",
    "-pthread",
    "-ffp-contract=off",
    "-fno-strict-aliasing",
    "-Xclang",
    "-ffloat16-excess-precision=none",
    "-Wall",
];

/// What kernels are compiled with: Metal is C++14 with extensions.
const KERNEL_FLAGS: [&str; 12] = [
    "-std=c++17",
    "-shared",
    "-fvisibility=hidden",
    "-Xclang",
    "-fbfloat16-excess-precision=none",
    "-Werror",
    "-Wpre-c++17-compat",
    "-Wimplicit-float-conversion",
    "-Wno-implicit-int-float-conversion",
    "-Wno-duplicate-decl-specifier",
    "-Wno-unknown-pragmas",
    "-ferror-limit=10",
];

const RUNTIME_FLAGS: [&str; 3] = ["-std=c++20", "-rdynamic", "-ldl"];

const SANITIZE: [&str; 5] = [
    "-gdwarf-4",
    "-fno-omit-frame-pointer",
    "-fsanitize=address,undefined",
    "-fno-sanitize=vptr,function",
    "-fno-sanitize-recover=undefined",
];

/// A compiler with its cache.
#[derive(Clone, Debug)]
pub(crate) struct Compiler {
    program: PathBuf,
    version: String,
    sanitize: bool,
    cache: PathBuf,
    /// Where the runtime's files lie.
    include: PathBuf,
}

impl Compiler {
    /// Finds a compiler and writes the runtime's files for it.
    pub(crate) fn find(sanitize: bool) -> Result<Self, Kind> {
        if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
            return Err(Kind::Unsupported);
        }
        let (program, version) = COMPILERS
            .iter()
            .find_map(|program| version(program).map(|v| (program.into(), v)))
            .ok_or(Kind::MissingCompiler)?;
        let cache = cache();
        let include = cache.join(format!("runtime-{:016x}", digest(&RUNTIME)));
        for (name, text) in RUNTIME {
            write(&include.join(name), text)?;
        }
        Ok(Self { program, version, sanitize, cache, include })
    }

    /// The program that runs kernels.
    pub(crate) fn executor(&self) -> Result<PathBuf, Kind> {
        let sources = ["fibers.cpp", "executor.cpp"].map(|name| self.include.join(name));
        self.compile("executor", "", &sources, &RUNTIME_FLAGS).map_err(|error| match error {
            // What the linker calls the library that it does not find.
            Failure::Compiler(text) if self.sanitize && text.contains("libclang_rt") => {
                Kind::MissingSanitizer
            }
            Failure::Compiler(text) => Kind::Runtime(text),
            Failure::Io(error) => error,
        })
    }

    /// A library of the kernels in `code`, the translation of the file `name`.
    pub(crate) fn kernels(&self, name: &str, code: &str) -> Result<PathBuf, Failure> {
        let source = self.cache.join(format!("{name}-{:016x}.cpp", digest(&code)));
        if !source.exists() {
            write(&source, code)?;
        }
        self.compile(name, code, &[source], &KERNEL_FLAGS)
    }

    fn compile(
        &self,
        name: &str,
        code: &str,
        sources: &[PathBuf],
        flags: &[&str],
    ) -> Result<PathBuf, Failure> {
        let architecture = architecture();
        let key = digest(&(
            &self.version,
            self.sanitize.then_some(SANITIZE),
            code,
            &RUNTIME,
            FLAGS,
            flags,
            architecture,
        ));
        let output = self.cache.join(format!("{name}-{key:016x}.bin"));
        if output.exists() {
            return Ok(output);
        }
        // Tests beside this one, and test programs, want the same files: one of them compiles.
        let lock = lock(&output)?;
        if output.exists() {
            return Ok(output);
        }
        let partial = partial(&output);
        let mut command = Command::new(&self.program);
        command.args(FLAGS).args([architecture, "-I"]).arg(&self.include).args(flags);
        if self.sanitize {
            command.args(SANITIZE).args(["-DMSL_SANITIZE", "-DMSL_NO_ADDRESS_SPACES"]);
        }
        command.args(sources).arg("-o").arg(&partial).stdin(Stdio::null());
        let done = command.output().map_err(io_error(format!("run {}", self.program.display())))?;
        if !done.status.success() {
            return Err(Failure::Compiler(String::from_utf8_lossy(&done.stderr).into_owned()));
        }
        fs::rename(&partial, &output).map_err(io_error(format!("name {}", output.display())))?;
        drop(lock);
        Ok(output)
    }
}

/// Why something could not be compiled.
#[derive(Debug)]
pub(crate) enum Failure {
    /// What the compiler said.
    Compiler(String),
    Io(Kind),
}

impl From<Kind> for Failure {
    fn from(error: Kind) -> Self {
        Self::Io(error)
    }
}

/// A level that the machine has and that computes alike wherever it is there.
fn architecture() -> &'static str {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("fma")
        && is_x86_feature_detected!("bmi2")
        && is_x86_feature_detected!("f16c")
    {
        return "-march=x86-64-v3";
    }
    "-march=x86-64-v2"
}

/// First line of `--version`, if the program is there and recent enough.
fn version(program: &str) -> Option<String> {
    let output = Command::new(program).arg("--version").stdin(Stdio::null()).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = text.lines().next()?;
    let major = line.split("version ").nth(1)?.split('.').next()?.parse::<u32>().ok()?;
    (output.status.success() && line.contains("clang") && major >= VERSION_MIN)
        .then(|| line.to_owned())
}

/// `target/gpu-kernels` where this program lies in a target directory.
fn cache() -> PathBuf {
    let program = env::current_exe().unwrap_or_default();
    let deps =
        program.ancestors().find(|path| path.ends_with("deps") || path.ends_with("examples"));
    let target = deps.and_then(|deps| deps.parent()?.parent()).map(Path::to_path_buf);
    target.unwrap_or_else(env::temp_dir).join("gpu-kernels")
}

fn digest(value: &impl std::hash::Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

/// Waits until nobody else makes the file `path`; until what comes back is dropped, nobody else does.
fn lock(path: &Path) -> Result<fs::File, Kind> {
    let path = path.with_extension("lock");
    let failed = || format!("lock {}", path.display());
    let file = fs::File::create(&path).map_err(io_error(failed()))?;
    file.lock().map_err(io_error(failed()))?;
    Ok(file)
}

/// A name beside `path` that nobody else uses: others may be making the same file.
fn partial(path: &Path) -> PathBuf {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    path.with_extension(format!("{}-{count}.tmp", process::id()))
}

fn write(path: &Path, text: &str) -> Result<(), Kind> {
    if path.exists() {
        return Ok(());
    }
    let failed = || format!("write {}", path.display());
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).map_err(io_error(failed()))?;
    }
    let partial = partial(path);
    fs::write(&partial, text).map_err(io_error(failed()))?;
    fs::rename(&partial, path).map_err(io_error(failed()))
}
