//! The host device.

use crate::compiler::Compiler;
use crate::error::{HostError, Kind, io_error};
use crate::executor::{Executor, Request};
use crate::library::Library;
use crate::memory::Memory;
use crate::options::Options;
use calla_gpu::sources::{HEADERS, KERNELS, Source};
use calla_gpu::{Access, BufferId, Device, DeviceError, Dispatch, Place, Range, check};
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fs, io};

/// Most threads of a threadgroup: a heavy kernel on a small Mac gets no more.
const MAX_THREADS: u32 = 256;
/// Most threadgroups in each dimension: a GPU of NVIDIA gets no more.
const MAX_GRID: [u32; 3] = [0x7fff_ffff, 0xffff, 0xffff];

/// Runs kernels on the processor.
#[derive(Debug)]
pub struct HostDevice {
    options: Options,
    compiler: Compiler,
    program: PathBuf,
    library: Library,
    memory: Memory,
    executor: Option<Executor>,
}

impl HostDevice {
    /// A device with the kernels of `calla-gpu`, and those of [`Options::kernels`].
    ///
    /// # Errors
    /// If this machine cannot compile kernels ([`HostError::is_missing_compiler`]), or files cannot be read or written.
    pub fn new(options: &Options) -> Result<Self, HostError> {
        Self::with_sources(options, &[])
    }

    /// A device with other kernels: each of `sources`, a file name and a text, takes the place of the file of that name
    /// or is one more. Names of headers end in `.h`.
    ///
    /// # Errors
    /// As [`HostDevice::new`].
    pub fn with_sources(options: &Options, sources: &[(&str, &str)]) -> Result<Self, HostError> {
        let in_folder = match &options.kernels {
            Some(folder) => {
                files(folder).map_err(io_error(format!("read {}", folder.display())))?
            }
            None => vec![],
        };
        let given = in_folder.iter().map(|(name, text)| (name.as_str(), text.as_str()));
        let given: Vec<(&str, &str)> = given.chain(sources.iter().copied()).collect();
        let merged = |own: &[Source], header: bool| {
            let mut all: Vec<(String, String)> =
                own.iter().map(|s| (s.name.to_owned(), s.text.to_owned())).collect();
            for (name, text) in given.iter().filter(|(name, _)| name.ends_with(".h") == header) {
                all.retain(|(known, _)| known != name);
                all.push(((*name).to_owned(), (*text).to_owned()));
            }
            all
        };
        let compiler = Compiler::find(options.sanitize)?;
        let program = compiler.executor()?;
        let library = Library::new(&merged(KERNELS, false), &merged(HEADERS, true));
        let memory = Memory::new()?;
        Ok(Self { options: options.clone(), compiler, program, library, memory, executor: None })
    }

    /// Sets the order of lanes, simdgroups and threadgroups (see [`Options::order`]).
    pub fn set_order(&mut self, order: u32) {
        self.options.order = order;
    }

    /// Names of all entry points.
    #[must_use]
    pub fn entries(&self) -> Vec<String> {
        self.library.entries()
    }

    /// Whether all sources could be translated.
    ///
    /// # Errors
    /// Says what is wrong with the first that could not.
    pub fn translated(&self) -> Result<(), DeviceError> {
        let kernel_error = |(entry, reason)| DeviceError::Kernel { entry, reason };
        self.library.translated().map_err(kernel_error)
    }

    /// Compiles the kernels of `entries`.
    ///
    /// # Errors
    /// If one of their files cannot be translated or compiled.
    pub fn compile(&mut self, entries: &[&str]) -> Result<(), DeviceError> {
        let kernel_error = |(entry, reason)| DeviceError::Kernel { entry, reason };
        self.library.compile(&self.compiler, entries).map_err(kernel_error)
    }

    fn executor(&mut self) -> Result<&mut Executor, Kind> {
        if self.executor.is_none() {
            self.library.forget_loaded();
            let timeout = Duration::from_secs(u64::from(self.options.timeout_s));
            self.executor = Some(Executor::start(&self.program, &self.memory, timeout)?);
        }
        Ok(self.executor.as_mut().expect("it was just started"))
    }

