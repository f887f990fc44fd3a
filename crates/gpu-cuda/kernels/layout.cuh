// What the driver has to know of a kernel: when it may start, and of its arguments, as it declares them, for each pointer size
// and alignment of what it points to, and for parameters, which come last and by value, their own.
#pragma once

#include "start.h"

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
