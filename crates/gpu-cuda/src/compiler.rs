//! NVRTC: CUDA C++ to machine code, in this process.

use crate::error::{CudaError, Kind};
use crate::twins;
use cudarc::nvrtc::sys::{self, nvrtcResult};
use std::ffi::{CStr, CString, c_char};
use std::fmt;
use std::str::FromStr;

/// Files of the runtime of translated kernels, as they are compiled into the program.
const RUNTIME: [(&CStr, &str); 6] = [
    (c"msl.h", include_str!("../runtime/msl.h")),
    (c"start.h", include_str!("../runtime/start.h")),
    (c"types.h", include_str!("../runtime/types.h")),
    (c"math.h", include_str!("../runtime/math.h")),
    (c"simd.h", include_str!("../runtime/simd.h")),
    (c"matrix.h", include_str!("../runtime/matrix.h")),
];

/// What every pipeline is compiled with. Products and sums are never fused unless the kernel says `fma`, division and
/// square root are rounded correctly, and small numbers stay what they are.
const FLAGS: [&str; 7] = [
    "--std=c++17",
    "--device-as-default-execution-space",
    "--fmad=false",
    "--prec-div=true",
    "--prec-sqrt=true",
    "--ftz=false",
    // Functions of headers that a kernel has no use for.
    "--diag-suppress=177",
];

/// All that a source may include.
fn headers() -> impl Iterator<Item = (&'static CStr, &'static str)> {
    RUNTIME.into_iter().chain(twins::HEADERS)
}

/// A digest of all that the machine code of a source depends on, but for the architecture and the compiler: the source, what
/// it may include, and how it is compiled.
pub(crate) fn key(source: &str) -> Key {
    let mut hasher = blake3::Hasher::new();
    let headers = headers().flat_map(|(name, text)| [name.to_bytes(), text.as_bytes()]);
    for part in FLAGS.iter().map(|flag| flag.as_bytes()).chain(headers).chain([source.as_bytes()]) {
        // With its length, so that no two lists of parts are the same bytes.
        hasher.update(&(part.len() as u64).to_le_bytes()).update(part);
    }
    Key(hasher.finalize())
}

/// What machine code is of: see [`Source`](crate::Source).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key(pub(crate) blake3::Hash);

/// A version of CUDA: of a compiler, or the newest whose machine code a driver takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    /// The number before the point.
    pub major: u32,
    /// The number behind it.
    pub minor: u32,
}

impl Version {
    /// Whether a driver of this version takes machine code of a compiler of that one: of the same or an earlier major version,
    /// as NVIDIA's guide to compatibility has it.
    pub(crate) fn takes(self, compiler: Self) -> bool {
        compiler.major <= self.major
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// The machine code that a GPU takes, by its compute capability.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Architecture {
    /// The number before the point.
    pub major: u32,
    /// The number behind it.
    pub minor: u32,
}

impl Architecture {
    /// Ampere: the first to convert to bf16 in one instruction.
    pub const OLDEST: Self = Self { major: 8, minor: 0 };

    /// Whether `gpu` runs machine code for this: one of the same major version that is not older, as the programming guide
    /// has it. Systems on a chip run their own alone.
    #[must_use]
    pub fn runs_on(self, gpu: Self) -> bool {
        let is_chip = |it: Self| matches!((it.major, it.minor), (8, 7 | 8) | (10, 1) | (11, 0));
        let is_later = self.major == gpu.major && self.minor <= gpu.minor;
        self == gpu || (is_later && !is_chip(self) && !is_chip(gpu))
    }

    /// Most bytes of shared memory that a block of such a GPU may have, by the programming guide's table of compute
    /// capabilities. What a driver tells counts where there is one.
    #[must_use]
    pub fn block_memory(self) -> u32 {
        let kib = match (self.major, self.minor) {
            (8, 0 | 7) => 163,
            (8 | 12, _) => 99,
            _ => 227,
        };
        kib << 10
    }
}

impl FromStr for Architecture {
    type Err = String;

    /// As NVIDIA's tools name them, `sm_90`.
    fn from_str(text: &str) -> Result<Self, String> {
        let number = text.strip_prefix("sm_").and_then(|digits| digits.parse::<u32>().ok());
        let found = number.map(|number| Self { major: number / 10, minor: number % 10 });
        found
            .filter(|found| *found >= Self::OLDEST)
            .ok_or_else(|| format!("an architecture is sm_80 or later, as sm_90, not {text:?}"))
    }
}

impl fmt::Display for Architecture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// The compiler that is loaded.
#[derive(Debug)]
pub struct Compiler {
    version: Version,
}

impl Compiler {
    /// Loads NVRTC.
    ///
    /// # Errors
    /// If it is not there ([`CudaError::is_missing`]).
    pub fn find() -> Result<Self, CudaError> {
        // SAFETY: it loads a library of that name, whose initialisers are the vendor's.
        if !unsafe { sys::is_culib_present() } {
            return Err(Kind::NoCompiler.into());
        }
        let (mut major, mut minor) = (0, 0);
        // SAFETY: both point to integers.
        match unsafe { sys::nvrtcVersion(&raw mut major, &raw mut minor) } {
            nvrtcResult::NVRTC_SUCCESS => {
                let [major, minor] = [major, minor].map(i32::unsigned_abs);
                Ok(Self { version: Version { major, minor } })
            }
            _ => Err(Kind::NoCompiler.into()),
        }
    }

