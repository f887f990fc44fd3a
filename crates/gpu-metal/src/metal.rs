//! [`Api`] over Metal itself.
//!
//! Written from Apple's headers and documentation; it type-checks on any machine (`cargo xtask check-darwin`).

use crate::api::{Api, Ended, Language, PipelineLimits};
use crate::capabilities::Capabilities;
use crate::driver::{Kernels, MetalDevice, OpenError};
use crate::fault::Fault;
use crate::options::{Description, Opened, Options, Unused};
use block2::RcBlock;
use calla_gpu::metal4::{SelfTestError, self_test};
use calla_gpu::{Dispatch, MappedPages};
use objc2::rc::{Retained, autoreleasepool};
use objc2::runtime::ProtocolObject;
use objc2_foundation::{
    NSArray, NSError, NSOperatingSystemVersion, NSProcessInfo, NSString, NSURL,
};
use objc2_metal::{
    MTLAllocation, MTLBarrierScope, MTLBinaryArchive, MTLBinaryArchiveDescriptor, MTLBuffer,
    MTLCaptureDescriptor, MTLCaptureDestination, MTLCaptureManager, MTLCommandBuffer,
    MTLCommandBufferErrorDomain, MTLCommandBufferStatus, MTLCommandEncoder, MTLCommandQueue,
    MTLCompileOptions, MTLComputeCommandEncoder, MTLComputePipelineDescriptor,
    MTLComputePipelineState, MTLCreateSystemDefaultDevice, MTLDataType, MTLDevice, MTLDispatchType,
    MTLFunction, MTLFunctionConstantValues, MTLGPUFamily, MTLLanguageVersion, MTLLibrary,
    MTLMathFloatingPointFunctions, MTLMathMode, MTLPipelineOption, MTLResidencySet,
    MTLResidencySetDescriptor, MTLResource, MTLResourceOptions, MTLSize,
};
use std::ffi::c_void;
use std::path::Path;
use std::ptr::NonNull;

// Without it a command-line program is given no default device.
#[link(name = "CoreGraphics", kind = "framework")]
unsafe extern "C" {}

type Object<P> = Retained<ProtocolObject<P>>;

/// How all buffers are made.
const BUFFER_OPTIONS: MTLResourceOptions =
    MTLResourceOptions::StorageModeShared.union(MTLResourceOptions::HazardTrackingModeTracked);

/// A device and its one queue.
pub struct Metal {
    device: Object<dyn MTLDevice>,
    queue: Object<dyn MTLCommandQueue>,
    /// All buffers, on systems that have such sets: they stay resident between command buffers.
    residency: Option<Object<dyn MTLResidencySet>>,
    capabilities: Capabilities,
    /// Ends when it is dropped.
    recording: Option<Recording>,
}

/// A trace that is being recorded. The driver has waited for all work by the time that this is dropped.
struct Recording;

impl Drop for Recording {
    fn drop(&mut self) {
        autoreleasepool(|_| {
            // SAFETY: the process has one manager, which any thread may ask for.
            unsafe { MTLCaptureManager::sharedCaptureManager() }.stopCapture();
        });
    }
}

// SAFETY: devices and queues may be used by any thread (`MTLDevice` and `MTLCommandQueue` are `Send`). A residency set may
// be moved to another thread: Apple forbids only that two threads change it at a time, and `&mut self` is needed to.
unsafe impl Send for Metal {}

/// `MTLComputePipelineState`
pub struct Pipeline(Object<dyn MTLComputePipelineState>);

// SAFETY: a pipeline never changes once it is made, and Apple lets any thread use it.
unsafe impl Send for Pipeline {}

/// `MTLBinaryArchive`
pub struct Archive(Object<dyn MTLBinaryArchive>);

// SAFETY: it is only used through `&mut Metal`, by one thread at a time, and retained and released atomically.
unsafe impl Send for Archive {}

/// `MTLBuffer`
pub struct Buffer {
    buffer: Object<dyn MTLBuffer>,
    /// Whether it is pages of a file, which are mapped to be read alone.
    is_mapped: bool,
}

