//! The driver: buffers, pipelines, and dispatches in command buffers, over any [`Api`].

use crate::api::{Api, Language};
use crate::archive::{Archives, Key};
use crate::capabilities::{Capabilities, Unsuitable};
use crate::fault::Fault;
use crate::inline::inline;
use crate::pace::Pace;
use crate::self_test::{SelfTestError, self_test};
use calla_gpu::sources::{HEADERS, KERNELS, METAL4_HEADERS, METAL4_KERNELS, Source};
use calla_gpu::{
    BufferId, Device, DeviceError, Dispatch, MappedPages, OverLimit, Pipelines, Range, check,
};
use std::collections::{HashMap, VecDeque};
use std::path::Path;

/// Name of the device in errors.
const DEVICE: &str = "Metal";
/// What helps where one buffer is too large.
const BUFFER_ADVICE: &str = "use a smaller --ctx or fewer sequences, or --device cpu";
/// What helps where all buffers are too large together.
const WORKING_SET_ADVICE: &str = "use a smaller --ctx or fewer sequences, or --device cpu, or raise it with \
    `sudo sysctl iogpu.wired_limit_mb=MEGABYTES` where the Mac has memory left (it lasts until the next start)";
/// Bytes that `setBytes` takes at most.
const BYTES_MAX: usize = 4096;
/// Command buffers that are under way at a time, over all calls: one runs, the next waits, one is encoded.
pub const UNDER_WAY: usize = 3;
/// Runs without a new pipeline after which new ones are written to the archive: those of a conversation's first steps come
/// one after the other, and a program that is killed writes nothing at its end.
pub const RUNS_UNTIL_KEPT: u32 = 16;

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

fn no_memory(label: &str, bytes: u64) -> DeviceError {
    DeviceError::OutOfMemory { device: DEVICE, label: label.to_owned(), bytes }
}

/// A Mac's GPU, or what stands for it.
pub struct MetalDevice<A: Api> {
    api: A,
    libraries: Vec<A::Library>,
    /// Index of the library that has an entry point.
    library_of: HashMap<String, usize>,
    pipelines: Pipelines<Pipeline<A::Pipeline>>,
    /// Of what was compiled.
    key: Key,
    /// Where machine code is kept.
    archive: Option<Archive<A::Archive>>,
    buffers: Buffers<A::Buffer>,
    allocated: u64,
    pace: Pace,
    /// What was committed and not waited for yet, oldest first.
    under_way: VecDeque<UnderWay<A::CommandBuffer>>,
    /// Seconds that the GPU was at work on all that has ended.
    gpu_seconds: f64,
    /// The last that a command buffer failed with.
    fault: Option<Fault>,
    /// That failure, until a call has said so.
    unsaid: Option<DeviceError>,
    /// A self-test is due before anything else runs.
    is_suspect: bool,
}

struct Pipeline<P> {
    pipeline: P,
    threads: u64,
}

/// Machine code, and the files that it is kept in.
struct Archive<A> {
    archive: A,
    files: Archives,
    /// Whether it has what its file has not.
    has_new: bool,
    /// Runs since the last pipeline was added.
    quiet_runs: u32,
}

struct Buffer<B> {
    buffer: B,
    bytes: u64,
    /// Whether it is pages of a mapped file, which nothing writes.
    is_mapped: bool,
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

    /// The same, of a range that is written.
    fn written(&self, range: Range) -> Result<&Buffer<B>, String> {
        let buffer = self.of(range)?;
        if buffer.is_mapped {
            return Err("it is a mapped file, which nothing writes".to_owned());
        }
        Ok(buffer)
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
            key: Key::default(),
            archive: None,
            buffers: Buffers(vec![]),
            allocated: 0,
            pace: Pace::default(),
            under_way: VecDeque::new(),
            gpu_seconds: 0.0,
            fault: None,
            unsaid: None,
            is_suspect: false,
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
        self.key.source(kernel.name, &text, language);
        let library = self.api.library(kernel.name, &text, language).map_err(failed)?;
        for entry in self.api.entries(&library) {
            self.library_of.insert(entry, self.libraries.len());
        }
        self.libraries.push(library);
        Ok(())
    }

    /// Takes machine code of pipelines from a file in a folder, where it is there, and keeps what is compiled anew: when
    /// nothing new has come for a while, and when the device is dropped. It is a cache: what goes wrong is logged.
    ///
    /// # Errors
    /// If there can be no archive; the device works without.
    pub fn keep_archive(&mut self, folder: &Path) -> Result<(), String> {
        let files = Archives::new(folder, &self.key.on(self.api.capabilities()))?;
        let found = files.find();
        files.tend(found.as_deref());
        let opened = found.and_then(|path| {
            let opened = self.api.archive(Some(&path));
            if let Err(reason) = &opened {
                tracing::warn!("Metal does not take {}, it is made anew: {reason}", path.display());
                files.clear();
            }
            opened.ok()
        });
        let archive = opened.map_or_else(|| self.api.archive(None), Ok)?;
        self.archive = Some(Archive { archive, files, has_new: false, quiet_runs: 0 });
        Ok(())
    }

