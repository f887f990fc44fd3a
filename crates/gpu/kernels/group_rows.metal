// Pairs (row, rank) sorted by expert, stable: a counting sort over chunks of pairs. Count per chunk and expert, running
// sums over the chunks of each expert, then every pair's place. There are no atomics, so there is one result.
#include <metal_stdlib>
using namespace metal;
#include "shape.h"

#define THREADS 256
#define SIMDGROUPS (THREADS / 32)
#define STEPS 4                     // pairs of a lane
#define RUN (STEPS * 32)            // consecutive pairs of a simdgroup
#define CHUNK (SIMDGROUPS * RUN)    // consecutive pairs of a threadgroup

struct Params {
    uint pairs;
    uint chunks;
    uint block_rows;
    uint max_blocks;
};

#define NO_EXPERT 0xffffffffu

// Experts of a lane's pairs, and how many pairs of the simdgroup's run that come before have the same.
struct Run {
    uint expert[STEPS];
    uint rank[STEPS];
};

// Walks a simdgroup's run and adds it up in `counters`, which belong to this simdgroup and start at 0.
inline Run count_run(device const uint* experts, uint pairs, uint first, threadgroup uint* counters, uint lane) {
    Run run;
    for (uint step = 0; step < STEPS; step++) {
        const uint pair = first + step * 32 + lane;
        const uint expert = pair < pairs ? experts[pair] : NO_EXPERT;
        uint before = 0, same = 0;
        for (uint other = 0; other < 32; other++) {
            const uint equal = simd_shuffle(expert, ushort(other)) == expert ? 1u : 0u;
            same += equal;
            before += other < lane ? equal : 0u;
        }
        const uint base = expert != NO_EXPERT ? counters[expert] : 0u;
        simdgroup_barrier(mem_flags::mem_threadgroup);  // all have read before any adds
        if (expert != NO_EXPERT && before == 0) counters[expert] = base + same;
        simdgroup_barrier(mem_flags::mem_threadgroup);
        run.expert[step] = expert;
        run.rank[step] = base + before;
    }
    return run;
}

inline void clear_counters(threadgroup uint* counters, uint thread_index) {
    for (uint i = thread_index; i < SIMDGROUPS * EXPERTS; i += THREADS) counters[i] = 0;
    threadgroup_barrier(mem_flags::mem_threadgroup);
}

// counts[expert, chunk]
kernel void group_rows_count(
    device const uint* experts [[buffer(0)]],
    device uint* counts [[buffer(1)]],
    constant Params& p [[buffer(2)]],
    uint chunk [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
    threadgroup uint counters[SIMDGROUPS * EXPERTS_MAX];
    clear_counters(counters, thread_index);
    count_run(experts, p.pairs, chunk * CHUNK + simdgroup * RUN, counters + simdgroup * EXPERTS, lane);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint expert = thread_index; expert < EXPERTS; expert += THREADS) {
        uint sum = 0;
        for (uint i = 0; i < SIMDGROUPS; i++) sum += counters[i * EXPERTS + expert];
        counts[expert * p.chunks + chunk] = sum;
    }
}

