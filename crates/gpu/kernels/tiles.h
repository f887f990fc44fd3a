// Tiles of 8 x 8 as lanes hold them: of each, a lane has elements (r, c) and (r, c + 1).
//
// Where 32 indices of a product are divided into four tiles, tile s has indices 4 i + s, i = 0 ..= 7: as order does not
// matter in a product, four tiles are then loaded from bf16 memory as whole words of 8 or 16 bytes.
#pragma once
#include "math.h"

inline uint tile_row(uint lane) { return ((lane >> 4) << 2) + ((lane >> 1) & 3); }
inline uint tile_column(uint lane) { return ((lane >> 3) & 1) * 4 + (lane & 1) * 2; }

inline simdgroup_float8x8 zero_tile() { return make_filled_simdgroup_matrix<float, 8, 8>(0.0f); }

inline void set_tile(thread simdgroup_float8x8& tile, float first, float second) {
    tile.thread_elements()[0] = first;
    tile.thread_elements()[1] = second;
}

inline void scale_tile(thread simdgroup_float8x8& tile, float factor) {
    set_tile(tile, factor * tile.thread_elements()[0], factor * tile.thread_elements()[1]);
}

// Four tiles [row, index] from the 8 values of the lane's row from index 4 c on.
inline void set_rows(thread simdgroup_float8x8* tiles, uint4 words) {
    set_tile(tiles[0], first_bf16(words.x), first_bf16(words.z));
    set_tile(tiles[1], second_bf16(words.x), second_bf16(words.z));
    set_tile(tiles[2], first_bf16(words.y), first_bf16(words.w));
    set_tile(tiles[3], second_bf16(words.y), second_bf16(words.w));
}

// Four tiles [index, row] from the four values of rows c and c + 1 from index 4 r on.
inline void set_transposed(thread simdgroup_float8x8* tiles, uint2 words0, uint2 words1) {
    set_tile(tiles[0], first_bf16(words0.x), first_bf16(words1.x));
    set_tile(tiles[1], second_bf16(words0.x), second_bf16(words1.x));
    set_tile(tiles[2], first_bf16(words0.y), first_bf16(words1.y));
    set_tile(tiles[3], second_bf16(words0.y), second_bf16(words1.y));
}
