//! Kernel sources, translated, and which of them a dispatch needs.

use crate::compiler::{self, Key};
use crate::error::{CudaError, Kind};
use crate::twins::{self, Twin};
use calla_gpu::Dispatch;
use calla_gpu::sources::{HEADERS, KERNELS};
use calla_msl::{Entry, Target, Translation, cuda, translate};

/// A file's kernels.
#[derive(Debug)]
pub(crate) struct File {
    pub(crate) name: &'static str,
    pub(crate) translation: Translation,
}

/// All kernels.
#[derive(Debug)]
pub struct Library {
    files: Vec<File>,
    /// Bytes of shared memory that a twin's block may have, where there are twins.
    twins: Option<u32>,
}

/// The source of a pipeline: an entry point with its function constants.
#[derive(Clone, Debug)]
pub struct Source {
    /// The entry point.
    pub entry: &'static str,
    /// The file that it is in.
    pub file: &'static str,
    /// CUDA C++.
    pub text: String,
    /// The twin that it is of, if it is not of the translated kernel.
    pub(crate) twin: Option<&'static Twin>,
}

impl Source {
    /// What its machine code is found by, wherever it is kept.
    #[must_use]
    pub fn key(&self) -> Key {
        compiler::key(&self.text)
    }
}

impl Library {
    /// Translates all sources. `block_memory`: bytes of shared memory that a block may have, as
    /// [`Architecture::block_memory`](crate::Architecture::block_memory) or a driver tells; it decides over the kernels
    /// written for NVIDIA GPUs, of which none are used without.
    ///
    /// # Errors
    /// If a kernel cannot be translated.
    pub fn new(block_memory: Option<u32>) -> Result<Self, CudaError> {
        let headers: Vec<(&str, &str)> = HEADERS.iter().map(|s| (s.name, s.text)).collect();
        let files = KERNELS.iter().map(|source| {
            let translation = translate(Target::Cuda, source.name, source.text, &headers)?;
            Ok(File { name: source.name, translation })
        });
        let files = files.collect::<Result<_, calla_msl::Error>>().map_err(Kind::from)?;
        Ok(Self { files, twins: block_memory })
    }

    /// The file and the declaration of an entry point.
    pub(crate) fn entry(&self, name: &str) -> Option<(&File, &Entry)> {
        self.files.iter().find_map(|file| {
            let entry = file.translation.entries.iter().find(|entry| entry.name == name)?;
            Some((file, entry))
        })
    }

    /// The source of the pipeline that a dispatch needs.
    ///
    /// # Errors
    /// If no kernel has its entry point.
    pub fn source(&self, dispatch: &Dispatch) -> Result<Source, String> {
        let entry = dispatch.entry;
        let (file, _) = self.entry(entry).ok_or("no kernel has this name")?;
        let twin = self.twins.and_then(|shared| twins::find(dispatch, shared));
        let (file, text) = match twin {
            Some(twin) => (twin.file, twin.source(&file.translation, dispatch)),
            None => (file.name, cuda::pipeline(&file.translation, entry, &dispatch.constants)),
        };
        Ok(Source { entry, file, text, twin })
    }
}
