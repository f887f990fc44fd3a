// The network's shape: widths and counts are function constants, so that each pipeline is compiled for one shape.
// `src/shape_constants.rs` sets them.
#pragma once

#include "family.h"

constant uint HIDDEN [[function_constant(0)]];         // residual stream
constant uint HEADS [[function_constant(1)]];          // attention query heads
constant uint KV_HEADS [[function_constant(2)]];
constant uint KEY_HEADS [[function_constant(3)]];      // DeltaNet
constant uint VALUE_HEADS [[function_constant(4)]];    // DeltaNet, a multiple of KEY_HEADS
constant uint EXPERTS [[function_constant(5)]];
constant uint TOP_K [[function_constant(6)]];
constant uint EXPERT_HIDDEN [[function_constant(7)]];
constant uint SHARED_HIDDEN [[function_constant(8)]];

// Indices from 16 on belong to the file that declares them (bits, input width, variants).
