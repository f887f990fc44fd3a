//! Metal's rules as a model: it computes nothing, and notes every call that Metal forbids or that a dispatch does not
//! declare.
//!
//! Where Metal is lenient (slots stay bound from one dispatch to the next, buffers may be released early), it is not: the
//! driver promises more. With a [`Plant`] it distorts the driver's calls as a faulty driver would make them.

mod dispatch;
mod mapped;

use super::declared::{self, Declared};
use calla_gpu::{Binding, Dispatch, MappedPages};
use calla_gpu_metal::api::PipelineLimits;
use calla_gpu_metal::{Api, Capabilities, Ended, Fault, Language};
use mapped::{Handle, Mapped};
use std::collections::{BTreeSet, HashMap};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Offsets of buffers: kernels load four floats at a time.
const ALIGNMENT: u64 = 16;
/// Threads of a threadgroup that every pipeline has on every Mac.
const THREADS: u32 = 256;

/// What a faulty driver would do; `usize` is the call, from 0, that it is done in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plant {
    NoBarrier(usize),
    SlotsSwapped(usize),
    SlotOffByOne(usize),
    SlotUnset(usize),
    OffsetLost,
    OffsetShifted(usize),
    ShortBuffer(usize),
    ParamsUnset(usize),
    ParamsShort(usize),
    ParamsAtWrongSlot(usize),
    ParamsOfOther(usize),
    StalePipeline(usize),
    ConstantLost,
    ConstantWrong,
    TooManyThreads(usize),
    PartialSimdgroup(usize),
    GridTooLarge(usize),
    DispatchLost(usize),
    DispatchTwice(usize),
    EndLost,
    EndEarly(usize),
    CommitLost,
    CommitTwice,
    ErrorUnread,
    /// The n-th wait does not wait.
    WaitLost(usize),
    /// The n-th buffer is made without hazard tracking.
    Untracked(usize),
    ReleasedWhileRunning(usize),
    /// The n-th pages are taken from somewhere within a page.
    PagesMisaligned(usize),
    /// They end where the file does, not where a page does.
    PagesPartial(usize),
    /// They are one too many.
    PagesBeyondFile(usize),
    /// Only their address is kept, and the file is unmapped.
    PagesUnmapped(usize),
    /// The n-th write goes to a file.
    FileWritten(usize),
    /// What the n-th dispatch writes is bound to a file.
    FileBoundToWrite(usize),
}

#[derive(Default)]
struct Encoder {
    commands: usize,
    ended: bool,
    pipeline: Option<usize>,
    buffers: HashMap<u32, (usize, u64)>,
    bytes: HashMap<u32, Vec<u8>>,
    described: Option<Dispatch>,
    /// Of dispatches since the last barrier, with their labels.
    since_barrier: Vec<(Binding, String)>,
}

#[derive(Default)]
struct Commands {
    label: String,
    encoders: Vec<usize>,
    committed: bool,
    waited: bool,
    uses: BTreeSet<usize>,
    writes: BTreeSet<usize>,
}

#[derive(Default)]
struct Buffer {
    label: String,
    bytes: u64,
    released: bool,
    is_untracked: bool,
    /// The pages of a file that it is.
    mapped: Option<Mapped>,
    /// What was written, where a test wants to read it.
    written: Vec<u8>,
}

/// First line of an archive's file.
const ARCHIVE: &str = "a model of MTLBinaryArchive\n";

/// Lines of an archive, one for each entry point with its constants.
type Lines = BTreeSet<String>;

/// An entry point with its constants.
#[derive(Clone)]
pub struct Function {
    entry: String,
    constants: Vec<(u32, u32)>,
    declared: Declared,
}

impl Function {
    fn line(&self) -> String {
        format!("{} {:?}", self.entry, self.constants)
    }
}

/// All that happened.
#[derive(Default)]
pub struct World {
    libraries: Vec<HashMap<String, Declared>>,
    pipelines: Vec<Function>,
    buffers: Vec<Buffer>,
    commands: Vec<Commands>,
    encoders: Vec<Encoder>,
    violations: Vec<String>,
    /// Dispatches that were encoded.
    pub dispatches: usize,
    /// Entry points that were dispatched.
    pub entries: BTreeSet<String>,
    /// Command buffers, by number, that fail.
    pub faults: HashMap<usize, Fault>,
    /// Bytes of threadgroup memory of all kernels.
    pub threadgroup_bytes: u64,
    /// What the compiler says of each file that is named here.
    pub compiler_errors: HashMap<String, String>,
    /// What the processor finds in the buffer of each label that is named here; zeros in others.
    pub contents: HashMap<String, Vec<u8>>,
    /// Whether what is written can be read.
    pub is_written_kept: bool,
    /// Whether Metal takes no pages of files.
    pub refuses_pages: bool,
    /// Bytes of a page, where they are not the system's.
    pub page_bytes: Option<u64>,
    archives: Vec<Lines>,
    /// Entry points that were specialised.
    pub specialised: usize,
    /// Pipelines that were compiled; others were in an archive.
    pub compiled: usize,
    /// Why no archive can be written.
    pub archive_error: Option<String>,
    /// Most command buffers that were under way at a time.
    pub under_way_max: usize,
    /// A fault of the driver.
    pub plant: Option<Plant>,
    calls: HashMap<&'static str, usize>,
}

