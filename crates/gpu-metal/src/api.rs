//! What the driver needs of Metal, in Metal's own terms: each method is a call or two, and decides nothing.

use crate::capabilities::Capabilities;
use crate::fault::Fault;
use calla_gpu::{Dispatch, MappedPages};
use std::path::Path;

/// Version of the Metal Shading Language to compile a source in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Language {
    /// Version 3.1, of macOS 14.
    V3_1,
    /// Version 4.0, of macOS 26.
    V4_0,
}

/// What a pipeline says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PipelineLimits {
    /// Most threads of a threadgroup: fewer than the device's where a kernel needs many registers.
    pub threads: u64,
    /// Threads of a simdgroup.
    pub simdgroup_threads: u64,
    /// Bytes of threadgroup memory that the kernel declares.
    pub threadgroup_bytes: u64,
}

/// A command buffer that has completed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ended {
    /// Seconds that the GPU was at work on it.
    pub gpu_seconds: f64,
}

/// Metal, as the driver sees it.
///
/// Buffers are shared between processor and GPU, and their hazards are tracked: command buffers of the one queue run as if
/// one after the other, and no event is needed between them. Within an encoder dispatches run concurrently, but for barriers.
pub trait Api: Send {
    /// `MTLLibrary`
    type Library: Send;
    /// `MTLFunction`, specialised
    type Function;
    /// `MTLComputePipelineState`
    type Pipeline: Send;
    /// `MTLBuffer`
    type Buffer: Send;
    /// `MTLCommandBuffer`
    type CommandBuffer: Send;
    /// `MTLComputeCommandEncoder`
    type Encoder;
    /// `MTLBinaryArchive`
    type Archive: Send;

    /// What the device and its system offer.
    fn capabilities(&self) -> &Capabilities;

    /// Compiles a source without fast-math.
    ///
    /// # Errors
    /// What the compiler says.
    fn library(
        &mut self,
        name: &str,
        source: &str,
        language: Language,
    ) -> Result<Self::Library, String>;

    /// Names of a library's entry points.
    fn entries(&self, library: &Self::Library) -> Vec<String>;

    /// Specialises an entry point. `constants` are indices and values, all of type `uint`; those that the kernel does not
    /// declare are of no effect.
    ///
    /// # Errors
    /// What Metal says.
    fn function(
        &mut self,
        library: &Self::Library,
        entry: &str,
        constants: &[(u32, u32)],
    ) -> Result<Self::Function, String>;

    /// Makes a pipeline of a function.
    ///
    /// # Errors
    /// What Metal says.
    fn pipeline(&mut self, function: &Self::Function) -> Result<Self::Pipeline, String>;

    /// Opens the archive of a file, or an empty one.
    ///
    /// # Errors
    /// What Metal says.
    fn archive(&mut self, file: Option<&Path>) -> Result<Self::Archive, String>;

    /// The pipeline that [`Api::pipeline`] would make, if its machine code is in the archive: nothing is compiled.
    fn archived_pipeline(
        &mut self,
        archive: &Self::Archive,
        function: &Self::Function,
    ) -> Option<Self::Pipeline>;

    /// Adds the machine code of a function to an archive.
    ///
    /// # Errors
    /// What Metal says.
    fn add_to_archive(
        &mut self,
        archive: &Self::Archive,
        function: &Self::Function,
    ) -> Result<(), String>;

    /// Writes an archive to a file.
    ///
    /// # Errors
    /// What Metal says.
    fn serialize(&mut self, archive: &Self::Archive, file: &Path) -> Result<(), String>;

    /// What a pipeline says of itself.
    fn limits(&self, pipeline: &Self::Pipeline) -> PipelineLimits;

    /// Allocates a buffer of at least one byte; `None` if Metal has not the memory.
    fn buffer(&mut self, label: &str, bytes: u64) -> Option<Self::Buffer>;

    /// Makes a buffer of pages of a mapped file, which are not copied and which nothing may write; `None` if Metal refuses
    /// them. The buffer itself holds the pages: they stay mapped until Metal has freed it.
    fn buffer_no_copy(&mut self, label: &str, pages: MappedPages) -> Option<Self::Buffer>;

    /// Gives a buffer back that no command buffer uses any more.
    fn release(&mut self, buffer: Self::Buffer);

    /// Copies bytes to a buffer that no command buffer uses and that is no file's. They fit behind `offset`.
    fn write(&mut self, buffer: &Self::Buffer, offset: u64, bytes: &[u8]);

    /// Copies bytes from a buffer that no command buffer writes. They lie within it.
    fn read(&mut self, buffer: &Self::Buffer, offset: u64, bytes: &mut [u8]);

    /// A command buffer, not yet committed; `None` if Metal gives none.
    fn command_buffer(&mut self, label: &str) -> Option<Self::CommandBuffer>;

    /// Begins to encode concurrent dispatches; `None` if Metal gives no encoder.
    fn encoder(&mut self, commands: &Self::CommandBuffer, label: &str) -> Option<Self::Encoder>;

    /// Says which dispatch the calls up to [`Api::dispatch`] encode. Traces show its label.
    fn describe(&mut self, encoder: &Self::Encoder, dispatch: &Dispatch);

    /// Sets the pipeline of what is dispatched next.
    fn set_pipeline(&mut self, encoder: &Self::Encoder, pipeline: &Self::Pipeline);

    /// Binds a buffer from `offset` on.
    fn set_buffer(
        &mut self,
        encoder: &Self::Encoder,
        index: u32,
        buffer: &Self::Buffer,
        offset: u64,
    );

    /// Binds a copy of at most 4096 bytes.
    fn set_bytes(&mut self, encoder: &Self::Encoder, index: u32, bytes: &[u8]);

    /// Encodes threadgroups with what is set.
    fn dispatch(&mut self, encoder: &Self::Encoder, groups: [u32; 3], threads: [u32; 3]);

    /// Lets what is encoded next see all that was written before.
    fn barrier(&mut self, encoder: &Self::Encoder);

    /// Ends an encoder, as is due before its command buffer is committed, and before either is dropped.
    fn end(&mut self, encoder: Self::Encoder);

    /// Hands a command buffer to the GPU.
    fn commit(&mut self, commands: &Self::CommandBuffer);

    /// Waits until a committed command buffer has ended, and reads how: its status and its error.
    ///
    /// # Errors
    /// If it did not complete.
    fn wait(&mut self, commands: Self::CommandBuffer) -> Result<Ended, Fault>;
}