// SAFETY: Metal's resources are retained and released atomically; their contents are only touched through `&mut Metal`.
unsafe impl Send for Buffer {}

/// `MTLCommandBuffer`
pub struct CommandBuffer(Object<dyn MTLCommandBuffer>);

// SAFETY: Apple asks that one thread at a time uses a command buffer, whichever it is; its owner is the only one here, and
// it is waited for by value.
unsafe impl Send for CommandBuffer {}

/// The default GPU, with kernels for tensor units where it has them and they pass their self-test.
pub(crate) fn open(options: &Options) -> Result<Opened, OpenError> {
    let device = MetalDevice::new(Metal::new()?, Kernels::Plain)?;
    let capabilities = device.capabilities().clone();
    let tried = if options.metal4 { try_metal4() } else { Err(Metal4Off::NotWanted) };
    let mut unused = vec![];
    let (mut device, metal4) = match tried {
        Ok(metal4) => (metal4, true),
        Err(why) => {
            unused.push(Unused { feature: "tensor units", reason: why.to_string() });
            (device, false)
        }
    };
    if let Some(path) = &options.trace {
        device.api().record(path)?;
    }
    if let Some(folder) = &options.archives
        && let Err(reason) = device.keep_archive(folder)
    {
        unused.push(Unused { feature: "archive of translated kernels", reason });
    }
    if !capabilities.has_residency_sets() {
        let reason = "macOS 15 or later has them".to_owned();
        unused.push(Unused { feature: "residency sets", reason });
    }
    Ok(Opened { device, description: Description { capabilities, metal4, unused } })
}

/// Why kernels for tensor units are not used.
#[derive(Debug, thiserror::Error)]
pub enum Metal4Off {
    /// The options say so.
    #[error("the options turn them off")]
    NotWanted,
    /// The device has none, or the system is too old.
    #[error("this GPU or this macOS does not run kernels for tensor units")]
    NotThere,
    /// They do not compile.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// Their results are not those of the other kernels.
    #[error(transparent)]
    SelfTest(#[from] SelfTestError),
}

fn try_metal4() -> Result<MetalDevice<Metal>, Metal4Off> {
    let api = Metal::new()?;
    if !api.capabilities.may_try_metal4() {
        return Err(Metal4Off::NotThere);
    }
    let mut tested = MetalDevice::new(api, Kernels::Metal4)?;
    let mut plain = MetalDevice::new(Metal::new()?, Kernels::Plain)?;
    self_test(&mut plain, &mut tested)?;
    // The self-test does not give its buffers back.
    Ok(MetalDevice::new(Metal::new()?, Kernels::Metal4)?)
}

impl Metal {
    /// The default device of the system.
    ///
    /// # Errors
    /// If there is none, or it gives no queue.
    pub fn new() -> Result<Self, OpenError> {
        autoreleasepool(|_| {
            let device = MTLCreateSystemDefaultDevice().ok_or(OpenError::NoDevice)?;
            let queue = device.newCommandQueue().ok_or(OpenError::Missing("command queue"))?;
            queue.setLabel(Some(&NSString::from_str("calla")));
            let capabilities = capabilities(&device);
            let residency = capabilities.has_residency_sets().then(|| residency_set(&device));
            let residency = residency.flatten();
            if let Some(set) = &residency {
                queue.addResidencySet(set);
            }
            Ok(Self { device, queue, residency, capabilities, recording: None })
        })
    }

    fn make_pipeline(
        &self,
        descriptor: &MTLComputePipelineDescriptor,
        options: MTLPipelineOption,
    ) -> Result<Pipeline, Retained<NSError>> {
        let made = self.device.newComputePipelineStateWithDescriptor_options_reflection_error(
            descriptor, options, None,
        );
        made.map(Pipeline)
    }

    /// Labels a new buffer and keeps it resident.
    fn keep(&mut self, label: &str, buffer: Object<dyn MTLBuffer>, is_mapped: bool) -> Buffer {
        buffer.setLabel(Some(&NSString::from_str(label)));
        if let Some(set) = &self.residency {
            let allocation: &ProtocolObject<dyn MTLAllocation> = ProtocolObject::from_ref(&*buffer);
            set.addAllocation(allocation);
            set.commit();
            set.requestResidency();
        }
        Buffer { buffer, is_mapped }
    }

