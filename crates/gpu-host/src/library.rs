//! Kernel sources, translated, and what of them has been compiled and loaded.

use crate::compiler::{Compiler, Failure};
use crate::executor::{Executor, Request};
use calla_gpu::check::Buffer;
use calla_msl::{FunctionConstant, Target, Translation, translate};
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

/// A kernel that is loaded.
#[derive(Clone, Debug)]
pub(crate) struct Kernel {
    pub(crate) file: String,
    /// Indices that the executor knows it by.
    pub(crate) module: u32,
    pub(crate) index: u32,
    pub(crate) max_threads: Option<u32>,
    pub(crate) buffers: Vec<Buffer>,
    pub(crate) constants: Arc<Vec<FunctionConstant>>,
}

#[derive(Debug)]
struct File {
    name: String,
    translation: Result<Translation, calla_msl::Error>,
    library: Option<PathBuf>,
}

/// All kernels.
#[derive(Debug)]
pub(crate) struct Library {
    files: Vec<File>,
    loaded: HashMap<String, Kernel>,
    modules: u32,
}

impl Library {
    /// Translates all sources. One that cannot be translated is an error for who uses it.
    pub(crate) fn new(kernels: &[(String, String)], headers: &[(String, String)]) -> Self {
        let headers: Vec<(&str, &str)> =
            headers.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect();
        let files = kernels.iter().map(|(name, text)| File {
            name: name.clone(),
            translation: translate(Target::Host, name, text, &headers),
            library: None,
        });
        Self { files: files.collect(), loaded: HashMap::new(), modules: 0 }
    }

    /// Says that a new executor has loaded nothing yet.
    pub(crate) fn forget_loaded(&mut self) {
        self.loaded.clear();
        self.modules = 0;
    }

    /// All entry points.
    pub(crate) fn entries(&self) -> Vec<String> {
        let translations = self.files.iter().filter_map(|file| file.translation.as_ref().ok());
        translations.flat_map(|t| t.entries.iter().map(|entry| entry.name.clone())).collect()
    }

    /// The first file that could not be translated, and why.
    pub(crate) fn translated(&self) -> Result<(), (String, String)> {
        let broken =
            self.files.iter().find_map(|file| Some((file, file.translation.as_ref().err()?)));
        broken.map_or(Ok(()), |(file, error)| Err((file.name.clone(), error.to_string())))
    }

    /// Compiles the files of all `entries` that need it, side by side. An entry that is not there is left to
    /// [`Library::kernel`].
    pub(crate) fn compile(
        &mut self,
        compiler: &Compiler,
        entries: &[&str],
    ) -> Result<(), (String, String)> {
        let mut wanted: Vec<&mut File> = vec![];
        for file in &mut self.files {
            let Ok(translation) = &file.translation else { continue };
            let used = translation.entries.iter().any(|e| entries.contains(&e.name.as_str()));
            if used && file.library.is_none() {
                wanted.push(file);
            }
        }
        let failures = Mutex::new(vec![]);
        let next = Mutex::new(wanted.iter_mut());
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    loop {
                        let file = next.lock().unwrap_or_else(PoisonError::into_inner).next();
                        let Some(file) = file else { break };
                        let Ok(translation) = &file.translation else { continue };
                        match compiler.kernels(&file.name, &translation.code) {
                            Ok(library) => file.library = Some(library),
                            Err(failure) => failures
                                .lock()
                                .unwrap_or_else(PoisonError::into_inner)
                                .push((file.name.clone(), describe(failure))),
                        }
                    }
                });
            }
        });
        let failures = failures.into_inner().unwrap_or_else(PoisonError::into_inner);
        failures.into_iter().next().map_or(Ok(()), Err)
    }

    /// The kernel of an entry point, loaded into `executor`. The error says why there is none.
    pub(crate) fn kernel(
        &mut self,
        executor: &mut Executor,
        entry: &str,
    ) -> Result<Kernel, String> {
        if let Some(kernel) = self.loaded.get(entry) {
            return Ok(kernel.clone());
        }
        let holds = |file: &&File| {
            file.translation.as_ref().is_ok_and(|t| t.entries.iter().any(|e| e.name == entry))
        };
        let Some(file) = self.files.iter().find(holds) else {
            let broken = self.files.iter().filter_map(|file| file.translation.as_ref().err());
            let broken: Vec<String> = broken.map(|error| format!("\n{error}")).collect();
            return Err(format!("no kernel has this name{}", broken.concat()));
        };
        let (Some(path), Ok(translation)) = (&file.library, &file.translation) else {
            return Err("it was not compiled".to_owned());
        };
        let answer = executor.ask(&Request::load(path))?;
        let constants = Arc::new(translation.constants.clone());
        for (index, line) in (0..).zip(answer.lines()) {
            let mut words = line.split(' ').skip(1);
            let name = words.next().unwrap_or_default();
            let max_threads = words.next().and_then(|n| n.parse().ok()).filter(|&n| n > 0);
            let buffers = words.filter_map(buffer).collect();
            let kernel = Kernel {
                file: file.name.clone(),
                module: self.modules,
                index,
                max_threads,
                buffers,
                constants: Arc::clone(&constants),
            };
            self.loaded.insert(name.to_owned(), kernel);
        }
        self.modules += 1;
        self.loaded.get(entry).cloned().ok_or_else(|| "it was not loaded".to_owned())
    }
}

/// Reads `memory:size:align`.
fn buffer(text: &str) -> Option<Buffer> {
    let mut numbers = text.split(':').map(str::parse::<u64>);
    let memory = match numbers.next()?.ok()? {
        0 => calla_msl::Memory::Read,
        1 => calla_msl::Memory::Write,
        _ => calla_msl::Memory::Constant,
    };
    Some(Buffer { memory, size: numbers.next()?.ok()?, align: numbers.next()?.ok()? })
}

fn describe(failure: Failure) -> String {
    match failure {
        Failure::Compiler(text) => text,
        Failure::Io(error) => error.to_string(),
    }
}
