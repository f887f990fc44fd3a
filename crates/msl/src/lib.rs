//! Metal Shading Language as a source for other compilers: reads kernels, tells what their entry points take, and
//! rewrites what C++ cannot hold.
//!
//! Function bodies pass through unchanged; the target's compiler reports errors at the kernel's file and line. It never
//! looks into types: that is the compiler's work.

mod builtin;
mod check;
mod constants;
pub mod cuda;
mod host;
mod kernels;
mod rewrite;
mod token;

pub use builtin::Builtin;

use token::Tokens;

/// Why a source could not be translated.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{file}:{line}: {reason}")]
pub struct Error {
    /// The file: the kernel's or a header's.
    pub file: String,
    /// Its line, from 1.
    pub line: u32,
    /// What is wrong with it, and what to do.
    pub reason: String,
}

/// What the translation is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// C++17 for clang and the runtime of the host driver, with function constants as variables.
    Host,
    /// CUDA C++ for NVRTC and the runtime of the CUDA driver, with function constants as macros: see [`cuda::pipeline`].
    Cuda,
}

/// A translated source.
#[derive(Clone, Debug)]
pub struct Translation {
    /// The target's source, complete.
    pub code: String,
    /// Entry points, in the order of the source.
    pub entries: Vec<Entry>,
    /// Function constants that the source declares, in its order.
    pub constants: Vec<FunctionConstant>,
}

/// An entry point: what a dispatch names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its `host_name`, or the name of the function.
    pub name: String,
    /// The function.
    pub function: String,
    /// Template arguments, as they are written; empty for a plain function.
    pub arguments: Vec<String>,
    /// Parameters in their order.
    pub params: Vec<Param>,
    /// Most threads of a threadgroup, where the kernel says so.
    pub max_threads: Option<u32>,
}

/// A parameter of an entry point.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Param {
    /// Its name.
    pub name: String,
    /// Its type as it is written: `device const T*`.
    pub kind_text: String,
    /// What it is bound to.
    pub kind: ParamKind,
}

/// What a parameter is bound to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParamKind {
    /// A buffer.
    Buffer {
        /// Its index.
        index: u32,
        /// How it is declared.
        memory: Memory,
    },
    /// Where the thread is.
    Builtin(Builtin),
}

/// How a buffer is declared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// `device const T*`
    Read,
    /// `device T*`
    Write,
    /// `constant T&`
    Constant,
}

/// A constant that is given a value when a pipeline is made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FunctionConstant {
    /// Its index.
    pub index: u32,
    /// Its name.
    pub name: String,
    /// `bool`, `int`, `uint` or `float`.
    pub scalar: String,
    /// Whether a dispatch has to set it: nothing asks whether it is defined.
    pub required: bool,
}

/// Translates the file `name`. `headers` are names, as quoted includes say them, and texts.
///
/// # Errors
/// If the source has what Metal has not, or what this project's rules for kernels forbid.
pub fn translate(
    target: Target,
    name: &str,
    text: &str,
    headers: &[(&str, &str)],
) -> Result<Translation, Error> {
    let mut tokens = Tokens::read(name, text, headers)?;
    check::words(&tokens)?;
    check::variables(&tokens)?;
    check::casts(&tokens)?;
    check::pointers(&tokens)?;
    check::attributes(&tokens)?;
    let constants = constants::function_constants(target, &mut tokens)?;
    let kernels = kernels::find(&mut tokens)?;
    rewrite::threadgroup_variables(&mut tokens)?;
    rewrite::literals(&mut tokens);
    rewrite::vectors(&mut tokens)?;
    rewrite::drop_attributes(&mut tokens)?;
    let code = match target {
        Target::Host => host::emit(&tokens, &kernels, &constants),
        Target::Cuda => {
            rewrite::swizzles(&mut tokens);
            cuda::emit(&tokens, &kernels)
        }
    };
    let entries = kernels.into_iter().map(|kernel| kernel.entry).collect();
    Ok(Translation { code, entries, constants: constants.list })
}
