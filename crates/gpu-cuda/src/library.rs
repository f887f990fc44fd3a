//! Kernel sources, translated, and the pipelines that have been made of them.

use crate::cache::Cache;
use crate::compiler::{Architecture, Compiler};
use crate::twins::{self, Twin};
use calla_gpu::Dispatch;
use calla_gpu::sources::{HEADERS, KERNELS};
use calla_msl::{Entry, Target, Translation, cuda, translate};
use std::sync::{Mutex, PoisonError};

/// A file's kernels.
#[derive(Debug)]
pub(crate) struct File {
    pub(crate) name: &'static str,
    pub(crate) translation: Translation,
}

/// All kernels.
#[derive(Debug)]
pub(crate) struct Library {
    files: Vec<File>,
    /// Bytes of shared memory that a twin's block may have, where there are twins.
    twins: Option<u32>,
}

/// Machine code of a pipeline.
#[derive(Debug)]
pub(crate) struct Compiled {
    /// The dispatch that asked for it.
    pub(crate) dispatch: usize,
    pub(crate) code: Vec<u8>,
    /// The twin that it is of, if it is not of the translated kernel.
    pub(crate) twin: Option<&'static Twin>,
}

impl Library {
    /// Translates all sources. `twins`: bytes of shared memory that a twin's block may have; none are used without.
    pub(crate) fn new(twins: Option<u32>) -> Result<Self, calla_msl::Error> {
        let headers: Vec<(&str, &str)> = HEADERS.iter().map(|s| (s.name, s.text)).collect();
        let files = KERNELS.iter().map(|source| {
            let translation = translate(Target::Cuda, source.name, source.text, &headers)?;
            Ok(File { name: source.name, translation })
        });
        Ok(Self { files: files.collect::<Result<_, calla_msl::Error>>()?, twins })
    }

    /// The file and the declaration of an entry point.
    pub(crate) fn entry(&self, name: &str) -> Option<(&File, &Entry)> {
        self.files.iter().find_map(|file| {
            let entry = file.translation.entries.iter().find(|entry| entry.name == name)?;
            Some((file, entry))
        })
    }

    /// Machine code for pipelines of `dispatches`, as indices `wanted` of them say, from the cache or compiled side by
    /// side. The error is a dispatch and what is wrong with its kernel.
    pub(crate) fn compile(
        &self,
        compiler: &Compiler,
        cache: &Cache,
        architecture: Architecture,
        dispatches: &[Dispatch],
        wanted: &[usize],
    ) -> Result<Vec<Compiled>, (usize, String)> {
        let next = Mutex::new(wanted.iter());
        let done = Mutex::new(vec![]);
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        std::thread::scope(|scope| {
            for _ in 0..threads.min(wanted.len()) {
                scope.spawn(|| {
                    loop {
                        let index = next.lock().unwrap_or_else(PoisonError::into_inner).next();
                        let Some(&index) = index else { break };
                        let code = self.pipeline(compiler, cache, architecture, &dispatches[index]);
                        let result = match code {
                            Ok((code, twin)) => Ok(Compiled { dispatch: index, code, twin }),
                            Err(reason) => Err((index, reason)),
                        };
                        done.lock().unwrap_or_else(PoisonError::into_inner).push(result);
                    }
                });
            }
        });
        done.into_inner().unwrap_or_else(PoisonError::into_inner).into_iter().collect()
    }

    fn pipeline(
        &self,
        compiler: &Compiler,
        cache: &Cache,
        architecture: Architecture,
        dispatch: &Dispatch,
    ) -> Result<(Vec<u8>, Option<&'static Twin>), String> {
        let (file, entry) = self.entry(dispatch.entry).ok_or("no kernel has this name")?;
        let twin = self.twins.and_then(|shared| twins::find(dispatch, shared));
        let (name, source) = match twin {
            Some(twin) => (twin.file, twin.source(&file.translation, dispatch)),
            None => {
                let constants = &dispatch.constants;
                (file.name, cuda::pipeline(&file.translation, &entry.name, constants))
            }
        };
        let (compiler_key, architecture_key) = (compiler.key(), architecture.to_string());
        let key = [source.as_bytes(), compiler_key.as_bytes(), architecture_key.as_bytes()];
        if let Some(code) = cache.get(&entry.name, &key) {
            return Ok((code, twin));
        }
        let code = compiler.compile(name, &source, architecture)?;
        // Without it, the next start takes longer.
        if let Err(error) = cache.put(&entry.name, &key, &code) {
            tracing::warn!("{error}");
        }
        Ok((code, twin))
    }
}
