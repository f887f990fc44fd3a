// What all networks of the family have in common.
#pragma once

#define HEAD_DIM 256        // attention head
#define ROTARY_DIM 64       // of which so many are rotated
#define DELTA_DIM 128       // DeltaNet head, key and value
#define CONV_TAPS 4
#define PAGE_TOKENS 64      // KV page, and DeltaNet chunk
#define TOP_K_MAX 16
#define EXPERTS_MAX 512
