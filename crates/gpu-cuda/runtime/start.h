// When a kernel may start, translated or written for NVIDIA GPUs: what it and graph.rs agree on.
//
// It may start while the one that it depends on still runs: every thread of it waits for that one's results before it reads or
// writes anything but weights. What depends on it may start at once, as it waits in turn.
#pragma once

__device__ __forceinline__ void start_next() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
__device__ __forceinline__ void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