    /// Records all that the device does from now on.
    ///
    /// # Errors
    /// If Metal does not, as without `METAL_CAPTURE_ENABLED=1`, or the path will not do.
    fn record(&mut self, path: &Path) -> Result<(), OpenError> {
        let failed = |reason| OpenError::Trace { path: path.display().to_string(), reason };
        self.recording = Some(start_recording(&self.device, path).map_err(failed)?);
        Ok(())
    }
}

fn start_recording(
    device: &ProtocolObject<dyn MTLDevice>,
    path: &Path,
) -> Result<Recording, String> {
    if path.extension().is_none_or(|extension| extension != "gputrace") {
        return Err("its name has to end in .gputrace".to_owned());
    }
    if path.exists() {
        return Err("it is there already: name a new one".to_owned());
    }
    autoreleasepool(|_| {
        // SAFETY: the process has one manager, which any thread may ask for.
        let manager = unsafe { MTLCaptureManager::sharedCaptureManager() };
        let destination = MTLCaptureDestination::GPUTraceDocument;
        if !manager.supportsDestination(destination) {
            return Err("set METAL_CAPTURE_ENABLED=1 in the environment".to_owned());
        }
        let descriptor = MTLCaptureDescriptor::new();
        // SAFETY: a device is one of the objects that can be captured.
        unsafe { descriptor.setCaptureObject(Some(device.as_ref())) };
        descriptor.setDestination(destination);
        descriptor.setOutputURL(Some(&*url(path)?));
        let started = manager.startCaptureWithDescriptor_error(&descriptor);
        started.map(|()| Recording).map_err(|error| text(&error))
    })
}

/// Without it everything works, only slower: so none is no error.
fn residency_set(device: &ProtocolObject<dyn MTLDevice>) -> Option<Object<dyn MTLResidencySet>> {
    let descriptor = MTLResidencySetDescriptor::new();
    descriptor.setLabel(Some(&NSString::from_str("calla")));
    device.newResidencySetWithDescriptor_error(&descriptor).ok()
}

fn capabilities(device: &ProtocolObject<dyn MTLDevice>) -> Capabilities {
    let apple = [
        (10, MTLGPUFamily::Apple10),
        (9, MTLGPUFamily::Apple9),
        (8, MTLGPUFamily::Apple8),
        (7, MTLGPUFamily::Apple7),
    ];
    let metal = [(4, MTLGPUFamily::Metal4), (3, MTLGPUFamily::Metal3)];
    let highest = |families: &[(u32, MTLGPUFamily)]| {
        let supported = families.iter().find(|(_, family)| device.supportsFamily(*family));
        supported.map_or(0, |&(number, _)| number)
    };
    let NSOperatingSystemVersion { majorVersion, minorVersion, .. } =
        NSProcessInfo::processInfo().operatingSystemVersion();
    let number = |version| u32::try_from(version).unwrap_or(0);
    Capabilities {
        name: device.name().to_string(),
        macos: (number(majorVersion), number(minorVersion)),
        system: NSProcessInfo::processInfo().operatingSystemVersionString().to_string(),
        apple_family: highest(&apple),
        metal_family: highest(&metal),
        unified_memory: device.hasUnifiedMemory(),
        buffer_bytes: device.maxBufferLength() as u64,
        working_set_bytes: device.recommendedMaxWorkingSetSize(),
        threads: device.maxThreadsPerThreadgroup().width as u64,
        threadgroup_bytes: device.maxThreadgroupMemoryLength() as u64,
    }
}

/// Specialises an entry point by its function constants.
fn specialise(
    library: &ProtocolObject<dyn MTLLibrary>,
    entry: &str,
    constants: &[(u32, u32)],
) -> Result<Object<dyn MTLFunction>, String> {
    let values = MTLFunctionConstantValues::new();
    for (index, value) in constants {
        // SAFETY: the pointer is to a value of the type that is named, and Metal copies it before it returns.
        unsafe {
            values.setConstantValue_type_atIndex(
                NonNull::from(value).cast(),
                MTLDataType::UInt,
                *index as usize,
            );
        }
    }
    let name = NSString::from_str(entry);
    let function = library.newFunctionWithName_constantValues_error(&name, &values);
    function.map_err(|error| text(&error))
}

/// Describes the pipeline of a function.
fn describe(function: &ProtocolObject<dyn MTLFunction>) -> Retained<MTLComputePipelineDescriptor> {
    let descriptor = MTLComputePipelineDescriptor::new();
    descriptor.setLabel(Some(&function.name()));
    descriptor.setComputeFunction(Some(function));
    descriptor
}

fn url(path: &Path) -> Result<Retained<NSURL>, String> {
    NSURL::from_file_path(path).ok_or_else(|| format!("{} is no path of a file", path.display()))
}

fn text(error: &NSError) -> String {
    error.localizedDescription().to_string()
}

fn size([width, height, depth]: [u32; 3]) -> MTLSize {
    MTLSize { width: width as usize, height: height as usize, depth: depth as usize }
}

impl Api for Metal {
    type Library = Object<dyn MTLLibrary>;
    type Function = Object<dyn MTLFunction>;
    type Pipeline = Pipeline;
    type Buffer = Buffer;
    type CommandBuffer = CommandBuffer;
    type Encoder = Object<dyn MTLComputeCommandEncoder>;
    type Archive = Archive;

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn library(
        &mut self,
        name: &str,
        source: &str,
        language: Language,
    ) -> Result<Self::Library, String> {
        autoreleasepool(|_| {
            let options = MTLCompileOptions::new();
            options.setLanguageVersion(match language {
                Language::V3_1 => MTLLanguageVersion::Version3_1,
                Language::V4_0 => MTLLanguageVersion::Version4_0,
            });
            if self.capabilities.has_math_mode() {
                options.setMathMode(MTLMathMode::Safe);
                options.setMathFloatingPointFunctions(MTLMathFloatingPointFunctions::Precise);
            } else {
                #[expect(deprecated, reason = "macOS 14 has nothing else")]
                options.setFastMathEnabled(false);
            }
            let source = NSString::from_str(source);
            let library = self.device.newLibraryWithSource_options_error(&source, Some(&options));
            let library = library.map_err(|error| text(&error))?;
            library.setLabel(Some(&NSString::from_str(name)));
            Ok(library)
        })
    }

