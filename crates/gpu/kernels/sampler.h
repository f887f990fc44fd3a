// How the next token of a row is drawn. `src/sample.rs` has the same.
#pragma once

#define CANDIDATES 64          // tokens that may be drawn
#define NO_TOKEN 0xffffffffu   // in place of one: there is none

struct Sampler {
    uint seed_low;
    uint seed_high;
    uint counter_low;   // of draws from that seed
    uint counter_high;
    float temperature;  // 0: the most likely
    uint top_k;         // 1 ..= 64
    float top_p;
    float min_p;
};
