// Which rows chose an expert.
#pragma once

#include "mma.cuh"

constexpr uint PAIR_THREADS = 256;

// Pairs of a row and the expert, in order, of as many as a block has threads.
struct Pairs {
    uint count;
    const uint* pair;
    const uint* row;
};

struct PairList {
    uint masks[PAIR_THREADS / 32];
    uint pair[PAIR_THREADS];
    uint row[PAIR_THREADS];
};

// Those among `experts[first ..]`, of which there are `pairs`. All threads of the block call it, and are through with what was
// found before.
inline Pairs find_pairs(const uint* experts, uint first, uint pairs, uint expert, PairList& list) {
    const uint at = first + threadIdx.x, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const bool own = at < pairs && experts[at] == expert;
    const uint mask = __ballot_sync(~0u, own);
    __syncthreads();
    if (lane == 0) list.masks[warp] = mask;
    __syncthreads();
    uint before = 0, count = 0;
#pragma unroll
    for (uint w = 0; w < PAIR_THREADS / 32; w++) {
        const uint found = __popc(list.masks[w]);
        before += w < warp ? found : 0;
        count += found;
    }
    if (own) {
        const uint place = before + __popc(mask & (1u << lane) - 1);
        list.pair[place] = at;
        list.row[place] = at / TOP_K;
    }
    __syncthreads();
    return {count, list.pair, list.row};
}
