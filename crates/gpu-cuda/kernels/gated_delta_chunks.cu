// What the recurrence needs of each chunk and no state, on tensor cores: the twin of `gated_delta_chunks` in
// gated_delta.metal, which has the formulas. Its scratch is laid out for the twin of `gated_delta_scan` alone.
//
// Products of q and k are of bf16 as it is stored. All others have f32 values on one side or both: each is split into two
// of bf16, so that 16 bits of it count, and the triangular inverse on the diagonal is computed in f32.
#include "gated_delta.cuh"
#include "layout.cuh"

constexpr uint THREADS = 256;
constexpr float LOG_DECAY_MIN = -30.0f;  // leaves 1e-13 of the state, which nothing shows; sums stay exact

struct Shared {
    uint4 q[CHUNK * ROW_CHUNKS], k[CHUNK * ROW_CHUNKS], v[CHUNK * ROW_CHUNKS];
    uint2 lower[TRIANGLE][32];             // tiles of -L below the diagonal blocks, of the inverse on them, split
    float diagonal[ROW_BLOCKS][16][16];    // blocks of -L, then of the inverse
    float sums[CHUNK];                     // G
    float betas[CHUNK];
    float scales[2][CHUNK];                // of keys and of values on the right-hand side
};
static_assert(sizeof(Shared) == SHARED, "all there is");

// (I - N)^-1 of a strictly lower N [16, 16], in place, by substitution. A lane has a column; half a warp idles.
inline void invert(float (*block)[16], uint lane) {
    float x[16];
#pragma unroll
    for (uint i = 0; i < 16; i++) {
        x[i] = i == lane % 16 ? 1.0f : 0.0f;
#pragma unroll
        for (uint m = 0; m < i; m++) x[i] = __fmaf_rn(block[i][m], x[m], x[i]);
    }
    __syncwarp();
    if (lane < 16) {
#pragma unroll
        for (uint i = 0; i < 16; i++) block[i][lane] = x[i];
    }
    __syncwarp();
}