    /// Writes what is new in the archive.
    fn write_archive(&mut self) {
        let Self { api, archive: Some(kept), .. } = self else { return };
        if std::mem::take(&mut kept.has_new)
            && let Err(reason) = kept.files.replace(|path| api.serialize(&kept.archive, path))
        {
            tracing::warn!("cannot keep translated kernels: {reason}");
        }
    }

    /// Counts a run, and writes the archive once that is due.
    fn tend_archive(&mut self) {
        let Some(kept) = self.archive.as_mut().filter(|kept| kept.has_new) else { return };
        kept.quiet_runs += 1;
        if kept.quiet_runs > RUNS_UNTIL_KEPT {
            self.write_archive();
        }
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

    /// Seconds that the GPU was at work on all that was waited for, since the device was made.
    #[must_use]
    pub fn gpu_seconds(&self) -> f64 {
        self.gpu_seconds
    }

    /// Whether kernels with known results still give them. After a command buffer has failed, a plan runs only once this
    /// has passed; [`Device::run`] tries by itself.
    ///
    /// # Errors
    /// If the GPU was lost, fails again, or computes something else: it stays unusable then.
    pub fn self_test(&mut self) -> Result<(), SelfTestError> {
        self.require_not_lost("the self-test")?;
        self.finish()?;
        self.is_suspect = false;
        let result = self_test(self);
        self.is_suspect = result.is_err();
        if let Some(kept) = self.archive.take_if(|_| result.is_err()) {
            // It may be what is wrong.
            kept.files.clear();
        }
        // It was said by the result.
        self.unsaid = None;
        result
    }

    /// Bytes of all buffers, mapped files included: all of it counts towards the working set.
    #[must_use]
    pub fn allocated_bytes(&self) -> u64 {
        self.allocated
    }

    /// Bytes of a new buffer, `bytes` rounded up to 16, if it is within the limits.
    fn admit(&self, label: &str, bytes: u64) -> Result<u64, DeviceError> {
        // Metal makes no buffer of no bytes.
        let rounded = bytes.max(1).checked_next_multiple_of(16);
        let rounded = rounded.ok_or_else(|| no_memory(label, bytes))?;
        let Capabilities { buffer_bytes, working_set_bytes, .. } = *self.api.capabilities();
        let all = self.allocated.checked_add(rounded).ok_or_else(|| no_memory(label, bytes))?;
        let over = |limit, most, advice| {
            let (device, label, allocated) = (DEVICE, label.to_owned(), self.allocated);
            let over = OverLimit { device, label, bytes, allocated, limit, most, advice };
            DeviceError::OverLimit(Box::new(over))
        };
        if rounded > buffer_bytes {
            return Err(over("maxBufferLength, for one buffer,", buffer_bytes, BUFFER_ADVICE));
        }
        if all > working_set_bytes {
            let limit = "recommendedMaxWorkingSetSize, for all buffers,";
            return Err(over(limit, working_set_bytes, WORKING_SET_ADVICE));
        }
        Ok(rounded)
    }

    /// Counts a new buffer and gives it an id.
    fn keep(&mut self, buffer: Buffer<A::Buffer>) -> BufferId {
        self.allocated += buffer.bytes;
        self.buffers.0.push(Some(buffer));
        BufferId(self.buffers.0.len() as u32 - 1)
    }

    /// Takes a pipeline from the archive, or makes it and adds it there.
    fn pipeline(&mut self, entry: &str, function: &A::Function) -> Result<A::Pipeline, String> {
        let Self { api, archive, .. } = self;
        let Some(kept) = archive else { return api.pipeline(function) };
        if let Some(archived) = api.archived_pipeline(&kept.archive, function) {
            return Ok(archived);
        }
        let made = api.pipeline(function)?;
        match api.add_to_archive(&kept.archive, function) {
            Ok(()) => (kept.has_new, kept.quiet_runs) = (true, 0),
            Err(reason) => tracing::warn!("{entry} is not kept: {reason}"),
        }
        Ok(made)
    }

    /// Makes the pipeline of a dispatch, unless it is there.
    fn prepare(&mut self, dispatch: &Dispatch) -> Result<(), String> {
        if self.pipelines.get(dispatch).is_some() {
            return Ok(());
        }
        let library = self.library_of.get(dispatch.entry).ok_or("no kernel has this name")?;
        let library = &self.libraries[*library];
        let function = self.api.function(library, dispatch.entry, &dispatch.constants)?;
        let pipeline = self.pipeline(dispatch.entry, &function)?;
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
            let range = if binding.access.writes() {
                self.buffers.written(binding.range)
            } else {
                self.buffers.of(binding.range)
            };
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

    /// Waits for the oldest command buffer, and reads how it ended.
    fn wait_oldest(&mut self) {
        let Some(oldest) = self.under_way.pop_front() else { return };
        match self.api.wait(oldest.commands) {
            Ok(ended) => {
                self.pace.measured(oldest.work, ended.gpu_seconds);
                self.gpu_seconds += ended.gpu_seconds;
            }
            Err(fault) if self.unsaid.is_none() => {
                let label = format!("a command buffer from {} on", oldest.label);
                self.unsaid = Some(DeviceError::failed(label, fault.to_string()));
                self.fault = Some(fault);
                self.is_suspect = true;
            }
            // What followed a failure fails too, or computes with what that left.
            Err(_) => {}
        }
    }

    /// Waits for all that is under way: the first failure that no call has said yet.
    fn finish(&mut self) -> Result<(), DeviceError> {
        while !self.under_way.is_empty() {
            self.wait_oldest();
        }
        self.unsaid.take().map_or(Ok(()), Err)
    }

    fn require_not_lost(&self, what: &str) -> Result<(), DeviceError> {
        match &self.fault {
            Some(fault) if fault.is_final() && self.unsaid.is_none() => {
                Err(DeviceError::failed(what, format!("the GPU was lost before: {fault}")))
            }
            _ => Ok(()),
        }
    }

    /// Tests a GPU that has failed, before it computes anything else.
    fn require_trusted(&mut self) -> Result<(), DeviceError> {
        self.require_not_lost("a plan")?;
        if let Some(unsaid) = self.unsaid.take() {
            return Err(unsaid);
        }
        if !self.is_suspect {
            return Ok(());
        }
        self.self_test().map_err(|error| {
            let before = self.fault.as_ref().map_or_else(String::new, ToString::to_string);
            let reason = format!("{error}; before, {before}. Use --device cpu, or start again");
            DeviceError::failed("a GPU that has failed", reason)
        })
    }
}

/// Metal's objects may go while a command buffer uses them, as it retains them; but how each ended is read.
impl<A: Api> Drop for MetalDevice<A> {
    fn drop(&mut self) {
        while !self.under_way.is_empty() {
            self.wait_oldest();
        }
        self.write_archive();
    }
}

impl<A: Api> Device for MetalDevice<A> {
    fn allocate(&mut self, label: &str, bytes: u64) -> Result<BufferId, DeviceError> {
        let rounded = self.admit(label, bytes)?;
        let buffer = self.api.buffer(label, rounded).ok_or_else(|| no_memory(label, bytes))?;
        Ok(self.keep(Buffer { buffer, bytes: rounded, is_mapped: false }))
    }

    fn adoptable_bytes(&self) -> u64 {
        self.api.capabilities().buffer_bytes
    }

    fn adopt(&mut self, label: &str, pages: MappedPages) -> Result<Option<BufferId>, DeviceError> {
        let bytes = self.admit(label, pages.len())?;
        let Some(buffer) = self.api.buffer_no_copy(label, pages) else {
            tracing::warn!(
                "Metal does not take {bytes} bytes of {label} where they are mapped: they are copied"
            );
            return Ok(None);
        };
        Ok(Some(self.keep(Buffer { buffer, bytes, is_mapped: true })))
    }

    fn release(&mut self, buffer: BufferId) -> Result<(), DeviceError> {
        let taken = self.buffers.0.get_mut(buffer.0 as usize).and_then(Option::take);
        let Some(taken) = taken else {
            let reason = format!("there is no buffer {}", buffer.0);
            return Err(DeviceError::failed("a release", reason));
        };
        // Nothing may use it any more.
        let result = self.finish();
        self.api.release(taken.buffer);
        self.allocated -= taken.bytes;
        result
    }

    fn write(&mut self, range: Range, bytes: &[u8]) -> Result<(), DeviceError> {
        self.finish()?;
        if let Some(buffer) = self.buffers.copied("a write", range, bytes.len())? {
            let written = self.buffers.written(range);
            written.map_err(|reason| DeviceError::failed("a write", reason))?;
            self.api.write(&buffer.buffer, range.start, bytes);
        }
        Ok(())
    }

    fn read(&mut self, range: Range, bytes: &mut [u8]) -> Result<(), DeviceError> {
        self.finish()?;
        if let Some(buffer) = self.buffers.copied("a read", range, bytes.len())? {
            self.api.read(&buffer.buffer, range.start, bytes);
        }
        Ok(())
    }

    fn run(&mut self, dispatches: &[Dispatch], stages: &[usize]) -> Result<(), DeviceError> {
        self.require_trusted()?;
        check::stages(dispatches, stages).map(drop)?;
        // All of it before anything runs: then only the GPU can fail half way.
        for dispatch in dispatches {
            let checked = self.prepare(dispatch).and_then(|()| self.check(dispatch));
            checked
                .map_err(|reason| DeviceError::Kernel { entry: dispatch.label.clone(), reason })?;
        }
        self.tend_archive();
        let (mut dispatches, mut stages) = (dispatches, stages);
        while !stages.is_empty() {
            while self.under_way.len() >= UNDER_WAY {
                self.wait_oldest();
            }
            // Nothing is added to a failure.
            if self.unsaid.is_some() {
                return self.finish();
            }
            let taken = self.pace.stages(dispatches, stages);
            let count = stages[..taken].iter().sum();
            let committed = self.commit(&dispatches[..count], &stages[..taken])?;
            self.under_way.push_back(committed);
            (dispatches, stages) = (&dispatches[count..], &stages[taken..]);
        }
        Ok(())
    }
}
