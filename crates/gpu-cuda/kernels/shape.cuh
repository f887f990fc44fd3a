// Sizes of the network's family and the tables of a step: as family.h and tables.h of the Metal kernels have them.
#pragma once

#include "mma.cuh"

constexpr uint PAGE_TOKENS = 64;
constexpr uint HEAD_DIM = 256;   // of attention
constexpr uint DELTA_DIM = 128;  // of a DeltaNet head

struct Span { uint first_row, rows, position, slot_in, slot_out, first_page, first_checkpoint, checkpoints; };
struct Chunk { uint first_row, rows, span; };
