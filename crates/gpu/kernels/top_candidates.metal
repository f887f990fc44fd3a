// The 64 largest logits of each row in order: those of blocks first, then of their candidates. A row with a logit that is
// not finite has none.
#include <metal_stdlib>
using namespace metal;
#include "logits.h"
#include "order.h"
#include "sampler.h"

#define THREADS (32 * SIMDGROUPS)
#define OWN (BLOCK / THREADS)  // values of a thread

// An integer in the order of values, above 0: 0 is left for what is no value. Both zeros are equal.
inline uint order_of(float value) {
    const uint bits = as_type<uint>(value);
    return order_key(bits == 0x80000000u ? 0u : bits);
}

// How many of all threads' values satisfy something, of which this thread has `own`. Calls must take turns with two
// arrays.
inline uint count_all(uint own, threadgroup uint* partial, uint simdgroup, uint lane) {
    const uint sum = simd_sum(own);
    if (lane == 0) partial[simdgroup] = sum;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    uint total = 0;
    for (uint i = 0; i < SIMDGROUPS; i++) total += partial[i];
    return total;
}

// For each of a thread's values that is flagged, how many flagged ones lie in front of it; value i of a thread is value
// i * THREADS + thread of the block.
inline void places(uint flags, thread uint* place, threadgroup uint* before, uint simdgroup, uint lane) {
    uint own_before[OWN];
    for (uint i = 0; i < OWN; i++) {
        const uint flag = flags >> i & 1u;
        own_before[i] = simd_prefix_exclusive_sum(flag);
        if (lane == 31) before[i * SIMDGROUPS + simdgroup] = own_before[i] + flag;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (simdgroup == 0) {
        uint sums[OWN * SIMDGROUPS / 32];
        uint sum = 0;
        for (uint i = 0; i < OWN * SIMDGROUPS / 32; i++) {
            sums[i] = sum;
            sum += before[lane * (OWN * SIMDGROUPS / 32) + i];
        }
        const uint first = simd_prefix_exclusive_sum(sum);
        for (uint i = 0; i < OWN * SIMDGROUPS / 32; i++) before[lane * (OWN * SIMDGROUPS / 32) + i] = first + sums[i];
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint i = 0; i < OWN; i++) place[i] = before[i * SIMDGROUPS + simdgroup] + own_before[i];
    threadgroup_barrier(mem_flags::mem_threadgroup);
}

// Marks the CANDIDATES largest keys of a block, of equal ones the first, and gives each its place among them.
inline uint choose(thread const uint* keys, thread uint* place, threadgroup uint* counts, threadgroup uint* before,
                   uint simdgroup, uint lane) {
    // The largest threshold that so many keys reach, bit by bit.
    uint threshold = 0;
    for (uint bit = 32; bit-- > 0;) {
        const uint raised = threshold | 1u << bit;
        uint own = 0;
        for (uint i = 0; i < OWN; i++) own += keys[i] >= raised ? 1u : 0u;
        if (count_all(own, counts + (bit & 1) * SIMDGROUPS, simdgroup, lane) >= CANDIDATES) threshold = raised;
    }
    uint above = 0, at = 0;
    for (uint i = 0; i < OWN; i++) {
        above |= keys[i] > threshold ? 1u << i : 0u;
        at |= keys[i] == threshold ? 1u << i : 0u;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    const uint wanted = CANDIDATES - count_all(popcount(above), counts, simdgroup, lane);
    places(at, place, before, simdgroup, lane);
    uint chosen = above;
    for (uint i = 0; i < OWN; i++) chosen |= (at >> i & 1u) != 0 && place[i] < wanted ? 1u << i : 0u;
    places(chosen, place, before, simdgroup, lane);
    return chosen;
}

kernel void top_candidates_blocks(
    device const float* logits [[buffer(0)]],
    device uint* keys_out [[buffer(1)]],
    device uint* tokens_out [[buffer(2)]],
    device uint* bad_out [[buffer(3)]],
    constant LogitsParams& p [[buffer(4)]],
    uint2 group [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
    threadgroup uint counts[2 * SIMDGROUPS];
    threadgroup uint before[OWN * SIMDGROUPS];
    device const float* row = logits + size_t(group.y) * p.width;
    uint keys[OWN], place[OWN];
    uint bad = 0;
    for (uint i = 0; i < OWN; i++) {
        const uint token = group.x * BLOCK + i * THREADS + thread_index;
        keys[i] = 0;
        if (token < p.count) {
            const float logit = row[token];
            // By the bits of the exponent, which hold whatever the compiler takes to be absent.
            bad += (as_type<uint>(logit) & 0x7f800000u) == 0x7f800000u ? 1u : 0u;
            keys[i] = order_of(logit);
        }
    }
    const uint chosen = choose(keys, place, counts, before, simdgroup, lane);
    const uint block = group.y * p.blocks + group.x;
    for (uint i = 0; i < OWN; i++) {
        if ((chosen >> i & 1u) != 0) {
            keys_out[block * CANDIDATES + place[i]] = keys[i];
            tokens_out[block * CANDIDATES + place[i]] = group.x * BLOCK + i * THREADS + thread_index;
        }
    }
    const uint all_bad = count_all(bad, counts + SIMDGROUPS, simdgroup, lane);
    if (thread_index == 0) bad_out[block] = all_bad;
}

kernel void top_candidates_merge(
    device const uint* block_keys [[buffer(0)]],
    device const uint* block_tokens [[buffer(1)]],
    device const uint* bad [[buffer(2)]],
    device float* logits [[buffer(3)]],
    device uint* tokens [[buffer(4)]],
    constant LogitsParams& p [[buffer(5)]],
    uint row [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
    threadgroup uint counts[2 * SIMDGROUPS];
    threadgroup uint before[OWN * SIMDGROUPS];
    threadgroup uint chosen_keys[CANDIDATES];
    threadgroup uint chosen_tokens[CANDIDATES];
    const uint count = p.blocks * CANDIDATES;
    block_keys += row * count;
    block_tokens += row * count;
    uint keys[OWN], place[OWN];
    for (uint i = 0; i < OWN; i++) {
        const uint at = i * THREADS + thread_index;
        keys[i] = at < count ? block_keys[at] : 0;
    }
    // Blocks and their candidates are in the order of tokens, so of equal ones the lowest are chosen here too.
    const uint chosen = choose(keys, place, counts, before, simdgroup, lane);
    for (uint i = 0; i < OWN; i++) {
        if ((chosen >> i & 1u) != 0) {
            chosen_keys[place[i]] = keys[i];
            chosen_tokens[place[i]] = keys[i] > 0 ? block_tokens[i * THREADS + thread_index] : NO_TOKEN;
        }
    }
    uint own_bad = 0;
    for (uint i = thread_index; i < p.blocks; i += THREADS) own_bad += bad[row * p.blocks + i];
    const bool is_bad = count_all(own_bad, counts + SIMDGROUPS, simdgroup, lane) > 0;
    if (thread_index < CANDIDATES) {
        // Equal keys are in the order of tokens already.
        const uint key = chosen_keys[thread_index];
        uint rank = 0;
        for (uint i = 0; i < CANDIDATES; i++) {
            rank += chosen_keys[i] > key || (chosen_keys[i] == key && i < thread_index) ? 1u : 0u;
        }
        const bool is_none = is_bad || key == 0;
        logits[row * CANDIDATES + rank] = is_none ? 0.0f : key_value(key);
        tokens[row * CANDIDATES + rank] = is_none ? NO_TOKEN : chosen_tokens[thread_index];
    }
}
