// Metal Shading Language 3.1 in CUDA C++: what translated kernels include. A threadgroup is a block, a simdgroup a warp.
//
// Functions without a qualifier are device functions (--device-as-default-execution-space). All of this, and the kernels,
// stand in one namespace: names in it hide those of CUDA, float4 or max, that mean something else there.
#pragma once
#include "start.h"
#include "types.h"
#include "math.h"
#include "simd.h"
#include "matrix.h"

// Words that CUDA's own headers know, so they come last.
#define device
#define constant const
#define threadgroup
#define thread
// Arrays that are handed to a helper stay in registers only if it is expanded where it is called.
#define inline __forceinline__
#define kernel inline