// Turns counts[expert, chunk] into the expert's pairs in earlier chunks, and gives totals[expert]. A simdgroup takes an
// expert.
kernel void group_rows_scan(
    device uint* counts [[buffer(0)]],
    device uint* totals [[buffer(1)]],
    constant Params& p [[buffer(2)]],
    uint group [[threadgroup_position_in_grid]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
    const uint expert = group * SIMDGROUPS + simdgroup;
    if (expert >= EXPERTS) return;
    uint running = 0;
    for (uint chunk = lane; chunk - lane < p.chunks; chunk += 32) {
        const uint count = chunk < p.chunks ? counts[expert * p.chunks + chunk] : 0u;
        const uint before = simd_prefix_exclusive_sum(count);
        if (chunk < p.chunks) counts[expert * p.chunks + chunk] = running + before;
        running += simd_sum(count);
    }
    if (lane == 0) totals[expert] = running;
}

// Places a chunk's pairs, and writes a part of the rest. With one chunk, `before` and `totals` are not read.
template <bool MANY>
inline void place(
    device const uint* experts,
    device const uint* before,
    device const uint* totals,
    device uint* pairs,
    device uint* offsets,
    device uint4* blocks,
    device uint* block_count,
    constant Params& p,
    threadgroup uint* counters,       // [SIMDGROUPS, EXPERTS]
    threadgroup uint* starts,         // [EXPERTS + 1], first position of each expert
    threadgroup uint* block_starts,   // [EXPERTS + 1], its first block
    threadgroup uint* partial,        // [2 * SIMDGROUPS]
    uint chunk,
    uint thread_index,
    uint simdgroup,
    uint lane) {
    clear_counters(counters, thread_index);
    const uint first = chunk * CHUNK + simdgroup * RUN;
    const Run run = count_run(experts, p.pairs, first, counters + simdgroup * EXPERTS, lane);
    threadgroup_barrier(mem_flags::mem_threadgroup);

    // A thread takes two experts: their pairs in earlier chunks and simdgroups, and in all.
    uint total[2], count[2];
    for (uint i = 0; i < 2; i++) {
        const uint expert = thread_index * 2 + i;
        total[i] = count[i] = 0;
        if (expert < EXPERTS) {
            uint running = MANY ? before[expert * p.chunks + chunk] : 0u;
            for (uint s = 0; s < SIMDGROUPS; s++) {
                const uint own = counters[s * EXPERTS + expert];
                counters[s * EXPERTS + expert] = running;
                running += own;
            }
            total[i] = MANY ? totals[expert] : running;
            count[i] = (total[i] + p.block_rows - 1) / p.block_rows;
        }
    }
    // Running sums over experts.
    const uint pair_sum = simd_prefix_exclusive_sum(total[0] + total[1]);
    const uint block_sum = simd_prefix_exclusive_sum(count[0] + count[1]);
    if (lane == 31) {
        partial[simdgroup] = pair_sum + total[0] + total[1];
        partial[SIMDGROUPS + simdgroup] = block_sum + count[0] + count[1];
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    uint start = pair_sum, block_start = block_sum;
    for (uint s = 0; s < simdgroup; s++) {
        start += partial[s];
        block_start += partial[SIMDGROUPS + s];
    }
    for (uint i = 0; i < 2; i++) {
        // The entry behind the last expert is what all of them have.
        const uint expert = thread_index * 2 + i;
        if (expert <= EXPERTS) {
            starts[expert] = start;
            block_starts[expert] = block_start;
        }
        start += total[i];
        block_start += count[i];
    }
    if (EXPERTS == EXPERTS_MAX && thread_index == THREADS - 1) {
        starts[EXPERTS] = start;
        block_starts[EXPERTS] = block_start;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);

    for (uint step = 0; step < STEPS; step++) {
        const uint expert = run.expert[step];
        if (expert != NO_EXPERT) {
            const uint position = starts[expert] + counters[simdgroup * EXPERTS + expert] + run.rank[step];
            pairs[position] = first + step * 32 + lane;
        }
    }
    if (chunk == 0) {
        for (uint expert = thread_index; expert <= EXPERTS; expert += THREADS) offsets[expert] = starts[expert];
        if (thread_index == 0) block_count[0] = block_starts[EXPERTS];
    }
    for (uint block = chunk * THREADS + thread_index; block < p.max_blocks; block += p.chunks * THREADS) {
        uint4 entry = uint4(0u);
        if (block < block_starts[EXPERTS]) {
            // The last expert that starts at this block or before: those without blocks start where the next does.
            uint low = 0, high = EXPERTS;
            while (high - low > 1) {
                const uint middle = (low + high) / 2;
                if (block_starts[middle] <= block) low = middle;
                else high = middle;
            }
            const uint position = starts[low] + (block - block_starts[low]) * p.block_rows;
            entry = uint4(low, position, min(p.block_rows, starts[low + 1] - position), 0u);
        }
        blocks[block] = entry;
    }
}

kernel void group_rows_place(
    device const uint* experts [[buffer(0)]],
    device const uint* before [[buffer(1)]],
    device const uint* totals [[buffer(2)]],
    device uint* pairs [[buffer(3)]],
    device uint* offsets [[buffer(4)]],
    device uint4* blocks [[buffer(5)]],
    device uint* block_count [[buffer(6)]],
    constant Params& p [[buffer(7)]],
    uint chunk [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
    threadgroup uint counters[SIMDGROUPS * EXPERTS_MAX];
    threadgroup uint starts[EXPERTS_MAX + 1];
    threadgroup uint block_starts[EXPERTS_MAX + 1];
    threadgroup uint partial[2 * SIMDGROUPS];
    place<true>(experts, before, totals, pairs, offsets, blocks, block_count, p, counters, starts, block_starts,
                partial, chunk, thread_index, simdgroup, lane);
}

// All of it, for one chunk.
kernel void group_rows_once(
    device const uint* experts [[buffer(0)]],
    device uint* pairs [[buffer(1)]],
    device uint* offsets [[buffer(2)]],
    device uint4* blocks [[buffer(3)]],
    device uint* block_count [[buffer(4)]],
    constant Params& p [[buffer(5)]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
    threadgroup uint counters[SIMDGROUPS * EXPERTS_MAX];
    threadgroup uint starts[EXPERTS_MAX + 1];
    threadgroup uint block_starts[EXPERTS_MAX + 1];
    threadgroup uint partial[2 * SIMDGROUPS];
    place<false>(experts, experts, experts, pairs, offsets, blocks, block_count, p, counters, starts, block_starts,
                 partial, 0, thread_index, simdgroup, lane);
}