    fn entries(&self, library: &Self::Library) -> Vec<String> {
        autoreleasepool(|_| library.functionNames().iter().map(|name| name.to_string()).collect())
    }

    fn function(
        &mut self,
        library: &Self::Library,
        entry: &str,
        constants: &[(u32, u32)],
    ) -> Result<Self::Function, String> {
        autoreleasepool(|_| specialise(library, entry, constants))
    }

    fn pipeline(&mut self, function: &Self::Function) -> Result<Self::Pipeline, String> {
        autoreleasepool(|_| {
            let made = self.make_pipeline(&describe(function), MTLPipelineOption::empty());
            made.map_err(|error| text(&error))
        })
    }

    fn archive(&mut self, file: Option<&Path>) -> Result<Self::Archive, String> {
        autoreleasepool(|_| {
            let descriptor = MTLBinaryArchiveDescriptor::new();
            if let Some(file) = file {
                descriptor.setUrl(Some(&*url(file)?));
            }
            let archive = self.device.newBinaryArchiveWithDescriptor_error(&descriptor);
            archive.map(Archive).map_err(|error| text(&error))
        })
    }

    fn archived_pipeline(
        &mut self,
        Archive(archive): &Self::Archive,
        function: &Self::Function,
    ) -> Option<Self::Pipeline> {
        autoreleasepool(|_| {
            let descriptor = describe(function);
            descriptor.setBinaryArchives(Some(&NSArray::from_slice(&[&**archive])));
            self.make_pipeline(&descriptor, MTLPipelineOption::FailOnBinaryArchiveMiss).ok()
        })
    }

