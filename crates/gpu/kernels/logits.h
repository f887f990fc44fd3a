// Rows of logits that are reduced in two steps: block by block, then what blocks have found. `src/logits.rs` has the same.
#pragma once

#define SIMDGROUPS 8
#define BLOCK 4096  // values of a threadgroup

struct LogitsParams {
    uint width;   // of a row in memory
    uint count;   // values of a row that count
    uint blocks;  // of a row
};
