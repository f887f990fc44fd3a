// Choice of a row's experts by one simdgroup: each lane holds some of the logits, and rounds of maxima over all lanes
// give the experts one after the other.
#pragma once
#include "math.h"
#include "order.h"
#include "shape.h"

#define LOGITS_PER_LANE (EXPERTS_MAX / 32)

// What a lane knows after some rounds.
struct Choice {
    uint expert;   // of the round that was the last
    uint own;      // of the round whose number is the lane's
    float weight;  // exp(logit - largest logit) of `own`; 0 in lanes that have no round
};

// Rounds 0 .. `rounds` - 1 (1 ..= TOP_K of them) for the row at `logits`; of equal logits the lower expert comes first.
// All lanes of the simdgroup call it.
inline Choice choose_experts(device const float* logits, uint rounds, uint lane) {
    // Lane l holds experts l, l + 32, ...: with EXPERTS a constant of the pipeline, these stay in registers.
    uint keys[LOGITS_PER_LANE];
    bool left[LOGITS_PER_LANE];
    for (uint i = 0; i < LOGITS_PER_LANE; i++) {
        const uint expert = i * 32 + lane;
        left[i] = expert < EXPERTS;
        keys[i] = left[i] ? order_key(as_type<uint>(logits[expert])) : 0u;
    }
    Choice choice;
    choice.expert = 0;
    choice.own = 0;
    choice.weight = 0.0f;
    float largest = 0.0f;
    for (uint round = 0; round < rounds; round++) {
        uint best = 0;
        for (uint i = 0; i < LOGITS_PER_LANE; i++) {
            if (i * 32 < EXPERTS && left[i]) best = max(best, keys[i]);
        }
        best = simd_max(best);
        uint expert = 0xffffffffu;
        for (uint i = LOGITS_PER_LANE; i-- > 0;) {
            if (i * 32 < EXPERTS && left[i] && keys[i] == best) expert = i * 32 + lane;
        }
        expert = simd_min(expert);
        for (uint i = 0; i < LOGITS_PER_LANE; i++) {
            if (i * 32 + lane == expert) left[i] = false;
        }
        const float logit = key_value(best);
        if (round == 0) largest = logit;
        if (round == lane) {
            choice.own = expert;
            choice.weight = exact_exp(logit - largest);
        }
        choice.expert = expert;
    }
    return choice;
}

// Writes a row's experts and their weights, which sum to 1, after all TOP_K rounds.
inline void write_routing(thread const Choice& choice, device uint* experts, device float* weights,
                          uint lane) {
    const float sum = simd_sum(choice.weight);
    if (lane < TOP_K) {
        experts[lane] = choice.own;
        weights[lane] = choice.weight / sum;
    }
}
