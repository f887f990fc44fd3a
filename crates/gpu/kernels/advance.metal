// From one decode step to the next without the host: chosen tokens become input, positions and counters go on, slots of
// state change places.
#include <metal_stdlib>
using namespace metal;
#include "sampler.h"
#include "tables.h"

struct AdvanceParams {
    uint rows;      // one of each span
    uint steps;     // whose tokens are kept
    uint sampled;   // whether there are samplers
};

kernel void advance(
    device const uint* chosen [[buffer(0)]],
    device uint* tokens [[buffer(1)]],
    device uint* positions [[buffer(2)]],
    device Span* spans [[buffer(3)]],
    device Sampler* samplers [[buffer(4)]],
    device uint* kept [[buffer(5)]],
    device uint* step [[buffer(6)]],
    constant AdvanceParams& p [[buffer(7)]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint threads [[threads_per_threadgroup]]) {
    const uint now = step[0];
    threadgroup_barrier(mem_flags::mem_device);
    if (thread_index == 0) step[0] = now + 1;
    for (uint row = thread_index; row < p.rows; row += threads) {
        const uint token = chosen[row];
        tokens[row] = token;
        kept[now % p.steps * p.rows + row] = token;
        positions[row] += 1;
        const uint slot = spans[row].slot_in;
        spans[row].slot_in = spans[row].slot_out;
        spans[row].slot_out = slot;
        spans[row].position += 1;
        if (p.sampled != 0) {
            const uint counter = samplers[row].counter_low + 1;
            samplers[row].counter_low = counter;
            if (counter == 0) samplers[row].counter_high += 1;
        }
    }
}
