//! The CUDA device.

use crate::compiler::{Architecture, Version};
use crate::devices::{driver_version, require_driver, start_error};
use crate::error::{CudaError, Kind, describe, driver_error};
use crate::graph::Graph;
use crate::library::{Library, Source};
use crate::machine_code::{Gpu, MachineCode};
use crate::memory::Buffer;
use crate::module::{Call, Module};
use crate::options::{Options, Replay};
use crate::order::random_order;
use crate::profile::{Profile, Stopwatch};
use crate::staging::Staging;
use calla_gpu::copy::clear;
use calla_gpu::{
    BoundPlan, BufferId, Device, DeviceError, Dispatch, Pipelines, Place, PlanId, Range, check,
};
use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys::{self, CUdeviceptr};
use cudarc::driver::{CudaContext, CudaStream};
use std::cell::OnceCell;
use std::collections::HashMap;
use std::sync::Arc;

/// Most threadgroups in each dimension.
const MAX_GRID: [u32; 3] = [0x7fff_ffff, 0xffff, 0xffff];
/// Most threads of a threadgroup, whatever registers it needs: kernels are compiled for no more.
const MAX_THREADS: u32 = 256;
/// Rows of a slice: 64 to an expert of the full network on average, a tile.
const SLICE_ROWS: usize = 2048;
/// From which GPU and which driver's CUDA on a kernel may start before the one that it depends on has ended.
const EARLY_START: Architecture = Architecture { major: 9, minor: 0 };
const EARLY_START_DRIVER: Version = Version { major: 12, minor: 3 };
/// Bytes of pinned memory. Tables of a step take a few thousand, logits of a row a million.
const STAGING: usize = 8 << 20;
/// Copies to the GPU of more bytes than this are not staged: the driver does as well.
const STAGED_MAX: usize = 1 << 18;

/// Runs kernels on an NVIDIA GPU.
#[derive(Debug)]
pub struct CudaDevice {
    options: Options,
    architecture: Architecture,
    machine_code: MachineCode,
    library: Library,
    /// Of plans, by their ids. All are dropped before a buffer is: they have its address.
    graphs: HashMap<PlanId, Graph>,
    pipelines: Pipelines<Module>,
    staging: Staging,
    profile: Profile,
    /// Whether kernels of graphs start before those that they depend on have ended.
    starts_early: bool,
    /// What the GPU failed with, once nothing can be done with it any more.
    lost: OnceCell<String>,
    /// By their ids; those that were released are `None`.
    buffers: Vec<Option<Buffer>>,
    // Last: what is above uses them to the end.
    stream: Arc<CudaStream>,
    context: Arc<CudaContext>,
}

impl CudaDevice {
    /// The GPU that `options` name, with the kernels of `calla-gpu`.
    ///
    /// # Errors
    /// If there is no such GPU or no driver, or there is neither machine code for the GPU nor a compiler
    /// ([`CudaError::is_missing`]), or the driver fails.
    pub fn new(options: &Options) -> Result<Self, CudaError> {
        let (context, architecture) = open(options)?;
        let twins = if options.no_twins { None } else { Some(twin_memory(&context)?) };
        let library = Library::new(twins)?;
        let driver = driver_version()?;
        let machine_code = MachineCode::find(options.cache(), Gpu { architecture, driver });
        // One that every model needs: it tells whether NVRTC is needed before anything is loaded.
        let any = Range { place: Place::Scratch(0), start: 0, len: 16 };
        let first = library.source(&clear(any)).map_err(Kind::Bug)?;
        machine_code.check(&first)?;
        let stream = context.new_stream().map_err(driver_error("make a stream"))?;
        let starts_early =
            !options.no_early_start && architecture >= EARLY_START && driver >= EARLY_START_DRIVER;
        let staging = Staging::new(&context, STAGING).map_err(driver_error("pin memory"))?;
        Ok(Self {
            options: options.clone(),
            architecture,
            machine_code,
            library,
            graphs: HashMap::new(),
            pipelines: Pipelines::default(),
            staging,
            profile: Profile::default(),
            starts_early,
            lost: OnceCell::new(),
            buffers: vec![],
            stream,
            context,
        })
    }

