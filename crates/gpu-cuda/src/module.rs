//! A pipeline that is loaded on the GPU, and its calls.

use crate::twins::{Launch, Twin};
use calla_gpu::{Dispatch, check};
use calla_msl::{Entry, ParamKind};
use cudarc::driver::CudaContext;
use cudarc::driver::result::{DriverError, function, launch_kernel, memcpy_dtoh_sync, module};
use cudarc::driver::sys::{CUdeviceptr, CUfunction, CUfunction_attribute_enum, CUmodule, CUstream};
use std::ffi::{CString, c_void};
use std::sync::Arc;

/// An entry point with its function constants.
#[derive(Debug)]
pub(crate) struct Module {
    context: Arc<CudaContext>,
    module: CUmodule,
    pub(crate) function: CUfunction,
    pub(crate) buffers: Vec<check::Buffer>,
    /// Most threads of a threadgroup: registers may leave room for fewer than the kernel would take.
    pub(crate) max_threads: u32,
    /// The twin that it is of, if it is not a translated kernel.
    twin: Option<&'static Twin>,
}

// SAFETY: handles of the driver may be used by any thread that has made the context its own, which callers do first.
unsafe impl Send for Module {}

impl Module {
    /// Loads the machine code of `entry` for dispatches with the function constants of `dispatch`, and of a twin if it is
    /// one's. The context is the thread's.
    pub(crate) fn load(
        context: &Arc<CudaContext>,
        entry: &Entry,
        dispatch: &Dispatch,
        code: &[u8],
        twin: Option<&'static Twin>,
    ) -> Result<Self, DriverError> {
        // SAFETY: `code` is machine code that NVRTC made, whole: what keeps it checks its digest.
        let module = unsafe { module::load_data(code.as_ptr().cast()) }?;
        let mut loaded = Self {
            context: Arc::clone(context),
            module,
            function: std::ptr::null_mut(),
            buffers: vec![],
            max_threads: 0,
            twin,
        };
        let name = CString::new(entry.name.as_str()).unwrap_or_default();
        // SAFETY: the module was just loaded.
        loaded.function = unsafe { module::get_function(module, name) }?;
        // SAFETY: as above.
        let (table, bytes) = unsafe { module::get_global(module, c"msl_layout".to_owned()) }?;
        let mut words = vec![0_u32; bytes / 4];
        // SAFETY: the table has as many words.
        unsafe { memcpy_dtoh_sync(&mut words, table) }?;
        // A size and an alignment for each buffer.
        let memories = entry.params.iter().filter_map(|param| match param.kind {
            ParamKind::Buffer { memory, .. } => Some(memory),
            ParamKind::Builtin(_) => None,
        });
        let buffers = memories.zip(words.as_chunks::<2>().0);
        loaded.buffers = buffers
            .map(|(memory, &[size, align])| check::Buffer {
                memory,
                size: size.into(),
                align: align.into(),
            })
            .collect();
        let attribute = CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK;
        // SAFETY: the function is one of a module that is loaded.
        let most = unsafe { function::get_function_attribute(loaded.function, attribute) }?;
        loaded.max_threads = u32::try_from(most).unwrap_or(0);
        let shared = loaded.launch_of(dispatch).shared;
        if shared > 0 {
            let attribute =
                CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            // SAFETY: as above.
            unsafe {
                function::set_function_attribute(loaded.function, attribute, shared.cast_signed())
            }?;
        }
        Ok(loaded)
    }

    /// How a dispatch of this pipeline is launched.
    pub(crate) fn launch_of(&self, dispatch: &Dispatch) -> Launch {
        // A twin that was chosen for the constants of this pipeline takes all dispatches of it.
        let twin = self.twin.and_then(|twin| (twin.launch)(dispatch));
        twin.unwrap_or_else(|| Launch::of(dispatch))
    }
}

/// A run of a kernel with all that it takes.
#[derive(Clone, Debug)]
pub(crate) struct Call<'a> {
    pub(crate) module: &'a Module,
    pub(crate) launch: Launch,
    /// Addresses, as many as it takes.
    pub(crate) buffers: Vec<CUdeviceptr>,
    /// Its parameters, as many bytes as it takes.
    pub(crate) params: &'a [u8],
}

impl Call<'_> {
    /// Pointers to what the kernel takes, good while the call is there.
    pub(crate) fn arguments(&self) -> Vec<*mut c_void> {
        let buffers = self.buffers.iter();
        let mut arguments: Vec<*mut c_void> =
            buffers.map(|buffer| std::ptr::from_ref(buffer).cast_mut().cast()).collect();
        if !self.params.is_empty() {
            arguments.push(self.params.as_ptr().cast_mut().cast());
        }
        arguments
    }

    /// Starts it. The context is the thread's.
    ///
    /// # Safety
    /// `buffers` are addresses on this GPU, as many as the kernel takes, at which it may do what the dispatch has bound
    /// them for until the stream is through with it, and `params` are as many bytes as it takes.
    pub(crate) unsafe fn start(&self, stream: CUstream) -> Result<(), DriverError> {
        let [x, y, z] = self.launch.grid;
        let [threads_x, threads_y, threads_z] = self.launch.threads;
        // SAFETY: the function is loaded, its arguments are as the caller promises, and the driver has copied them when it
        // returns.
        unsafe {
            launch_kernel(
                self.module.function,
                (x, y, z),
                (threads_x, threads_y, threads_z),
                self.launch.shared,
                stream,
                &mut self.arguments(),
            )
        }
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        if self.context.bind_to_thread().is_ok() {
            // SAFETY: it is loaded, and this is the last that is done with it. Where the GPU was lost this fails, and there
            // is nothing left to unload.
            let _ = unsafe { module::unload(self.module) };
        }
    }
}
