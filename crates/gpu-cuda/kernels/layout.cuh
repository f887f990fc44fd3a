// What a kernel and the driver agree on: when it may start, and what the driver has to know of its arguments, taken from its
// declaration: for each pointer, size and alignment of what it points to, and for parameters, which come last and by value,
// their own.
#pragma once

// A kernel may start while the one that it depends on still runs: every thread of it waits for that one's results before it
// reads or writes anything but weights. What depends on it may start at once, as it waits in turn. See graph.rs.
inline void start_next() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
inline void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

template <typename T> struct Argument { static constexpr unsigned size = sizeof(T), align = alignof(T); };
template <typename T> struct Argument<T*> : Argument<T> {};

template <unsigned N> struct Layout { unsigned words[2 * N]; };

template <typename... A> constexpr Layout<sizeof...(A)> layout(void (*)(A...)) {
    Layout<sizeof...(A)> result = {};
    unsigned at = 0;
    ((result.words[at] = Argument<A>::size, result.words[at + 1] = Argument<A>::align, at += 2), ...);
    return result;
}

// Stands behind a kernel's definition; the driver reads `msl_layout`, as it does of translated kernels.
#define LAYOUT_OF(kernel) Layout<sizeof(layout(kernel)) / 8> msl_layout = layout(kernel)
