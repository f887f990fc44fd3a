// Metal Shading Language 3.1 on the CPU: what translated kernels include.
#pragma once
#pragma GCC system_header
#include "lane.h"
#include "types.h"
#include "math.h"
#include "simd.h"
#include "matrix.h"
#include "atomic.h"