impl World {
    fn violation(&mut self, text: String) {
        // A driver that is wrong is wrong in each dispatch.
        if self.violations.len() < 100 && !self.violations.contains(&text) {
            self.violations.push(text);
        }
    }

    /// Whether the planted fault is in this call, one of those named `call`.
    fn is_planted(&mut self, call: &'static str, plant: impl Fn(usize) -> Plant) -> bool {
        let Some(planted) = self.plant else { return false };
        let count = self.calls.entry(call).or_default();
        let now = *count;
        *count += 1;
        planted == plant(now)
    }

    /// Command buffers that were made.
    pub fn command_buffers(&self) -> usize {
        self.commands.len()
    }

    /// Everything that was wrong, what was left undone included.
    pub fn violations(&mut self) -> Vec<String> {
        for encoder in 0..self.encoders.len() {
            if !self.encoders[encoder].ended {
                let label = self.commands[self.encoders[encoder].commands].label.clone();
                self.violation(format!("an encoder of {label} was never ended"));
            }
        }
        for commands in 0..self.commands.len() {
            let Commands { label, committed, waited, .. } = &self.commands[commands];
            let (label, committed, waited) = (label.clone(), *committed, *waited);
            if !committed {
                self.violation(format!("{label} was never committed"));
            } else if !waited {
                self.violation(format!("nobody read how {label} ended"));
            }
        }
        self.violations.clone()
    }

    fn set_buffer(&mut self, encoder: usize, index: u32, buffer: usize, offset: u64) {
        if index >= 31 {
            self.violation(format!("buffer index {index}; Metal has 31"));
        }
        let found = &self.buffers[buffer];
        let (label, bytes, is_gone) = (found.label.clone(), found.bytes, found.is_gone());
        let alignment = if found.mapped.is_some() { mapped::ALIGNMENT } else { ALIGNMENT };
        if is_gone {
            self.violation(format!("{label} was released"));
        }
        if offset >= bytes || !offset.is_multiple_of(alignment) {
            self.violation(format!("{label}: offset {offset} of {bytes} bytes"));
        }
        let commands = self.encoders[encoder].commands;
        self.commands[commands].uses.insert(buffer);
        self.encoders[encoder].buffers.insert(index, (buffer, offset));
    }

    /// Requires that Metal orders a command buffer behind those under way where they share a buffer that one writes: it
    /// does for buffers whose hazards it tracks, and nobody signals events for others.
    fn require_order(&mut self, commands: usize) {
        let this = &self.commands[commands];
        let writes = |c: &Commands, buffer| c.writes.contains(buffer);
        let earlier = self.commands.iter().enumerate();
        let unordered = earlier.filter(|(i, c)| *i != commands && c.committed && !c.waited);
        let found = unordered.flat_map(|(_, c)| {
            let shared = c.uses.intersection(&this.uses);
            let shared = shared.filter(|b| writes(c, b) || writes(this, b));
            shared.filter(|&&b| self.buffers[b].is_untracked).map(|b| (c.label.clone(), *b))
        });
        let found: Vec<(String, usize)> = found.collect();
        let label = self.commands[commands].label.clone();
        for (other, buffer) in found {
            let name = self.buffers[buffer].label.clone();
            self.violation(format!("nothing orders {label} behind {other}: {name} is untracked"));
        }
    }

    /// Whether the GPU may be using a buffer.
    fn require_idle(&mut self, what: &str, buffer: usize) {
        let uses = |c: &&Commands| c.committed && !c.waited && c.uses.contains(&buffer);
        if let Some(commands) = self.commands.iter().find(uses) {
            let label = commands.label.clone();
            self.violation(format!("{what} of a buffer that {label} uses"));
        }
    }

