// Runs a dispatch: threadgroups on worker threads, each GPU thread a fiber.
#pragma once
#include "lane.h"

namespace msl {
constexpr unsigned THREADS_MAX = 1024;           // of a threadgroup
constexpr size_t THREADGROUP_BYTES_MAX = 32768;  // of threadgroup memory

// Runs all threadgroups of a launch on `workers` threads; ends the process when lanes diverge.
void run(const Launch& launch, unsigned workers);
}  // namespace msl