    fn add_to_archive(
        &mut self,
        Archive(archive): &Self::Archive,
        function: &Self::Function,
    ) -> Result<(), String> {
        autoreleasepool(|_| {
            let added =
                archive.addComputePipelineFunctionsWithDescriptor_error(&describe(function));
            added.map_err(|error| text(&error))
        })
    }

    fn serialize(&mut self, Archive(archive): &Self::Archive, file: &Path) -> Result<(), String> {
        autoreleasepool(|_| {
            archive.serializeToURL_error(&*url(file)?).map_err(|error| text(&error))
        })
    }

    fn limits(&self, Pipeline(pipeline): &Self::Pipeline) -> PipelineLimits {
        PipelineLimits {
            threads: pipeline.maxTotalThreadsPerThreadgroup() as u64,
            simdgroup_threads: pipeline.threadExecutionWidth() as u64,
            threadgroup_bytes: pipeline.staticThreadgroupMemoryLength() as u64,
        }
    }

    fn buffer(&mut self, label: &str, bytes: u64) -> Option<Self::Buffer> {
        autoreleasepool(|_| {
            let bytes = usize::try_from(bytes).ok()?;
            let buffer = self.device.newBufferWithLength_options(bytes, BUFFER_OPTIONS)?;
            Some(self.keep(label, buffer, false))
        })
    }

    fn buffer_no_copy(&mut self, label: &str, pages: MappedPages) -> Option<Self::Buffer> {
        autoreleasepool(|_| {
            let start = NonNull::new(pages.as_ptr().cast_mut())?.cast::<c_void>();
            let bytes = usize::try_from(pages.len()).ok()?;
            // What it does when it is called is nothing: it owns the pages, and goes when Metal has no more use for them.
            let deallocator = RcBlock::new(move |_: NonNull<c_void>, _: usize| {
                let _owned: &MappedPages = &pages;
            });
            // SAFETY: `MappedPages` proves that the address and the length are multiples of the system's page and that all
            // of it may be read as long as it lives. It is owned by the block, which Metal keeps until it has freed the
            // buffer, which command buffers that use it retain: so nothing reads the pages after they are unmapped. Its
            // destructor may run on any thread, as `MappedPages` is `Send`. Nothing writes through the address: `write`
            // refuses this buffer, the driver binds it to be read alone, and the system lets nobody, as it mapped the pages
            // so. Another process may change the file meanwhile: any bytes are values to a kernel.
            let buffer = unsafe {
                self.device.newBufferWithBytesNoCopy_length_options_deallocator(
                    start,
                    bytes,
                    BUFFER_OPTIONS,
                    Some(&deallocator),
                )
            };
            Some(self.keep(label, buffer?, true))
        })
    }

    fn release(&mut self, Buffer { buffer, .. }: Self::Buffer) {
        autoreleasepool(|_| {
            if let Some(set) = &self.residency {
                set.removeAllocation(ProtocolObject::from_ref(&*buffer));
                set.commit();
            }
            drop(buffer);
        });
    }

