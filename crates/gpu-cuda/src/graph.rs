//! A plan as a graph that the GPU runs with one launch.

use crate::module::Call;
use crate::twins::Launch;
use cudarc::driver::CudaContext;
use cudarc::driver::result::{DriverError, graph};
use cudarc::driver::sys::{
    self, CUgraph, CUgraphDependencyType, CUgraphEdgeData, CUgraphExec, CUgraphNode, CUstream,
};
use std::sync::Arc;

/// The edge to a kernel that starts once all blocks of the one before have. Drivers know it from CUDA 12.3 on.
static EARLY: CUgraphEdgeData = CUgraphEdgeData {
    from_port: sys::CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC as u8,
    to_port: 0,
    type_: CUgraphDependencyType::CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC as u8,
    reserved: [0; 5],
};

/// Kernels and their dependencies, instantiated. It is given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Graph {
    context: Arc<CudaContext>,
    exec: CUgraphExec,
}

// SAFETY: handles of the driver may be used by any thread that has made the context its own, which callers do first.
unsafe impl Send for Graph {}

/// A graph as it is built, which an instance of it does not need.
struct Draft(CUgraph);

impl Drop for Draft {
    fn drop(&mut self) {
        // SAFETY: it was created, and this is the last that is done with it. Failing, it can only leak.
        let _ = unsafe { graph::destroy(self.0) };
    }
}

impl Graph {
    /// A graph of `calls` with `edges`, pairs `[from, to]` of their indices, `from < to`, by `to`. The context is the
    /// thread's.
    ///
    /// With `starts_early` a kernel with one predecessor starts once all blocks of that one have, and waits for its results
    /// by itself (programmatic dependent launch): weights are loaded meanwhile. As every kernel waits, one that has ended
    /// has waited for all that it depends on, however far.
    ///
    /// # Safety
    /// As for [`Call::start`] of each, whenever the graph runs. To start early, every kernel has to wait before it uses
    /// what another may write or read.
    pub(crate) unsafe fn new(
        context: &Arc<CudaContext>,
        calls: &[Call<'_>],
        edges: &[[u32; 2]],
        starts_early: bool,
    ) -> Result<Self, DriverError> {
        let mut created: CUgraph = std::ptr::null_mut();
        // SAFETY: it points to a handle.
        unsafe { sys::cuGraphCreate(&raw mut created, 0) }.result()?;
        let draft = Draft(created);
        let mut nodes: Vec<CUgraphNode> = Vec::with_capacity(calls.len());
        let mut edges = edges.iter().peekable();
        for (to, call) in (0..).zip(calls) {
            let mut waits_for = vec![];
            while let Some(&&[from, _]) = edges.peek().filter(|edge| edge[1] == to) {
                waits_for.push(nodes[from as usize]);
                edges.next();
            }
            let starts_early = starts_early && waits_for.len() == 1;
            let early = if starts_early { waits_for.pop() } else { None };
            let Launch { grid, threads, shared } = call.launch;
            let mut arguments = call.arguments();
            let params = sys::CUDA_KERNEL_NODE_PARAMS {
                func: call.module.function,
                gridDimX: grid[0],
                gridDimY: grid[1],
                gridDimZ: grid[2],
                blockDimX: threads[0],
                blockDimY: threads[1],
                blockDimZ: threads[2],
                sharedMemBytes: shared,
                kernelParams: arguments.as_mut_ptr(),
                extra: std::ptr::null_mut(),
                kern: std::ptr::null_mut(),
                ctx: std::ptr::null_mut(),
            };
            let mut node: CUgraphNode = std::ptr::null_mut();
            // SAFETY: the graph exists, with the nodes that this one waits for. The function is loaded, its arguments are as the
            // caller promises, and the driver has copied them when it returns.
            let added = unsafe {
                sys::cuGraphAddKernelNode_v2(
                    &raw mut node,
                    draft.0,
                    waits_for.as_ptr(),
                    waits_for.len(),
                    &raw const params,
                )
            };
            added.result()?;
            if let Some(from) = early {
                // SAFETY: the graph exists and has both nodes.
                unsafe {
                    sys::cuGraphAddDependencies_v2(
                        draft.0,
                        &raw const from,
                        &raw const node,
                        &raw const EARLY,
                        1,
                    )
                }
                .result()?;
            }
            nodes.push(node);
        }
        debug_assert!(edges.next().is_none(), "edges lead forward and are sorted");
        let mut exec: CUgraphExec = std::ptr::null_mut();
        // SAFETY: the graph exists, and `exec` is a handle.
        unsafe { sys::cuGraphInstantiateWithFlags(&raw mut exec, draft.0, 0) }.result()?;
        Ok(Self { context: Arc::clone(context), exec })
    }

    /// Starts it. The context is the thread's.
    ///
    /// # Safety
    /// As for [`Call::start`] of all its calls.
    pub(crate) unsafe fn launch(&self, stream: CUstream) -> Result<(), DriverError> {
        // SAFETY: the graph is instantiated, the stream exists; the rest is the caller's.
        unsafe { graph::launch(self.exec, stream) }
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        if self.context.bind_to_thread().is_ok() {
            // SAFETY: it is instantiated, and this is the last that is done with it; the driver keeps what still runs. Where the
            // GPU was lost this fails, and the graph went with it.
            let _ = unsafe { graph::exec_destroy(self.exec) };
        }
    }
}