    /// Bytes of memory that nobody uses on the GPU that `options` name.
    ///
    /// # Errors
    /// If there is no such GPU or no driver, or it does not tell. A compiler is not asked for.
    pub fn free_memory(options: &Options) -> Result<u64, CudaError> {
        let (context, _) = open(options)?;
        free(&context)
    }

    /// Bytes of its memory that nobody uses.
    ///
    /// # Errors
    /// If the driver does not tell.
    pub fn free(&self) -> Result<u64, CudaError> {
        free(&self.context)
    }

    /// What the GPU is called.
    ///
    /// # Errors
    /// If the driver does not tell.
    pub fn name(&self) -> Result<String, CudaError> {
        Ok(self.context.name().map_err(driver_error("name the device"))?)
    }

    /// Sets [`Options::replay`] and [`Options::profile`], for comparisons.
    pub fn set_replay(&mut self, replay: Replay, profile: bool) {
        self.graphs.clear();
        (self.options.replay, self.options.profile) = (replay, profile);
    }

    /// What took the time of plans that were replayed, where [`Options::profile`] is set, and from now on again.
    pub fn take_profile(&mut self) -> Profile {
        std::mem::take(&mut self.profile)
    }

    /// Makes the context this thread's, as everything that follows needs it.
    fn bind(&self, label: &str) -> Result<(), DeviceError> {
        if let Some(first) = self.lost.get() {
            let reason = format!("the GPU was lost before ({first}): start the program again");
            return Err(DeviceError::failed(label, reason));
        }
        self.context.bind_to_thread().map_err(self.failed(label))
    }

    /// Says what failed. An error that stays, as after an invalid access, makes the device unusable.
    fn failed(&self, label: &str) -> impl FnOnce(DriverError) -> DeviceError {
        move |error| {
            let mut reason = describe(&error);
            // The driver answers every call with it from then on.
            if self.stream.synchronize().is_err() {
                if !self.options.wait {
                    reason += ", here or in what was started before";
                }
                let _ = self.lost.set(format!("{label}: {reason}"));
            }
            DeviceError::failed(label, reason)
        }
    }

    /// Waits for what runs.
    fn wait(&mut self, label: &str) -> Result<(), DeviceError> {
        self.stream.synchronize().map_err(self.failed(label))?;
        self.staging.clear();
        Ok(())
    }

    /// Room for a copy of `len` bytes that no copy under way uses, until the next [`Self::wait`].
    fn stage(&mut self, label: &str, len: usize) -> Result<*mut u8, DeviceError> {
        if let Some(place) = self.staging.take(len) {
            return Ok(place);
        }
        self.wait(label)?;
        let place = self.staging.take(len);
        place.ok_or_else(|| DeviceError::failed(label, "it is larger than staging"))
    }

    fn buffer(&self, id: BufferId) -> Result<&Buffer, String> {
        let slot = self.buffers.get(id.0 as usize);
        let slot = slot.ok_or_else(|| format!("there is no buffer {}", id.0))?;
        slot.as_ref().ok_or_else(|| format!("buffer {} was released", id.0))
    }

    fn len(&self, id: BufferId) -> Result<u64, String> {
        self.buffer(id).map(|buffer| buffer.len)
    }

    fn address(&self, range: Range) -> Result<CUdeviceptr, String> {
        let id = check::range(range, &|id| self.len(id))?;
        Ok(self.buffer(id)?.address + range.start)
    }

