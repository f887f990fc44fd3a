//! The driver: buffers, pipelines, and dispatches in command buffers, over any [`Api`].

use crate::api::{Api, Language};
use crate::capabilities::{Capabilities, Unsuitable};
use crate::fault::Fault;
use crate::inline::inline;
use crate::pace::Pace;
use calla_gpu::sources::{HEADERS, KERNELS, METAL4_HEADERS, METAL4_KERNELS, Source};
use calla_gpu::{BufferId, Device, DeviceError, Dispatch, Pipelines, Range, check};
use std::collections::{HashMap, VecDeque};

/// Name of the device in errors.
const DEVICE: &str = "Metal";
/// Bytes that `setBytes` takes at most.
const BYTES_MAX: usize = 4096;
/// Command buffers that are under way at a time: one runs, the next waits, one is encoded.
const UNDER_WAY: usize = 3;

/// Which kernels a device compiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kernels {
    /// Those that every device from M1 on runs.
    Plain,
    /// The same, with the variants for tensor units in place of theirs (`calla_gpu::metal4`).
    Metal4,
}

/// Why there is no device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// This is no Mac.
    #[error("this system has no Metal: only macOS has (--device cpu runs here)")]
    NotMacos,
    /// A trace was asked for that cannot be recorded.
    #[error("cannot record a GPU trace at {path}: {reason}")]
    Trace {
        /// Where it was to be.
        path: String,
        /// What to do about it, or what Metal said.
        reason: String,
    },
    /// The machine has no GPU that Metal knows, as a virtual machine may.
    #[error("Metal finds no GPU in this machine (--device cpu runs without)")]
    NoDevice,
    /// The GPU or the system is too old.
    #[error(transparent)]
    Unsuitable(#[from] Unsuitable),
    /// Metal did not give what every GPU has.
    #[error("Metal gives no {0}")]
    Missing(&'static str),
    /// A kernel does not compile.
    #[error("{file} does not compile on this machine: {reason}")]
    Compile {
        /// The file.
        file: &'static str,
        /// What the compiler said.
        reason: String,
    },
}

/// A Mac's GPU, or what stands for it.
pub struct MetalDevice<A: Api> {
    api: A,
    libraries: Vec<A::Library>,
    /// Index of the library that has an entry point.
    library_of: HashMap<String, usize>,
    pipelines: Pipelines<Pipeline<A::Pipeline>>,
    buffers: Buffers<A::Buffer>,
    allocated: u64,
    pace: Pace,
    /// The last that a command buffer failed with.
    fault: Option<Fault>,
}

struct Pipeline<P> {
    pipeline: P,
    threads: u64,
}

struct Buffer<B> {
    buffer: B,
    bytes: u64,
}

/// By id; a released one leaves its place empty, so that no id means two buffers.
struct Buffers<B>(Vec<Option<Buffer<B>>>);

impl<B> Buffers<B> {
    fn get(&self, id: BufferId) -> Result<&Buffer<B>, String> {
        let buffer = self.0.get(id.0 as usize).and_then(Option::as_ref);
        buffer.ok_or_else(|| format!("there is no buffer {}", id.0))
    }

    /// The buffer of a range that lies within it.
    fn of(&self, range: Range) -> Result<&Buffer<B>, String> {
        // The address of what is bound has to lie in the buffer, even if no byte of it is used.
        let range = Range { len: range.len.max(1), ..range };
        self.get(check::range(range, &|id| Ok(self.get(id)?.bytes))?)
    }

    /// The buffer that a copy of `len` bytes concerns; `None` if there is nothing to copy.
    fn copied(
        &self,
        what: &str,
        range: Range,
        len: usize,
    ) -> Result<Option<&Buffer<B>>, DeviceError> {
        let found = check::copied(range, len);
        let found = found.and_then(|()| (len > 0).then(|| self.of(range)).transpose());
        found.map_err(|reason| DeviceError::failed(what, reason))
    }
}

/// A command buffer that was committed.
struct UnderWay<C> {
    commands: C,
    work: u64,
    /// Label of its first dispatch.
    label: String,
}

impl<A: Api> MetalDevice<A> {
    /// Compiles all kernels.
    ///
    /// # Errors
    /// If the device is not suitable, or a kernel does not compile.
    pub fn new(api: A, kernels: Kernels) -> Result<Self, OpenError> {
        api.capabilities().require()?;
        let mut device = Self {
            api,
            libraries: vec![],
            library_of: HashMap::new(),
            pipelines: Pipelines::default(),
            buffers: Buffers(vec![]),
            allocated: 0,
            pace: Pace::default(),
            fault: None,
        };
        for plain in KERNELS {
            let variant = METAL4_KERNELS.iter().find(|variant| variant.name == plain.name);
            match (kernels, variant) {
                (Kernels::Metal4, Some(variant)) => {
                    let headers = [HEADERS, METAL4_HEADERS].concat();
                    device.compile(*variant, &headers, Language::V4_0)?;
                }
                _ => device.compile(*plain, HEADERS, Language::V3_1)?,
            }
        }
        Ok(device)
    }

    fn compile(
        &mut self,
        kernel: Source,
        headers: &[Source],
        language: Language,
    ) -> Result<(), OpenError> {
        let failed = |reason| OpenError::Compile { file: kernel.name, reason };
        let text = inline(kernel, headers).map_err(failed)?;
        let library = self.api.library(kernel.name, &text, language).map_err(failed)?;
        for entry in self.api.entries(&library) {
            self.library_of.insert(entry, self.libraries.len());
        }
        self.libraries.push(library);
        Ok(())
    }

    /// What the device and its system offer.
    #[must_use]
    pub fn capabilities(&self) -> &Capabilities {
        self.api.capabilities()
    }

    /// The layer below.
    pub fn api(&mut self) -> &mut A {
        &mut self.api
    }

    /// The last that a command buffer failed with; what it wrote, and all that ran after it, is undefined.
    #[must_use]
    pub fn last_fault(&self) -> Option<&Fault> {
        self.fault.as_ref()
    }

    /// Bytes of all buffers.
    #[must_use]
    pub fn allocated_bytes(&self) -> u64 {
        self.allocated
    }

    /// Makes the pipeline of a dispatch, unless it is there.
    fn prepare(&mut self, dispatch: &Dispatch) -> Result<(), String> {
        if self.pipelines.get(dispatch).is_some() {
            return Ok(());
        }
        let library = self.library_of.get(dispatch.entry).ok_or("no kernel has this name")?;
        let library = &self.libraries[*library];
        let pipeline = self.api.pipeline(library, dispatch.entry, &dispatch.constants)?;
        let limits = self.api.limits(&pipeline);
        if limits.simdgroup_threads != 32 {
            let found = limits.simdgroup_threads;
            return Err(format!("simdgroups of {found} threads; kernels are written for 32"));
        }
        let most = self.api.capabilities().threadgroup_bytes;
        if limits.threadgroup_bytes > most {
            let bytes = limits.threadgroup_bytes;
            return Err(format!("it takes {bytes} bytes of threadgroup memory of {most}"));
        }
        let threads = limits.threads.min(self.api.capabilities().threads);
        self.pipelines.insert(dispatch, Pipeline { pipeline, threads });
        Ok(())
    }

    /// Whether a dispatch can be encoded: what Metal itself would abort the program for.
    fn check(&self, dispatch: &Dispatch) -> Result<(), String> {
        let threads: u64 = dispatch.threads.iter().map(|&n| u64::from(n)).product();
        let most = self.pipelines.get(dispatch).map_or(0, |pipeline| pipeline.threads);
        if threads == 0 || threads > most {
            let given = dispatch.threads;
            return Err(format!("{given:?} threads in a threadgroup; it runs with at most {most}"));
        }
        if dispatch.grid.contains(&0) {
            return Err(format!("{:?} threadgroups", dispatch.grid));
        }
        if dispatch.params.len() > BYTES_MAX {
            let bytes = dispatch.params.len();
            return Err(format!("{bytes} bytes of parameters; Metal takes {BYTES_MAX}"));
        }
        for (index, binding) in dispatch.bindings.iter().enumerate() {
            let range = self.buffers.of(binding.range);
            range.map_err(|reason| format!("buffer {index}: {reason}"))?;
        }
        Ok(())
    }

    /// Encodes stages into a command buffer and commits it.
    fn commit(
        &mut self,
        dispatches: &[Dispatch],
        stages: &[usize],
    ) -> Result<UnderWay<A::CommandBuffer>, DeviceError> {
        let label = dispatches.first().map_or_else(String::new, |first| first.label.clone());
        let failed = |reason: &str| DeviceError::failed(&label, reason);
        let commands = self.api.command_buffer(&label);
        let commands = commands.ok_or_else(|| failed("Metal gives no command buffer"))?;
        let encoder = self.api.encoder(&commands, &label);
        let encoder = encoder.ok_or_else(|| failed("Metal gives no encoder"))?;
        let mut rest = dispatches;
        for (index, &count) in stages.iter().enumerate() {
            if index > 0 {
                self.api.barrier(&encoder);
            }
            let (stage, later) = rest.split_at(count);
            for dispatch in stage {
                self.encode(&encoder, dispatch);
            }
            rest = later;
        }
        self.api.end(encoder);
        self.api.commit(&commands);
        let work = dispatches.iter().map(Pace::work).fold(0, u64::saturating_add);
        Ok(UnderWay { commands, work, label })
    }

    /// Encodes a dispatch that [`Self::check`] has passed.
    fn encode(&mut self, encoder: &A::Encoder, dispatch: &Dispatch) {
        let Self { api, pipelines, buffers, .. } = self;
        api.describe(encoder, dispatch);
        let pipeline = pipelines.get(dispatch).expect("`prepare` has made it");
        api.set_pipeline(encoder, &pipeline.pipeline);
        let mut index = 0;
        for binding in &dispatch.bindings {
            let buffer = buffers.of(binding.range).expect("`check` requires that it is there");
            api.set_buffer(encoder, index, &buffer.buffer, binding.range.start);
            index += 1;
        }
        if !dispatch.params.is_empty() {
            api.set_bytes(encoder, index, &dispatch.params);
        }
        api.dispatch(encoder, dispatch.grid, dispatch.threads);
    }

    /// Waits for a command buffer, and keeps the first error of all.
    fn wait(
        &mut self,
        under_way: UnderWay<A::CommandBuffer>,
        result: &mut Result<(), DeviceError>,
    ) {
        match self.api.wait(under_way.commands) {
            Ok(ended) => self.pace.measured(under_way.work, ended.gpu_seconds),
            Err(fault) if result.is_ok() => {
                let label = format!("a command buffer from {} on", under_way.label);
                *result = Err(DeviceError::failed(label, fault.to_string()));
                self.fault = Some(fault);
            }
            // What followed a failure fails too, or computes with what that left.
            Err(_) => {}
        }
    }

    fn require_usable(&self, what: &str) -> Result<(), DeviceError> {
        match &self.fault {
            Some(fault) if fault.is_final() => {
                Err(DeviceError::failed(what, format!("the GPU was lost before: {fault}")))
            }
            _ => Ok(()),
        }
    }
}

impl<A: Api> Device for MetalDevice<A> {
    fn allocate(&mut self, label: &str, bytes: u64) -> Result<BufferId, DeviceError> {
        let no_memory =
            || DeviceError::OutOfMemory { device: DEVICE, label: label.to_owned(), bytes };
        // Metal makes no buffer of no bytes.
        let rounded = bytes.max(1).checked_next_multiple_of(16).ok_or_else(no_memory)?;
        let limits = self.api.capabilities();
        let all = self.allocated.checked_add(rounded).ok_or_else(no_memory)?;
        if rounded > limits.buffer_bytes || all > limits.working_set_bytes {
            return Err(no_memory());
        }
        let buffer = self.api.buffer(label, rounded).ok_or_else(no_memory)?;
        self.allocated = all;
        self.buffers.0.push(Some(Buffer { buffer, bytes: rounded }));
        Ok(BufferId(self.buffers.0.len() as u32 - 1))
    }

    fn release(&mut self, buffer: BufferId) -> Result<(), DeviceError> {
        let taken = self.buffers.0.get_mut(buffer.0 as usize).and_then(Option::take);
        let Some(taken) = taken else {
            let reason = format!("there is no buffer {}", buffer.0);
            return Err(DeviceError::failed("a release", reason));
        };
        // `run` waits for all that it commits: nothing uses it.
        self.api.release(taken.buffer);
        self.allocated -= taken.bytes;
        Ok(())
    }

    fn write(&mut self, range: Range, bytes: &[u8]) -> Result<(), DeviceError> {
        if let Some(buffer) = self.buffers.copied("a write", range, bytes.len())? {
            self.api.write(&buffer.buffer, range.start, bytes);
        }
        Ok(())
    }

    fn read(&mut self, range: Range, bytes: &mut [u8]) -> Result<(), DeviceError> {
        if let Some(buffer) = self.buffers.copied("a read", range, bytes.len())? {
            self.api.read(&buffer.buffer, range.start, bytes);
        }
        Ok(())
    }

    fn run(&mut self, dispatches: &[Dispatch], stages: &[usize]) -> Result<(), DeviceError> {
        self.require_usable("a plan")?;
        check::stages(dispatches, stages).map(drop)?;
        // All of it before anything runs: then only the GPU can fail half way.
        for dispatch in dispatches {
            let checked = self.prepare(dispatch).and_then(|()| self.check(dispatch));
            checked
                .map_err(|reason| DeviceError::Kernel { entry: dispatch.label.clone(), reason })?;
        }
        let mut result = Ok(());
        let mut under_way = VecDeque::new();
        let (mut dispatches, mut stages) = (dispatches, stages);
        while !stages.is_empty() && result.is_ok() {
            let taken = self.pace.stages(dispatches, stages);
            let count = stages[..taken].iter().sum();
            match self.commit(&dispatches[..count], &stages[..taken]) {
                Ok(committed) => under_way.push_back(committed),
                Err(error) => {
                    result = Err(error);
                    break;
                }
            }
            (dispatches, stages) = (&dispatches[count..], &stages[taken..]);
            if under_way.len() == UNDER_WAY
                && let Some(oldest) = under_way.pop_front()
            {
                self.wait(oldest, &mut result);
            }
        }
        for committed in under_way {
            self.wait(committed, &mut result);
        }
        result
    }
}
