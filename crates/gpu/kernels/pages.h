// Where keys and values of a sequence lie: pages of [kv heads, 64 tokens, 256] in bf16.
#pragma once
#include "shape.h"

// Query heads that share a head of keys and values.
inline uint heads_of_group() { return HEADS / KV_HEADS; }

// Element of the pool at which a head's 64 tokens in a page begin.
inline ulong tile_of_page(uint page, uint kv_head) {
    return (ulong(page) * KV_HEADS + kv_head) * (PAGE_TOKENS * HEAD_DIM);
}