    /// Loads all pipelines that `dispatches` need and that are not there yet.
    fn load(&mut self, dispatches: &[Dispatch]) -> Result<(), DeviceError> {
        let mut wanted: Vec<usize> = vec![];
        for (index, dispatch) in dispatches.iter().enumerate() {
            let same = |&other: &usize| {
                let other: &Dispatch = &dispatches[other];
                other.entry == dispatch.entry && other.constants == dispatch.constants
            };
            if self.pipelines.get(dispatch).is_none() && !wanted.iter().any(same) {
                wanted.push(index);
            }
        }
        if wanted.is_empty() {
            return Ok(());
        }
        let kernel_error = |(index, reason): (usize, String)| DeviceError::Kernel {
            entry: dispatches[index].entry.to_owned(),
            reason,
        };
        let source = |&index: &usize| {
            self.library.source(&dispatches[index]).map_err(|reason| kernel_error((index, reason)))
        };
        let sources: Vec<Source> = wanted.iter().map(source).collect::<Result<_, _>>()?;
        let codes = self.machine_code.get(&sources);
        let codes = codes.map_err(|(at, reason)| kernel_error((wanted[at], reason)))?;
        for ((&index, source), code) in wanted.iter().zip(&sources).zip(&codes) {
            let dispatch = &dispatches[index];
            let Some((_, entry)) = self.library.entry(dispatch.entry) else { continue };
            let module = Module::load(&self.context, entry, dispatch, code, source.twin)
                .map_err(self.failed(&format!("loading {}", dispatch.entry)))?;
            self.pipelines.insert(dispatch, module);
        }
        tracing::info!("machine code of kernels: {}", self.machine_code.origins());
        Ok(())
    }

    /// A checked dispatch.
    fn call<'a>(&'a self, dispatch: &'a Dispatch) -> Result<Call<'a>, DeviceError> {
        let kernel_error = |reason| DeviceError::Kernel { entry: dispatch.label.clone(), reason };
        let found = self.library.entry(dispatch.entry).zip(self.pipelines.get(dispatch));
        let Some(((file, _), module)) = found else {
            return Err(kernel_error("it was not loaded".to_owned()));
        };
        let kernel = check::Kernel {
            file: file.name,
            constants: &file.translation.constants,
            buffers: &module.buffers,
            max_threads: module.max_threads.min(MAX_THREADS),
            max_grid: MAX_GRID,
        };
        check::dispatch(dispatch, &kernel, &|id| self.len(id)).map_err(kernel_error)?;
        let buffers = dispatch.bindings.iter().map(|binding| self.address(binding.range));
        let buffers: Vec<CUdeviceptr> = buffers.collect::<Result<_, _>>().map_err(kernel_error)?;
        Ok(Call { module, launch: module.launch_of(dispatch), buffers, params: &dispatch.params })
    }

    fn start(&self, dispatch: &Dispatch) -> Result<(), DeviceError> {
        let call = self.call(dispatch)?;
        // SAFETY: `call` has found as many buffers and bytes as the kernel takes, and each range inside its buffer, which
        // lives as long as the device. That kernels stay inside the ranges is what their tests are for.
        let started = unsafe { call.start(self.stream.cu_stream()) };
        started.map_err(self.failed(&dispatch.label))?;
        if self.options.wait {
            self.stream.synchronize().map_err(self.failed(&dispatch.label))?;
        }
        Ok(())
    }

    /// A plan as a graph.
    fn graph(&mut self, plan: &BoundPlan) -> Result<Graph, DeviceError> {
        let dispatches = plan.dispatches();
        self.load(dispatches)?;
        for stage in check::stages(dispatches, plan.stages())? {
            if cfg!(debug_assertions) {
                check::stage(stage)?;
            }
        }
        let calls: Vec<Call<'_>> =
            dispatches.iter().map(|dispatch| self.call(dispatch)).collect::<Result<_, _>>()?;
        let (calls, edges) = match self.options.replay {
            Replay::Shuffled(seed) => {
                let order = random_order(calls.len(), plan.edges(), seed);
                let calls = order.iter().map(|&index| calls[index as usize].clone()).collect();
                (calls, (1..order.len() as u32).map(|to| [to - 1, to]).collect())
            }
            _ => (calls, plan.edges().to_vec()),
        };
        // SAFETY: as for `start`; `release` drops graphs before buffers. All kernels wait first: translated ones as they are
        // made, twins by a test.
        let graph = unsafe { Graph::new(&self.context, &calls, &edges, self.starts_early) };
        graph.map_err(self.failed("a graph"))
    }