    fn touch(&mut self, what: &str, buffer: usize, offset: u64, len: usize) {
        self.require_idle(what, buffer);
        let Buffer { label, bytes, released, .. } = &self.buffers[buffer];
        let (label, bytes, released) = (label.clone(), *bytes, *released);
        if released || offset + len as u64 > bytes {
            self.violation(format!("{what} of {len} bytes at {offset} of {label}"));
        }
    }
}

/// A device of the model. Clones are the same device.
#[derive(Clone)]
pub struct Contract {
    world: Arc<Mutex<World>>,
    capabilities: Capabilities,
}

impl Contract {
    /// A Mac with an M2 Max and 96 GB.
    pub fn new() -> Self {
        let capabilities = Capabilities {
            name: "a model of Metal".to_owned(),
            macos: (14, 0),
            system: "Version 14.0 (Build 23A344)".to_owned(),
            apple_family: 8,
            metal_family: 3,
            unified_memory: true,
            buffer_bytes: 1 << 35,
            working_set_bytes: 72 << 30,
            threads: 1024,
            threadgroup_bytes: 32 << 10,
        };
        let world = World { threadgroup_bytes: 32 << 10, ..World::default() };
        Self { world: Arc::new(Mutex::new(world)), capabilities }
    }

    /// The same, changed.
    pub fn with(change: impl FnOnce(&mut Capabilities, &mut World)) -> Self {
        let mut new = Self::new();
        let world = Arc::clone(&new.world);
        change(&mut new.capabilities, &mut world.lock().unwrap());
        new
    }