// Grid [value heads, chunks]. q, k bf16 [rows, key heads * 128]; v bf16 [rows, value heads * 128]; beta, log_decay f32
// [rows, value heads].
extern "C" __global__ void __launch_bounds__(THREADS, 3) ENTRY(
    const uint4* q, const uint4* k, const uint4* v, const float* beta, const float* log_decay, const Chunk* chunks,
    uint4* minus_w, float4* u0, uint2* attention, float* decays) {
    start_next();
    wait_for_previous();
    extern __shared__ uint4 dynamic[];
    Shared& shared = *reinterpret_cast<Shared*>(dynamic);
    const uint head = blockIdx.x, key_head = key_head_of(head);
    const uint first_row = chunks[blockIdx.y].first_row, rows = chunks[blockIdx.y].rows;
    const size_t item = size_t(blockIdx.y) * VALUE_HEADS + head;
    const uint warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const uint row = lane / 4, pair = lane % 4 * 2;  // of a lane's part of products

    const uint q_at = shared_address(shared.q), k_at = shared_address(shared.k), v_at = shared_address(shared.v);
    copy_rows<THREADS>(q_at, q, KEY_HEADS, key_head, first_row, rows);
    copy_rows<THREADS>(k_at, k, KEY_HEADS, key_head, first_row, rows);
    copy_rows<THREADS>(v_at, v, VALUE_HEADS, head, first_row, rows);
    copies_end();
    // A lane of the first warp sums two rows, then all those before. Rows that the chunk lacks change nothing.
    if (warp == 0) {
        float g[2];
#pragma unroll
        for (uint i = 0; i < 2; i++) {
            const uint index = 2 * lane + i;
            const size_t at = size_t(first_row + index) * VALUE_HEADS + head;
            g[i] = index < rows ? fmaxf(log_decay[at], LOG_DECAY_MIN) : 0.0f;
            shared.betas[index] = index < rows ? beta[at] : 0.0f;
        }
        float sum = g[0] + g[1];
#pragma unroll
        for (uint distance = 1; distance < 32; distance *= 2) {
            const float before = __shfl_up_sync(~0u, sum, distance);
            if (lane >= distance) sum = before + sum;
        }
        const float before = __shfl_up_sync(~0u, sum, 1);
        shared.sums[2 * lane] = (lane == 0 ? 0.0f : before) + g[0];
        shared.sums[2 * lane + 1] = sum;
    }
    copies_wait<0>();
    __syncthreads();
    if (threadIdx.x < CHUNK) {
        const float sum = shared.sums[threadIdx.x], e = expf(sum), b = shared.betas[threadIdx.x];
        decays[item * 2 * CHUNK + threadIdx.x] = e;
        decays[item * 2 * CHUNK + CHUNK + threadIdx.x] = expf(shared.sums[CHUNK - 1] - sum);
        shared.scales[0][threadIdx.x] = -b * e;
        shared.scales[1][threadIdx.x] = b;
    }

    // Warp i takes 16 rows of K K^T, or of Q K^T: those that share a scheduler have as much to do as others.
    {
        const bool is_query = warp >= ROW_BLOCKS;
        const uint block = is_query ? 2 * ROW_BLOCKS - 1 - warp : warp;
        const uint left_at = (is_query ? q_at : k_at) + (16 * block + lane % 16) * ROW_CHUNKS * 16;
        const uint right_at = k_at + (lane / 16 * 8 + lane % 8) * ROW_CHUNKS * 16;
        float products[ROW_TILES][4] = {};
#pragma unroll
        for (uint t = 0; t < KEY_BLOCKS; t++) {
            uint left[4], right[4];
            ldmatrix(left, left_at + ((2 * t + lane / 16) ^ lane % 8) * 16);
#pragma unroll
            for (uint j = 0; j < ROW_BLOCKS; j++) {
                if (j <= block) {
                    ldmatrix(right, right_at + j * 16 * ROW_CHUNKS * 16 + ((2 * t + lane / 8 % 2) ^ lane % 8) * 16);
                    mma(products[2 * j], left, right[0], right[1]);
                    mma(products[2 * j + 1], left, right[2], right[3]);
                }
            }
        }
#pragma unroll
        for (uint h = 0; h < 2; h++) {
            const uint i = 16 * block + 8 * h + row, tile_row = 2 * block + h;
            const float sum = shared.sums[i], scale = is_query ? 1.0f : -shared.betas[i];
#pragma unroll
            for (uint tile = 0; tile < ROW_TILES; tile++) {
                if (tile < 2 * block + 2) {
                    float values[2];
#pragma unroll
                    for (uint e = 0; e < 2; e++) {
                        // Where i < j the difference is positive and may overflow: it is replaced before, the result after.
                        const uint j = 8 * tile + pair + e;
                        const float decay = expf(fminf(sum - shared.sums[j], 0.0f));
                        const bool exists = is_query ? j <= i : j < i;
                        values[e] = exists ? scale * products[tile][2 * h + e] * decay : 0.0f;
                    }
                    if (!is_query && tile >= 2 * block) {
                        shared.diagonal[block][8 * h + row][8 * (tile - 2 * block) + pair] = values[0];
                        shared.diagonal[block][8 * h + row][8 * (tile - 2 * block) + pair + 1] = values[1];
                    } else if (tile <= tile_row) {
                        uint2 words;
                        split(values[0], values[1], words.x, words.y);
                        const uint index = triangle_index(tile_row, tile);
                        if (is_query) attention[(item * TRIANGLE + index) * 32 + lane] = words;
                        else shared.lower[index][lane] = words;
                    }
                }
            }
        }
        if (!is_query) {
            __syncwarp();
            invert(shared.diagonal[block], lane);
#pragma unroll
            for (uint i = 0; i < 2; i++) {
#pragma unroll
                for (uint j = 0; j <= i; j++) {
                    const float* at = &shared.diagonal[block][8 * i + row][8 * j + pair];
                    uint2 words;
                    split(at[0], at[1], words.x, words.y);
                    shared.lower[triangle_index(2 * block + i, 2 * block + j)][lane] = words;
                }
            }
        }
    }
    __syncthreads();

    // L X = [-beta e^G K | beta V] by blocks of 16 rows, 32 columns in each warp: X_i = L_ii^-1 (B_i - sum L_im X_m). All of
    // it is transposed, columns by rows, so that what was found is the left side of what follows.
    const bool is_key = warp < 4;
    const uint group = warp % 4;
    const float* scales = shared.scales[is_key ? 0 : 1];
    const uint source = (is_key ? k_at : v_at) + (lane / 16 * 8 + lane % 8) * ROW_CHUNKS * 16;
    uint found_high[ROW_BLOCKS - 1][2][4], found_low[ROW_BLOCKS - 1][2][4];
#pragma unroll
    for (uint i = 0; i < ROW_BLOCKS; i++) {
#pragma unroll
        for (uint c = 0; c < 2; c++) {  // blocks of 16 columns
            const uint column_block = 2 * group + c;
            uint words[4];
            ldmatrix_transposed(words, source + i * 16 * ROW_CHUNKS * 16 + ((2 * column_block + lane / 8 % 2) ^ lane % 8) * 16);
            float right_hand[2][4];
#pragma unroll
            for (uint n = 0; n < 2; n++) {
                const float scale0 = scales[16 * i + 8 * n + pair], scale1 = scales[16 * i + 8 * n + pair + 1];
#pragma unroll
                for (uint h = 0; h < 2; h++) {
                    right_hand[n][2 * h] = scale0 * first_bf16(words[2 * n + h]);
                    right_hand[n][2 * h + 1] = scale1 * second_bf16(words[2 * n + h]);
                }
            }
#pragma unroll
            for (uint m = 0; m < i; m++) {
#pragma unroll
                for (uint n = 0; n < 2; n++) {
                    const uint2 right0 = shared.lower[triangle_index(2 * i + n, 2 * m)][lane];
                    const uint2 right1 = shared.lower[triangle_index(2 * i + n, 2 * m + 1)][lane];
                    mma_split(right_hand[n], found_high[m][c], found_low[m][c], right0.x, right1.x, right0.y, right1.y);
                }
            }
            uint high[4], low[4];
            split_left(right_hand[0], right_hand[1], high, low);
            float x[2][4] = {};
            const uint2 first = shared.lower[triangle_index(2 * i, 2 * i)][lane];
            mma_split(x[0], high, low, first.x, 0, first.y, 0);
            const uint2 second0 = shared.lower[triangle_index(2 * i + 1, 2 * i)][lane];
            const uint2 second1 = shared.lower[triangle_index(2 * i + 1, 2 * i + 1)][lane];
            mma_split(x[1], high, low, second0.x, second1.x, second0.y, second1.y);
            if (i + 1 < ROW_BLOCKS || is_key) split_left(x[0], x[1], high, low);
            if (i + 1 < ROW_BLOCKS) {
#pragma unroll
                for (uint e = 0; e < 4; e++) {
                    found_high[i][c][e] = high[e];
                    found_low[i][c][e] = low[e];
                }
            }
#pragma unroll
            for (uint n = 0; n < 2; n++) {
                if (is_key) {
                    minus_w[item * FACTOR_QUADS + ((2 * i + n) * KEY_BLOCKS + column_block) * 32 + lane] = make_uint4(
                        transposed(high[2 * n]), transposed(high[2 * n + 1]), transposed(low[2 * n]), transposed(low[2 * n + 1]));
                } else {
                    u0[item * FACTOR_QUADS + (column_block * ROW_TILES + 2 * i + n) * 32 + lane] =
                        make_float4(x[n][0], x[n][1], x[n][2], x[n][3]);
                }
            }
        }
    }
}
LAYOUT_OF(ENTRY);