    /// Runs a plan dispatch by dispatch and takes the times.
    fn run_timed(&mut self, plan: &BoundPlan) -> Result<(), DeviceError> {
        self.load(plan.dispatches())?;
        let stream = self.stream.cu_stream();
        let mut watch = Stopwatch::start(stream).map_err(self.failed("an event"))?;
        for dispatch in plan.dispatches() {
            self.start(dispatch)?;
            watch.lap(stream).map_err(self.failed("an event"))?;
        }
        self.wait("a plan")?;
        let laps = watch.laps().map_err(self.failed("an event"))?;
        self.profile.add(plan.dispatches(), &laps);
        Ok(())
    }

    /// Address of a range for a copy of `len` bytes.
    fn copied(&self, label: &str, range: Range, len: usize) -> Result<CUdeviceptr, DeviceError> {
        let address = check::copied(range, len).and_then(|()| self.address(range));
        address.map_err(|reason| DeviceError::failed(label, reason))
    }
}

/// The driver's context of the GPU that `options` name, which is new enough.
fn open(options: &Options) -> Result<(Arc<CudaContext>, Architecture), CudaError> {
    require_driver()?;
    let ordinal = options.ordinal;
    let count = CudaContext::device_count().map_err(start_error(ordinal))?;
    if i64::from(ordinal) >= i64::from(count) {
        return Err(Kind::NoDevice { ordinal, count }.into());
    }
    let context = CudaContext::new(ordinal as usize).map_err(driver_error("use the device"))?;
    let (major, minor) =
        context.compute_capability().map_err(driver_error("tell what the device can"))?;
    let architecture = Architecture { major: major as u32, minor: minor as u32 };
    if architecture < Architecture::OLDEST {
        let name = context.name().map_err(driver_error("name the device"))?;
        return Err(Kind::OldDevice { name, architecture }.into());
    }
    Ok((context, architecture))
}

/// Bytes that nobody uses.
fn free(context: &CudaContext) -> Result<u64, CudaError> {
    let (free, _) =
        context.mem_get_info().map_err(driver_error("tell how much memory there is"))?;
    Ok(free as u64)
}

/// Bytes of shared memory that a block may have where it asks for more than usual.
fn twin_memory(context: &CudaContext) -> Result<u32, CudaError> {
    let most = sys::CUdevice_attribute_enum::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN;
    let bytes = context.attribute(most).map_err(driver_error("tell what a block may have"))?;
    Ok(u32::try_from(bytes).unwrap_or(0))
}

impl Device for CudaDevice {
    fn allocate(&mut self, label: &str, bytes: u64) -> Result<BufferId, DeviceError> {
        self.bind(label)?;
        let out_of_memory =
            || DeviceError::OutOfMemory { device: "CUDA", label: label.to_owned(), bytes };
        // CUDA has no buffers of no bytes.
        let len = bytes.max(1).checked_next_multiple_of(16).ok_or_else(out_of_memory)?;
        let buffer = Buffer::new(&self.context, len).map_err(|error| match error.0 {
            sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY => out_of_memory(),
            _ => self.failed(label)(error),
        })?;
        if self.options.poison {
            let (len, stream) = (len as usize, self.stream.cu_stream());
            // SAFETY: the buffer has so many bytes, and nothing else uses it yet.
            let filled = unsafe { result::memset_d8_async(buffer.address, 0xff, len, stream) };
            filled.map_err(self.failed(label))?;
        }
        let id = u32::try_from(self.buffers.len()).map_err(|_| out_of_memory())?;
        self.buffers.push(Some(buffer));
        Ok(BufferId(id))
    }

    fn release(&mut self, buffer: BufferId) -> Result<(), DeviceError> {
        let label = "a release";
        self.bind(label)?;
        self.wait(label)?;
        self.buffer(buffer).map_err(|reason| DeviceError::failed(label, reason))?;
        // Those of plans that are run once more are made again, and checked again.
        self.graphs.clear();
        self.buffers[buffer.0 as usize] = None;
        Ok(())
    }