    fn write(&mut self, buffer: &Self::Buffer, offset: u64, bytes: &[u8]) {
        let Buffer { buffer, is_mapped } = buffer;
        let offset = offset as usize;
        assert!(!is_mapped, "the driver refuses to write what is mapped to be read");
        assert!(offset + bytes.len() <= buffer.length(), "the driver keeps within buffers");
        // SAFETY: the buffer is shared, so that `contents` is the address of its `length` bytes, and all that is written
        // lies within; it is none of pages that may only be read. The driver waits for what it commits, so that neither GPU
        // nor processor uses them meanwhile.
        unsafe {
            let start = buffer.contents().cast::<u8>().as_ptr().add(offset);
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), start, bytes.len());
        }
    }

    fn read(&mut self, Buffer { buffer, .. }: &Self::Buffer, offset: u64, bytes: &mut [u8]) {
        let offset = offset as usize;
        assert!(offset + bytes.len() <= buffer.length(), "the driver keeps within buffers");
        // SAFETY: as in `write`, but that pages of a file may be read. Any bytes are a `u8`; what Metal allocates is
        // initialised, as are files.
        unsafe {
            let start = buffer.contents().cast::<u8>().as_ptr().add(offset);
            std::ptr::copy_nonoverlapping(start, bytes.as_mut_ptr(), bytes.len());
        }
    }

    fn command_buffer(&mut self, label: &str) -> Option<Self::CommandBuffer> {
        autoreleasepool(|_| {
            let commands = self.queue.commandBuffer()?;
            commands.setLabel(Some(&NSString::from_str(label)));
            Some(CommandBuffer(commands))
        })
    }

    fn encoder(
        &mut self,
        CommandBuffer(commands): &Self::CommandBuffer,
        label: &str,
    ) -> Option<Self::Encoder> {
        autoreleasepool(|_| {
            let encoder =
                commands.computeCommandEncoderWithDispatchType(MTLDispatchType::Concurrent)?;
            encoder.setLabel(Some(&NSString::from_str(label)));
            Some(encoder)
        })
    }

    fn describe(&mut self, encoder: &Self::Encoder, dispatch: &Dispatch) {
        autoreleasepool(|_| encoder.insertDebugSignpost(&NSString::from_str(&dispatch.label)));
    }

    fn set_pipeline(&mut self, encoder: &Self::Encoder, Pipeline(pipeline): &Self::Pipeline) {
        encoder.setComputePipelineState(pipeline);
    }

    fn set_buffer(
        &mut self,
        encoder: &Self::Encoder,
        index: u32,
        Buffer { buffer, .. }: &Self::Buffer,
        offset: u64,
    ) {
        // SAFETY: the driver has checked that the offset lies in the buffer, and the command buffer retains it. What the
        // kernel touches behind it is what the dispatch declares; tests on the host driver hold every kernel to that.
        unsafe {
            encoder.setBuffer_offset_atIndex(Some(buffer), offset as usize, index as usize);
        }
    }

    fn set_bytes(&mut self, encoder: &Self::Encoder, index: u32, bytes: &[u8]) {
        // SAFETY: pointer and length are those of a slice, which Metal copies before it returns.
        unsafe {
            let start = NonNull::from(bytes).cast();
            encoder.setBytes_length_atIndex(start, bytes.len(), index as usize);
        }
    }

    fn dispatch(&mut self, encoder: &Self::Encoder, groups: [u32; 3], threads: [u32; 3]) {
        encoder.dispatchThreadgroups_threadsPerThreadgroup(size(groups), size(threads));
    }

    fn barrier(&mut self, encoder: &Self::Encoder) {
        encoder.memoryBarrierWithScope(MTLBarrierScope::Buffers);
    }

    fn end(&mut self, encoder: Self::Encoder) {
        encoder.endEncoding();
    }

    fn commit(&mut self, CommandBuffer(commands): &Self::CommandBuffer) {
        autoreleasepool(|_| commands.commit());
    }

    fn wait(&mut self, CommandBuffer(commands): Self::CommandBuffer) -> Result<Ended, Fault> {
        autoreleasepool(|_| {
            commands.waitUntilCompleted();
            let status = commands.status();
            if let Some(error) = commands.error() {
                // SAFETY: a constant string that Metal defines and never changes.
                let known = unsafe { MTLCommandBufferErrorDomain };
                let (code, message) = (error.code() as i64, text(&error));
                return Err(if *error.domain() == *known {
                    Fault::of_code(code, message)
                } else {
                    Fault::Other { code, message: format!("{}: {message}", error.domain()) }
                });
            }
            match status {
                MTLCommandBufferStatus::Completed => {
                    Ok(Ended { gpu_seconds: commands.GPUEndTime() - commands.GPUStartTime() })
                }
                MTLCommandBufferStatus::Error => {
                    Err(Fault::Other { code: 0, message: "Metal does not say why".to_owned() })
                }
                other => Err(Fault::Status(other.0 as u64)),
            }
        })
    }
}
