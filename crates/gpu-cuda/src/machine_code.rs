//! Where the machine code of a pipeline comes from: the program itself, the user's cache, else NVRTC, which is not loaded
//! before something is in neither.

use crate::EMBEDDED;
use crate::archive::{Archive, Block};
use crate::cache::{Cache, Wanted};
use crate::compiler::{Architecture, Compiler, Version};
use crate::error::{CudaError, Kind};
use crate::library::Source;
use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

/// What compiles. The tests have one that does not.
pub(crate) trait Compile: fmt::Debug + Send + Sync {
    fn version(&self) -> Version;

    /// Machine code of a source.
    ///
    /// # Errors
    /// What the compiler said.
    fn compile(&self, source: &Source, architecture: Architecture) -> Result<Vec<u8>, String>;
}

impl Compile for Compiler {
    fn version(&self) -> Version {
        Self::version(self)
    }

    fn compile(&self, source: &Source, architecture: Architecture) -> Result<Vec<u8>, String> {
        Self::compile(self, source.file, &source.text, architecture)
    }
}

/// Looks for a compiler.
pub(crate) type Find = fn() -> Option<Box<dyn Compile>>;

/// NVRTC, if it is there.
fn nvrtc() -> Option<Box<dyn Compile>> {
    let compiler = Compiler::find().ok()?;
    tracing::debug!("NVRTC {} is loaded", compiler.version());
    Some(Box::new(compiler))
}

/// The GPU that machine code is for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gpu {
    pub(crate) architecture: Architecture,
    /// Of its driver.
    pub(crate) driver: Version,
}

/// Machine code for one GPU.
#[derive(Debug)]
pub(crate) struct MachineCode {
    gpu: Gpu,
    /// What of the program's own is for this GPU, and its driver takes.
    embedded: Option<Block>,
    cache: Option<Cache>,
    find: Find,
    /// Once it was looked for.
    compiler: OnceLock<Option<Box<dyn Compile>>>,
    counts: Counts,
}

/// How many pipelines came from where.
#[derive(Debug, Default)]
struct Counts {
    embedded: AtomicUsize,
    cached: AtomicUsize,
    compiled: AtomicUsize,
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [embedded, cached, compiled] = [&self.embedded, &self.cached, &self.compiled]
            .map(|count| count.load(Ordering::Relaxed));
        write!(f, "{embedded} embedded, {cached} from the cache, {compiled} compiled by NVRTC")
    }
}

impl MachineCode {
    /// What there is for a GPU: in the program, in a folder, and of NVRTC.
    pub(crate) fn find(folder: PathBuf, gpu: Gpu) -> Self {
        let embedded = EMBEDDED.and_then(|archive| {
            embedded(archive, gpu).unwrap_or_else(|reason| {
                tracing::warn!("the program's own machine code is not used: {reason}");
                None
            })
        });
        // Without it, the next start takes longer.
        let cache = Cache::open(folder);
        let cache = cache.map_err(|error| tracing::warn!("machine code is not kept: {error}")).ok();
        Self::new(gpu, embedded, cache, nvrtc)
    }

    fn new(gpu: Gpu, embedded: Option<Block>, cache: Option<Cache>, find: Find) -> Self {
        let (compiler, counts) = (OnceLock::new(), Counts::default());
        Self { gpu, embedded, cache, find, compiler, counts }
    }

    /// How many pipelines came from where.
    pub(crate) fn origins(&self) -> String {
        self.counts.to_string()
    }

    /// Whether there is machine code of a source, or what can make it.
    ///
    /// # Errors
    /// That there is no compiler.
    pub(crate) fn check(&self, source: &Source) -> Result<(), CudaError> {
        if self.kept(source).is_some() { Ok(()) } else { self.compiler().map(drop) }
    }

    /// Machine code of sources, in their order, compiled side by side where it has to be. The error has the index of one.
    pub(crate) fn get(&self, sources: &[Source]) -> Result<Vec<Vec<u8>>, (usize, String)> {
        let next = Mutex::new(sources.iter().enumerate());
        let mut done = vec![];
        done.resize_with(sources.len(), || Ok(vec![]));
        let done = Mutex::new(done);
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        std::thread::scope(|scope| {
            for _ in 0..threads.min(sources.len()) {
                scope.spawn(|| {
                    loop {
                        let taken = next.lock().unwrap_or_else(PoisonError::into_inner).next();
                        let Some((index, source)) = taken else { break };
                        let code = self.one(source).map_err(|reason| (index, reason));
                        done.lock().unwrap_or_else(PoisonError::into_inner)[index] = code;
                    }
                });
            }
        });
        done.into_inner().unwrap_or_else(PoisonError::into_inner).into_iter().collect()
    }

    fn one(&self, source: &Source) -> Result<Vec<u8>, String> {
        if let Some((code, count)) = self.kept(source) {
            count.fetch_add(1, Ordering::Relaxed);
            return Ok(code);
        }
        let compiler = self.compiler().map_err(|error| {
            format!(
                "this program has no machine code of it for compute capability {}, and none was kept: {error}. \
                 --device cpu needs none of this",
                self.gpu.architecture
            )
        })?;
        let code = compiler.compile(source, self.gpu.architecture)?;
        self.counts.compiled.fetch_add(1, Ordering::Relaxed);
        if let Some(cache) = &self.cache {
            // Without it, the next start takes longer.
            if let Err(error) = cache.put(self.wanted(source), compiler.version(), &code) {
                tracing::warn!("{error}");
            }
        }
        Ok(code)
    }

    /// Machine code that is there, and what it counts as.
    fn kept(&self, source: &Source) -> Option<(Vec<u8>, &AtomicUsize)> {
        let key = source.key();
        if let Some(code) = self.embedded.as_ref().and_then(|block| block.get(key)) {
            return Some((code.to_vec(), &self.counts.embedded));
        }
        let driver = self.gpu.driver;
        let code = self.cache.as_ref()?.get(self.wanted(source), |version| driver.takes(version));
        Some((code?, &self.counts.cached))
    }

    fn wanted<'a>(&self, source: &'a Source) -> Wanted<'a> {
        let architecture = self.gpu.architecture;
        Wanted { entry: source.entry, key: source.key(), architecture }
    }

    fn compiler(&self) -> Result<&dyn Compile, CudaError> {
        let found = self.compiler.get_or_init(self.find).as_deref();
        found.ok_or_else(|| Kind::NoCompiler.into())
    }
}

/// What an archive has for a GPU.
fn embedded(archive: &[u8], Gpu { architecture, driver }: Gpu) -> Result<Option<Block>, String> {
    let archive = Archive::read(archive)?;
    if !driver.takes(archive.compiler) {
        return Err(format!(
            "it was made by CUDA {}, and this driver is of CUDA {driver}; install a driver of CUDA {} or later",
            archive.compiler, archive.compiler.major
        ));
    }
    archive.block(architecture)
}

#[cfg(test)]
mod tests;
