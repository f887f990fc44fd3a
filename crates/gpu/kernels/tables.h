// What a step's rows are: tables that the host (or the step before) writes. `src/tables.rs` has the same.
#pragma once

// Consecutive rows of one sequence.
struct Span {
    uint first_row;    // in the batch
    uint rows;
    uint position;     // in the sequence, of the first row
    uint slot_in;      // slot of recurrent state before its first row; never one that the step writes
    uint slot_out;     // slot that receives the state after its last row
    uint first_page;   // index of its first page in the page table: page i holds positions 64 i ..
    uint first_checkpoint;  // index in `checkpoints` of the slot that receives the state after row 0
    uint checkpoints;  // 0, or rows - 1: a slot for the state after each row but the last
};

// A run of at most 64 rows of a span that the recurrence takes together (prefill).
struct Chunk {
    uint first_row;    // in the batch
    uint rows;         // 1 ..= 64
    uint span;
};