    pub fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Api for Contract {
    type Library = usize;
    type Function = Function;
    type Pipeline = usize;
    type Buffer = Handle;
    type CommandBuffer = usize;
    type Encoder = usize;
    type Archive = usize;

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn library(
        &mut self,
        name: &str,
        source: &str,
        language: Language,
    ) -> Result<Self::Library, String> {
        let mut world = self.world();
        if let Some(error) = world.compiler_errors.get(name) {
            return Err(error.clone());
        }
        assert_eq!(language, Language::V3_1, "no reader takes version 4");
        world.libraries.push(declared::read(name, source)?);
        Ok(world.libraries.len() - 1)
    }

    fn entries(&self, library: &Self::Library) -> Vec<String> {
        self.world().libraries[*library].keys().cloned().collect()
    }

    fn function(
        &mut self,
        library: &Self::Library,
        entry: &str,
        constants: &[(u32, u32)],
    ) -> Result<Self::Function, String> {
        let mut world = self.world();
        world.specialised += 1;
        let declared = world.libraries[*library].get(entry).cloned();
        let declared = declared.ok_or_else(|| format!("{entry} is not in the library"))?;
        let mut constants = constants.to_vec();
        if world.plant == Some(Plant::ConstantLost) {
            constants.pop();
        }
        if let (Some(Plant::ConstantWrong), Some((_, value))) = (world.plant, constants.first_mut())
        {
            *value += 1;
        }
        Ok(Function { entry: entry.to_owned(), constants, declared })
    }

    fn pipeline(&mut self, function: &Self::Function) -> Result<Self::Pipeline, String> {
        let mut world = self.world();
        world.compiled += 1;
        world.pipelines.push(function.clone());
        Ok(world.pipelines.len() - 1)
    }

    fn archive(&mut self, file: Option<&Path>) -> Result<Self::Archive, String> {
        let mut lines = Lines::new();
        if let Some(file) = file {
            let text = std::fs::read_to_string(file).map_err(|error| error.to_string())?;
            let text = text.strip_prefix(ARCHIVE).ok_or("MTLBinaryArchiveErrorInvalidFile")?;
            lines.extend(text.lines().map(str::to_owned));
        }
        let mut world = self.world();
        world.archives.push(lines);
        Ok(world.archives.len() - 1)
    }

    fn archived_pipeline(
        &mut self,
        archive: &Self::Archive,
        function: &Self::Function,
    ) -> Option<Self::Pipeline> {
        let mut world = self.world();
        if !world.archives[*archive].contains(&function.line()) {
            return None;
        }
        world.pipelines.push(function.clone());
        Some(world.pipelines.len() - 1)
    }

    fn add_to_archive(
        &mut self,
        archive: &Self::Archive,
        function: &Self::Function,
    ) -> Result<(), String> {
        let mut world = self.world();
        let line = function.line();
        if !world.archives[*archive].insert(line.clone()) {
            world.violation(format!("{line} is added to an archive that has it"));
        }
        Ok(())
    }

    fn serialize(&mut self, archive: &Self::Archive, file: &Path) -> Result<(), String> {
        let world = self.world();
        let lines: Vec<&str> = world.archives[*archive].iter().map(String::as_str).collect();
        let text = ARCHIVE.to_owned() + &lines.join("\n");
        let written = std::fs::write(file, text).map_err(|error| error.to_string());
        written.and(world.archive_error.clone().map_or(Ok(()), Err))
    }

    fn limits(&self, pipeline: &Self::Pipeline) -> PipelineLimits {
        let world = self.world();
        let declared = &world.pipelines[*pipeline].declared;
        PipelineLimits {
            threads: declared.max_threads.unwrap_or(THREADS).into(),
            simdgroup_threads: 32,
            threadgroup_bytes: world.threadgroup_bytes,
        }
    }

    fn buffer(&mut self, label: &str, bytes: u64) -> Option<Self::Buffer> {
        let mut world = self.world();
        if bytes == 0 || bytes > self.capabilities.buffer_bytes {
            world.violation(format!("a buffer of {bytes} bytes for {label}"));
        }
        let is_short = world.is_planted("buffer", Plant::ShortBuffer);
        let bytes = if is_short { bytes / 32 * 16 } else { bytes };
        let is_untracked = world.is_planted("tracking", Plant::Untracked);
        let label = label.to_owned();
        world.buffers.push(Buffer { label, bytes, is_untracked, ..Buffer::default() });
        Some(Handle::of(world.buffers.len() - 1))
    }

    fn buffer_no_copy(&mut self, label: &str, pages: MappedPages) -> Option<Self::Buffer> {
        let most = self.capabilities.buffer_bytes;
        self.world().buffer_no_copy(label, pages, most)
    }

    fn release(&mut self, buffer: Self::Buffer) {
        let mut world = self.world();
        world.require_idle("a release", buffer.index);
        world.buffers[buffer.index].released = true;
    }

    fn write(&mut self, buffer: &Self::Buffer, offset: u64, bytes: &[u8]) {
        self.world().write(buffer.index, offset, bytes);
    }

    fn read(&mut self, buffer: &Self::Buffer, offset: u64, bytes: &mut [u8]) {
        self.world().read(buffer.index, offset, bytes);
    }

    fn command_buffer(&mut self, label: &str) -> Option<Self::CommandBuffer> {
        let mut world = self.world();
        world.commands.push(Commands { label: label.to_owned(), ..Commands::default() });
        Some(world.commands.len() - 1)
    }

    fn encoder(&mut self, commands: &Self::CommandBuffer, _: &str) -> Option<Self::Encoder> {
        let mut world = self.world();
        let encoder = world.encoders.len();
        if world.commands[*commands].committed {
            world.violation("an encoder for a command buffer that was committed".to_owned());
        }
        world.commands[*commands].encoders.push(encoder);
        world.encoders.push(Encoder { commands: *commands, ..Encoder::default() });
        Some(encoder)
    }

    fn describe(&mut self, encoder: &Self::Encoder, dispatch: &Dispatch) {
        let mut world = self.world();
        if let Some(lost) = world.encoders[*encoder].described.replace(dispatch.clone()) {
            world.violation(format!("{} was never dispatched", lost.label));
        }
    }

    fn set_pipeline(&mut self, encoder: &Self::Encoder, pipeline: &Self::Pipeline) {
        let mut world = self.world();
        if !world.is_planted("set_pipeline", Plant::StalePipeline) {
            world.encoders[*encoder].pipeline = Some(*pipeline);
        }
    }

    fn set_buffer(
        &mut self,
        encoder: &Self::Encoder,
        index: u32,
        buffer: &Self::Buffer,
        offset: u64,
    ) {
        let mut world = self.world();
        let now = world.calls.get("set_buffer").copied().unwrap_or_default();
        world.calls.insert("set_buffer", now + 1);
        let (mut index, mut offset) = (index, offset);
        match world.plant {
            Some(Plant::SlotUnset(at)) if at == now => return,
            Some(Plant::SlotOffByOne(at)) if at == now => index += 1,
            // The call and the next one, which in the tests that plant this belong to one dispatch.
            Some(Plant::SlotsSwapped(at)) if at == now || at + 1 == now => index ^= 1,
            Some(Plant::OffsetShifted(at)) if at == now => offset += 4,
            Some(Plant::OffsetLost) => offset = 0,
            _ => {}
        }
        world.set_buffer(*encoder, index, buffer.index, offset);
    }

    fn set_bytes(&mut self, encoder: &Self::Encoder, index: u32, bytes: &[u8]) {
        let mut world = self.world();
        let now = world.calls.get("set_bytes").copied().unwrap_or_default();
        world.calls.insert("set_bytes", now + 1);
        let (mut index, mut bytes) = (index, bytes.to_vec());
        match world.plant {
            Some(Plant::ParamsUnset(at)) if at == now => return,
            Some(Plant::ParamsShort(at)) if at == now => bytes.truncate(bytes.len() - 4),
            Some(Plant::ParamsAtWrongSlot(at)) if at == now => index += 1,
            Some(Plant::ParamsOfOther(at)) if at == now => bytes[0] ^= 1,
            _ => {}
        }
        if bytes.is_empty() || bytes.len() > 4096 {
            world.violation(format!("{} bytes at index {index}", bytes.len()));
        }
        world.encoders[*encoder].bytes.insert(index, bytes);
    }

    fn dispatch(&mut self, encoder: &Self::Encoder, groups: [u32; 3], threads: [u32; 3]) {
        let mut world = self.world();
        let now = world.calls.get("dispatch").copied().unwrap_or_default();
        world.calls.insert("dispatch", now + 1);
        let (mut groups, mut threads) = (groups, threads);
        match world.plant {
            Some(Plant::DispatchLost(at)) if at == now => return,
            Some(Plant::TooManyThreads(at)) if at == now => threads[0] *= 16,
            Some(Plant::PartialSimdgroup(at)) if at == now => threads[0] -= 1,
            Some(Plant::GridTooLarge(at)) if at == now => groups[0] += 1,
            Some(Plant::DispatchTwice(at)) if at == now => {
                world.dispatch(*encoder, groups, threads);
            }
            Some(Plant::EndEarly(at)) if at == now => world.encoders[*encoder].ended = true,
            Some(Plant::ReleasedWhileRunning(at)) if at == now => {
                let bound = world.encoders[*encoder].buffers.values().next().copied();
                let (buffer, _) = bound.expect("a buffer");
                world.buffers[buffer].released = true;
            }
            Some(Plant::FileBoundToWrite(at)) if at == now => world.bind_file_to_write(*encoder),
            _ => {}
        }
        world.dispatch(*encoder, groups, threads);
    }

    fn barrier(&mut self, encoder: &Self::Encoder) {
        let mut world = self.world();
        if !world.is_planted("barrier", Plant::NoBarrier) {
            world.encoders[*encoder].since_barrier.clear();
        }
    }

    fn end(&mut self, encoder: Self::Encoder) {
        let mut world = self.world();
        if world.plant == Some(Plant::EndLost) {
            return;
        }
        if let Some(lost) = world.encoders[encoder].described.take() {
            world.violation(format!("{} was never dispatched", lost.label));
        }
        world.encoders[encoder].ended = true;
    }

    fn commit(&mut self, commands: &Self::CommandBuffer) {
        let mut world = self.world();
        let times = match world.plant {
            Some(Plant::CommitLost) => 0,
            Some(Plant::CommitTwice) => 2,
            _ => 1,
        };
        for _ in 0..times {
            let Commands { label, encoders, committed, uses, .. } = &world.commands[*commands];
            let (label, encoders) = (label.clone(), encoders.clone());
            let (committed, uses) = (*committed, uses.clone());
            if committed {
                world.violation(format!("{label} is committed twice"));
            }
            if encoders.is_empty() || encoders.iter().any(|&at| !world.encoders[at].ended) {
                world.violation(format!("{label} is committed before its encoder has ended"));
            }
            for buffer in uses {
                if world.buffers[buffer].is_gone() {
                    let gone = world.buffers[buffer].label.clone();
                    world.violation(format!("{label} uses {gone}, which was released"));
                }
            }
            world.commands[*commands].committed = true;
            let under_way = world.commands.iter().filter(|c| c.committed && !c.waited).count();
            world.under_way_max = world.under_way_max.max(under_way);
            world.require_order(*commands);
        }
    }

    fn wait(&mut self, commands: Self::CommandBuffer) -> Result<Ended, Fault> {
        let mut world = self.world();
        let is_lost = world.is_planted("wait", Plant::WaitLost);
        if is_lost || world.plant == Some(Plant::ErrorUnread) {
            return Ok(Ended { gpu_seconds: 0.01 });
        }
        if !world.commands[commands].committed {
            let label = world.commands[commands].label.clone();
            world.violation(format!("{label} is waited for, but was never committed"));
        }
        world.commands[commands].waited = true;
        world.require_mapped(commands);
        match world.faults.get(&commands) {
            Some(fault) => Err(fault.clone()),
            None => Ok(Ended { gpu_seconds: 0.01 }),
        }
    }
}