    fn run_one(&mut self, dispatch: &Dispatch) -> Result<(), DeviceError> {
        let kernel_error = |reason| DeviceError::Kernel { entry: dispatch.label.clone(), reason };
        let failed = |reason: String| DeviceError::failed(&dispatch.label, reason);
        self.executor().map_err(|error| failed(error.to_string()))?;
        let Some(executor) = self.executor.as_mut() else {
            return Err(failed("there is no executor".to_owned()));
        };
        let loaded = self.library.kernel(executor, dispatch.entry).map_err(kernel_error)?;
        let max_threads = loaded.max_threads.map_or(MAX_THREADS, |most| most.min(MAX_THREADS));
        let kernel = check::Kernel {
            file: &loaded.file,
            constants: &loaded.constants,
            buffers: &loaded.buffers,
            max_threads,
            max_grid: MAX_GRID,
        };
        check::dispatch(dispatch, &kernel, &|id| self.memory.len(id)).map_err(kernel_error)?;
        let places = dispatch.bindings.iter().map(|binding| self.memory.place(binding.range));
        let places: Vec<_> = places.collect::<Result<_, _>>().map_err(kernel_error)?;
        let mut request = Request::run();
        request
            .u32(loaded.module)
            .u32(loaded.index)
            .u32(self.options.workers())
            .u32(u32::from(self.options.sanitize || self.options.forget))
            .u64(self.memory.used())
            .u32(self.options.order);
        for n in dispatch.grid.iter().chain(&dispatch.threads) {
            request.u32(*n);
        }
        request.u32(dispatch.constants.len() as u32);
        for (index, value) in &dispatch.constants {
            request.u32(*index).u32(*value);
        }
        request.u32(places.len() as u32);
        for (place, binding) in places.iter().zip(&dispatch.bindings) {
            let access = match binding.access {
                Access::Read => 0,
                Access::Write => 1,
                Access::ReadWrite => 2,
            };
            request.u64(place.start).u64(place.end - place.start).u32(access);
        }
        request.bytes(&dispatch.params);
        let answer = executor.ask(&request).map(drop);
        if answer.is_err() {
            // Buffers are shared memory: the next executor finds them as they are.
            self.executor = None;
        }
        answer.map_err(failed)?;
        for (index, binding) in dispatch.bindings.iter().enumerate() {
            let Place::Buffer(id) = binding.range.place else { continue };
            if binding.access.writes() && self.memory.strayed_after(id.0) {
                return Err(failed(format!(
                    "it wrote after the end of the buffer at index {index}"
                )));
            }
        }
        Ok(())
    }
}

impl Device for HostDevice {
    fn allocate(&mut self, label: &str, bytes: u64) -> Result<BufferId, DeviceError> {
        let label = label.to_owned();
        let no_memory = |_| DeviceError::OutOfMemory { device: "host", label, bytes };
        self.memory.allocate(bytes).map(BufferId).map_err(no_memory)
    }

    fn release(&mut self, buffer: BufferId) -> Result<(), DeviceError> {
        self.memory.release(buffer.0).map_err(|reason| DeviceError::failed("a release", reason))
    }

    fn write(&mut self, range: Range, bytes: &[u8]) -> Result<(), DeviceError> {
        let target = self.bytes("a write", range, bytes.len())?;
        target.copy_from_slice(bytes);
        Ok(())
    }

    fn read(&mut self, range: Range, bytes: &mut [u8]) -> Result<(), DeviceError> {
        let source = self.bytes("a read", range, bytes.len())?;
        bytes.copy_from_slice(source);
        Ok(())
    }

    fn run(&mut self, dispatches: &[Dispatch], stages: &[usize]) -> Result<(), DeviceError> {
        let stages = check::stages(dispatches, stages)?;
        let entries: Vec<&str> = dispatches.iter().map(|dispatch| dispatch.entry).collect();
        self.compile(&entries)?;
        for stage in stages {
            check::stage(stage)?;
            for dispatch in stage {
                self.run_one(dispatch)?;
            }
        }
        Ok(())
    }
}

impl HostDevice {
    /// The bytes of a range, `len` of them.
    fn bytes(&mut self, what: &str, range: Range, len: usize) -> Result<&mut [u8], DeviceError> {
        let place = self.memory.place(range);
        let place = place.and_then(|place| check::copied(range, len).map(|()| place));
        let place = place.map_err(|reason| DeviceError::failed(what, reason))?;
        Ok(self.memory.bytes(place))
    }
}

/// Names and texts of a folder's files.
fn files(folder: &Path) -> io::Result<Vec<(String, String)>> {
    let entries = fs::read_dir(folder)?;
    let read = entries.map(|entry| {
        let entry = entry?;
        Ok((entry.file_name().to_string_lossy().into_owned(), fs::read_to_string(entry.path())?))
    });
    read.collect()
}