    /// Its version, as that of CUDA.
    #[must_use]
    pub fn version(&self) -> Version {
        self.version
    }

    /// Compiles a pipeline's source, of the file `name`, to machine code.
    ///
    /// # Errors
    /// What the compiler said.
    pub fn compile(
        &self,
        name: &str,
        source: &str,
        architecture: Architecture,
    ) -> Result<Vec<u8>, String> {
        let program = Program::new(name, source)?;
        let Architecture { major, minor } = architecture;
        let target = format!("--gpu-architecture=sm_{major}{minor}");
        let options = FLAGS.iter().copied().chain([target.as_str()]);
        let options: Vec<CString> = options.map(c_string).collect::<Result<_, _>>()?;
        let pointers: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();
        // SAFETY: the program exists, and there are so many options, each of them a C string that outlives the call.
        let result = unsafe {
            sys::nvrtcCompileProgram(program.0, pointers.len() as i32, pointers.as_ptr())
        };
        if result != nvrtcResult::NVRTC_SUCCESS {
            return Err(format!("{result:?}\n{}", program.log()));
        }
        program.machine_code()
    }
}

fn c_string(text: &str) -> Result<CString, String> {
    CString::new(text).map_err(|_| "a source has a zero byte".to_owned())
}

fn check(result: nvrtcResult, what: &str) -> Result<(), String> {
    match result {
        nvrtcResult::NVRTC_SUCCESS => Ok(()),
        _ => Err(format!("NVRTC could not {what}: {result:?}")),
    }
}

/// A source that NVRTC has.
struct Program(sys::nvrtcProgram);

impl Program {
    fn new(name: &str, source: &str) -> Result<Self, String> {
        let (name, source) = (c_string(name)?, c_string(source)?);
        let texts: Vec<CString> =
            headers().map(|(_, text)| c_string(text)).collect::<Result<_, _>>()?;
        let texts: Vec<*const c_char> = texts.iter().map(|text| text.as_ptr()).collect();
        let names: Vec<*const c_char> = headers().map(|(name, _)| name.as_ptr()).collect();
        let mut program = std::ptr::null_mut();
        // SAFETY: all pointers are to C strings that outlive the call, and there are as many headers as names.
        let result = unsafe {
            sys::nvrtcCreateProgram(
                &raw mut program,
                source.as_ptr(),
                name.as_ptr(),
                texts.len() as i32,
                texts.as_ptr(),
                names.as_ptr(),
            )
        };
        check(result, "take a source")?;
        Ok(Self(program))
    }

    fn log(&self) -> String {
        let mut size = 0;
        // SAFETY: the program exists, and `size` is an integer.
        let sized = unsafe { sys::nvrtcGetProgramLogSize(self.0, &raw mut size) };
        let mut bytes = vec![0_u8; size];
        if sized == nvrtcResult::NVRTC_SUCCESS && size > 0 {
            // SAFETY: the log has `size` bytes, and `bytes` has room for them.
            let result = unsafe { sys::nvrtcGetProgramLog(self.0, bytes.as_mut_ptr().cast()) };
            if let Err(error) = check(result, "give its log") {
                return error;
            }
        }
        String::from_utf8_lossy(&bytes).trim_end_matches('\0').to_owned()
    }

    fn machine_code(&self) -> Result<Vec<u8>, String> {
        let mut size = 0;
        // SAFETY: the program exists, and `size` is an integer.
        check(unsafe { sys::nvrtcGetCUBINSize(self.0, &raw mut size) }, "tell a size")?;
        let mut code = vec![0_u8; size];
        // SAFETY: the machine code has `size` bytes, and `code` has room for them.
        let result = unsafe { sys::nvrtcGetCUBIN(self.0, code.as_mut_ptr().cast()) };
        check(result, "give machine code")?;
        Ok(code)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: the program exists, and this is the last that is done with it.
        let result = unsafe { sys::nvrtcDestroyProgram(&raw mut self.0) };
        debug_assert_eq!(result, nvrtcResult::NVRTC_SUCCESS);
    }
}