    fn write(&mut self, range: Range, bytes: &[u8]) -> Result<(), DeviceError> {
        let label = "a write";
        let address = self.copied(label, range, bytes.len())?;
        self.bind(label)?;
        let stream = self.stream.cu_stream();
        if bytes.len() > STAGED_MAX {
            // SAFETY: the range lies in its buffer, and `bytes` stay until the stream is through.
            let copied = unsafe { result::memcpy_htod_async(address, bytes, stream) };
            copied.map_err(self.failed(label))?;
            return self.wait(label);
        }
        let place = self.stage(label, bytes.len())?;
        // SAFETY: `place` has room for `bytes`, and no copy that is under way uses it. The range lies in its buffer. What was
        // staged stays until a wait says that the stream is through.
        let copied = unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), place, bytes.len());
            let staged = std::slice::from_raw_parts(place, bytes.len());
            result::memcpy_htod_async(address, staged, stream)
        };
        copied.map_err(self.failed(label))
    }

    fn read(&mut self, range: Range, bytes: &mut [u8]) -> Result<(), DeviceError> {
        let label = "a read";
        let address = self.copied(label, range, bytes.len())?;
        self.bind(label)?;
        let mut done = 0;
        for part in bytes.chunks_mut(self.staging.len()) {
            let place = self.stage(label, part.len())?;
            // SAFETY: `place` has room for as many bytes, and no other copy that is under way uses it. The range lies in its
            // buffer.
            let copied = unsafe {
                let staged = std::slice::from_raw_parts_mut(place, part.len());
                result::memcpy_dtoh_async(staged, address + done, self.stream.cu_stream())
            };
            copied.map_err(self.failed(label))?;
            self.wait(label)?;
            // SAFETY: the copy has ended, and nothing else has been staged since.
            unsafe { std::ptr::copy_nonoverlapping(place, part.as_mut_ptr(), part.len()) };
            done += part.len() as u64;
        }
        Ok(())
    }

    fn run(&mut self, dispatches: &[Dispatch], stages: &[usize]) -> Result<(), DeviceError> {
        let stages = check::stages(dispatches, stages)?;
        self.bind("a plan")?;
        self.load(dispatches)?;
        for stage in stages {
            if cfg!(debug_assertions) {
                check::stage(stage)?;
            }
            // One after the other, as the stream has it: correct whatever a stage holds.
            for dispatch in stage {
                self.start(dispatch)?;
            }
        }
        Ok(())
    }

    fn slice_rows(&self) -> usize {
        SLICE_ROWS
    }

    fn rounding(&self) -> String {
        let kernels = if self.options.no_twins { "Metal" } else { "own" };
        format!("{}, {kernels} kernels", self.architecture)
    }

    fn replay(&mut self, plan: &BoundPlan) -> Result<(), DeviceError> {
        if self.options.profile {
            self.bind("a plan")?;
            return self.run_timed(plan);
        }
        if self.options.wait || self.options.replay == Replay::Launches {
            return self.run(plan.dispatches(), plan.stages());
        }
        self.bind("a plan")?;
        if !self.graphs.contains_key(&plan.id()) {
            let graph = self.graph(plan)?;
            self.graphs.insert(plan.id(), graph);
        }
        let graph = &self.graphs[&plan.id()];
        // SAFETY: `graph` has checked all calls, and no buffer was released since.
        let started = unsafe { graph.launch(self.stream.cu_stream()) };
        started.map_err(self.failed("a plan"))
    }

    fn machine_code(&self) -> Option<String> {
        Some(self.machine_code.origins())
    }

    fn forget(&mut self, plan: PlanId) {
        self.graphs.remove(&plan);
    }
}

impl Drop for CudaDevice {
    fn drop(&mut self) {
        if self.context.bind_to_thread().is_ok() {
            // Where the GPU was lost this fails, and nothing runs any more.
            let _ = self.stream.synchronize();
        }
    }
}
