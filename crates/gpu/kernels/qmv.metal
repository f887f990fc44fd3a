// Products of few rows with quantised matrices: y = W norm(x), for up to eight rows at once.
//
// What counts is that each byte of W is read once, and that many loads are under way. A simdgroup computes four outputs
// of all rows; each of its lanes has 16 consecutive values of the four matrix rows, loads the next 16 while it works, and
// the first before x is even known. x (times the norm's scale) lies in threadgroup memory; the factor of an RMS norm
// multiplies the sums at the end. Each row's sums are taken in the same order whatever the number of rows.
#include <metal_stdlib>
using namespace metal;
#include "math.h"
#include "quantized.h"
#include "family.h"

constant uint BITS [[function_constant(16)]];        // of the matrices, or of gate
constant uint IN_DIM [[function_constant(17)]];      // input width, a multiple of 64
constant uint OTHER_BITS [[function_constant(18)]];  // of up
constant uint NORM [[function_constant(19)]];        // one of those below

#define NORM_NONE 0
#define NORM_RMS 1    // of the row
#define NORM_GATED 2  // of heads of 128, times silu(z)

#define SIMDGROUPS 4
#define OUTPUTS 4        // of a simdgroup

struct QmvParams {
    uint rows;           // of the input, or selected
    uint columns[4];     // outputs of each matrix
    uint first_tile[4];  // of each matrix in the grid
    uint rounded[4];     // whether it is stored in bf16
    uint add;            // whether it is added to what is there
    uint selected;       // whether rows are selected
    float eps;
};

struct SwigluParams {
    uint rows;
    uint columns;
    uint selected;
    float eps;
};

struct Input {
    device const float* x;
    device const uint* selection;
    device const float* scale;
    device const float* z;
    uint first_row;  // of those that the threadgroup takes
    uint rows;       // of all
    uint selected;
    float eps;
};

inline Input input_of(device const float* x, device const uint* selection, device const float* scale,
                      device const float* z, uint first_row, uint rows, uint selected, float eps) {
    Input in;
    in.x = x;
    in.selection = selection;
    in.scale = scale;
    in.z = z;
    in.first_row = first_row;
    in.rows = rows;
    in.selected = selected;
    in.eps = eps;
    return in;
}

// Rows of a matrix from the first of a simdgroup's outputs.
struct Matrix {
    device const uint* packed;
    device const bfloat* scales;
    device const bfloat* biases;
    uint last;  // offset in rows of the last there is: outputs beyond it repeat it
};

// A lane's 16 values of each output's matrix row.
struct Piece {
    uint4 packed[OUTPUTS];
    float scale[OUTPUTS];
    float bias[OUTPUTS];
};

inline Matrix matrix_at(device const uint* packed, device const bfloat* scales, device const bfloat* biases, uint column,
                        uint columns, uint bits) {
    Matrix matrix;
    const size_t first = size_t(min(column, columns - 1)) * IN_DIM;
    matrix.packed = packed + packed_words(first, bits);
    matrix.scales = scales + first / GROUP;
    matrix.biases = biases + first / GROUP;
    matrix.last = columns - 1 - min(column, columns - 1);
    return matrix;
}

inline void load_output(thread const Matrix& matrix, uint output, uint slot, uint k, uint bits, thread Piece& piece) {
    const uint row = min(output, matrix.last);
    piece.packed[slot] = uint4(0u);
    piece.scale[slot] = piece.bias[slot] = 0.0f;
    if (within(k, IN_DIM)) {  // beyond the width all is 0
        piece.packed[slot] = load_packed16(matrix.packed + row * (IN_DIM / 32 * bits), k, bits);
        piece.scale[slot] = float(matrix.scales[row * (IN_DIM / GROUP) + k / GROUP]);
        piece.bias[slot] = float(matrix.biases[row * (IN_DIM / GROUP) + k / GROUP]);
    }
}

// Four outputs of one matrix, or two each of two.
template <bool PAIRED>
inline void load_piece(thread const Matrix& a, thread const Matrix& b, uint k, thread Piece& piece) {
    for (uint i = 0; i < OUTPUTS; i++) {
        if (PAIRED && i >= OUTPUTS / 2) {
            load_output(b, i - OUTPUTS / 2, i, k, OTHER_BITS, piece);
        } else {
            load_output(a, i, i, k, BITS, piece);
        }
    }
}

// Brings a span of each row, times the norm's scale, to threadgroup memory, zeros beyond the width; adds to the
// thread's sums of squares. Value `16 lane + 4 j + c` lies at `[j][lane][c]`: lanes will read neighbouring quadruples.
template <uint ROWS, uint TILE>
inline void stage(thread const Input& in, uint start, uint span, threadgroup float4* tile, thread float* squares,
                  uint thread_index) {
    const uint k = start + span + thread_index * 4;
    const bool is_within = within(k, IN_DIM);
    const uint to = span / 4 + (thread_index & 3) * 32 + thread_index / 4;
    for (uint n = 0; n < ROWS; n++) {
        const uint row = min(in.first_row + n, in.rows - 1);
        const size_t at = size_t(in.selected != 0 ? in.selection[row] : row) * IN_DIM + k;
        float4 value = float4(0.0f);
        if (is_within) value = *reinterpret_cast<device const float4*>(in.x + at);
        if (NORM == NORM_RMS) {
            squares[n] += dot(value, value);
            if (is_within) value = value * *reinterpret_cast<device const float4*>(in.scale + k);
        }
        if (NORM == NORM_GATED) {
            // A simdgroup has the 128 values of a head.
            const float mean = simd_sum(dot(value, value)) / float(DELTA_DIM);
            const float4 scale = *reinterpret_cast<device const float4*>(in.scale + k % DELTA_DIM);
            value = value * precise::rsqrt(mean + in.eps) * scale;
            if (is_within) {
                const float4 z = *reinterpret_cast<device const float4*>(in.z + at);
                value = value * float4(silu(z.x), silu(z.y), silu(z.z), silu(z.w));
            }
        }
        tile[n * (TILE / 4) + to] = value;
    }
}

// Eight terms of a sum of products, one after the other.
inline float dot8(thread const float4* q, float4 x0, float4 x1) {
    float sum = q[0].x * x0.x;
    sum = fma(q[0].y, x0.y, sum);
    sum = fma(q[0].z, x0.z, sum);
    sum = fma(q[0].w, x0.w, sum);
    sum = fma(q[1].x, x1.x, sum);
    sum = fma(q[1].y, x1.y, sum);
    sum = fma(q[1].z, x1.z, sum);
    return fma(q[1].w, x1.w, sum);
}

// Adds the products with half of a piece: scale * sum(q x) + bias * sum(x). Integers are unpacked once for all rows.
template <uint ROWS, uint TILE, bool PAIRED>
inline void add_half(thread const Piece& piece, uint second, threadgroup const float4* x, thread float* sums) {
    float4 q[OUTPUTS][2];
    for (uint i = 0; i < OUTPUTS; i++) {
        const uint bits = PAIRED && i >= OUTPUTS / 2 ? OTHER_BITS : BITS;
        if (second == 0) {
            unpack_first8(piece.packed[i], bits, q[i]);
        } else {
            unpack_second8(piece.packed[i], bits, q[i]);
        }
    }
    for (uint n = 0; n < ROWS; n++) {
        const float4 x0 = x[n * (TILE / 4) + second * 64], x1 = x[n * (TILE / 4) + second * 64 + 32];
        const float4 pairs = x0 + x1;
        const float sum = (pairs.x + pairs.y) + (pairs.z + pairs.w);
        for (uint i = 0; i < OUTPUTS; i++) {
            const float with_scale = fma(piece.scale[i], dot8(q[i], x0, x1), sums[i * ROWS + n]);
            sums[i * ROWS + n] = fma(piece.bias[i], sum, with_scale);
        }
    }
}

// The products of all rows with a simdgroup's outputs. Lane `n * OUTPUTS + i` gets output i of row n.
template <uint ROWS, uint TILE, bool PAIRED>
inline float multiply(thread const Input& in, thread const Matrix& a, thread const Matrix& b, threadgroup float4* tile,
                      threadgroup float* partial, uint thread_index, uint simdgroup, uint lane) {
    float sums[OUTPUTS * ROWS], squares[ROWS];
    for (uint i = 0; i < OUTPUTS * ROWS; i++) sums[i] = 0.0f;
    for (uint n = 0; n < ROWS; n++) squares[n] = 0.0f;
    Piece next;
    load_piece<PAIRED>(a, b, lane * 16, next);
    for (uint start = 0; start < IN_DIM; start += TILE) {
        if (start > 0) threadgroup_barrier(mem_flags::mem_threadgroup);
        for (uint span = 0; span < TILE && start + span < IN_DIM; span += SPAN) {
            stage<ROWS, TILE>(in, start, span, tile, squares, thread_index);
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (uint span = 0; span < TILE && start + span < IN_DIM; span += SPAN) {
            const Piece piece = next;
            if (start + span + SPAN < IN_DIM) load_piece<PAIRED>(a, b, start + span + SPAN + lane * 16, next);
            threadgroup const float4* x = tile + span / 4 + lane;
            add_half<ROWS, TILE, PAIRED>(piece, 0, x, sums);
            add_half<ROWS, TILE, PAIRED>(piece, 1, x, sums);
        }
    }
    float factors[ROWS];
    for (uint n = 0; n < ROWS; n++) factors[n] = 1.0f;
    if (NORM == NORM_RMS) {
        for (uint n = 0; n < ROWS; n++) {
            const float sum = simd_sum(squares[n]);
            if (lane == 0) partial[n * SIMDGROUPS + simdgroup] = sum;
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (uint n = 0; n < ROWS; n++) {
            threadgroup const float* part = partial + n * SIMDGROUPS;
            factors[n] = precise::rsqrt(((part[0] + part[1]) + (part[2] + part[3])) / float(IN_DIM) + in.eps);
        }
    }
    float own = 0.0f;
    for (uint n = 0; n < ROWS; n++) {
        for (uint i = 0; i < OUTPUTS; i++) {
            const float sum = simd_sum(sums[i * ROWS + n]) * factors[n];
            if (lane == n * OUTPUTS + i) own = sum;
        }
    }
    return own;
}

// out = W norm(x), or out += W norm(x), for one to four matrices side by side.
template <uint ROWS, uint TILE>
kernel void qmv(
    device const float* x [[buffer(0)]],
    device const uint* selection [[buffer(1)]],
    device const float* scale [[buffer(2)]],
    device const float* z [[buffer(3)]],
    device const uint* packed0 [[buffer(4)]],
    device const bfloat* scales0 [[buffer(5)]],
    device const bfloat* biases0 [[buffer(6)]],
    device float* out0 [[buffer(7)]],
    device const uint* packed1 [[buffer(8)]],
    device const bfloat* scales1 [[buffer(9)]],
    device const bfloat* biases1 [[buffer(10)]],
    device float* out1 [[buffer(11)]],
    device const uint* packed2 [[buffer(12)]],
    device const bfloat* scales2 [[buffer(13)]],
    device const bfloat* biases2 [[buffer(14)]],
    device float* out2 [[buffer(15)]],
    device const uint* packed3 [[buffer(16)]],
    device const bfloat* scales3 [[buffer(17)]],
    device const bfloat* biases3 [[buffer(18)]],
    device float* out3 [[buffer(19)]],
    constant QmvParams& p [[buffer(20)]],
    uint2 group [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
    threadgroup float4 tile[ROWS * TILE / 4];
    threadgroup float partial[ROWS * SIMDGROUPS];
    uint s = 0;
    for (uint i = 1; i < 4; i++) s = group.x >= p.first_tile[i] ? i : s;
    device const uint* packed = s == 0 ? packed0 : s == 1 ? packed1 : s == 2 ? packed2 : packed3;
    device const bfloat* scales = s == 0 ? scales0 : s == 1 ? scales1 : s == 2 ? scales2 : scales3;
    device const bfloat* biases = s == 0 ? biases0 : s == 1 ? biases1 : s == 2 ? biases2 : biases3;
    device float* out = s == 0 ? out0 : s == 1 ? out1 : s == 2 ? out2 : out3;
    const uint columns = p.columns[s];
    const uint column = ((group.x - p.first_tile[s]) * SIMDGROUPS + simdgroup) * OUTPUTS;

    const Input in = input_of(x, selection, scale, z, group.y * ROWS, p.rows, p.selected, p.eps);
    const Matrix matrix = matrix_at(packed, scales, biases, column, columns, BITS);
    const float own = multiply<ROWS, TILE, false>(in, matrix, matrix, tile, partial, thread_index, simdgroup, lane);

    const uint row = in.first_row + lane / OUTPUTS, own_column = column + lane % OUTPUTS;
    if (lane < ROWS * OUTPUTS && row < p.rows && own_column < columns) {
        const size_t at = size_t(row) * columns + own_column;
        if (p.rounded[s] != 0) {
            reinterpret_cast<device bfloat*>(out)[at] = bfloat(own);
        } else {
            out[at] = p.add != 0 ? out[at] + own : own;
        }
    }
}

// out = silu(gate norm(x)) * (up norm(x)). A simdgroup computes two outputs of each.
template <uint ROWS, uint TILE>
kernel void qmv_swiglu(
    device const float* x [[buffer(0)]],
    device const uint* selection [[buffer(1)]],
    device const float* scale [[buffer(2)]],
    device const float* z [[buffer(3)]],
    device const uint* gate [[buffer(4)]],
    device const bfloat* gate_scales [[buffer(5)]],
    device const bfloat* gate_biases [[buffer(6)]],
    device const uint* up [[buffer(7)]],
    device const bfloat* up_scales [[buffer(8)]],
    device const bfloat* up_biases [[buffer(9)]],
    device float* out [[buffer(10)]],
    constant SwigluParams& p [[buffer(11)]],
    uint2 group [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
    threadgroup float4 tile[ROWS * TILE / 4];
    threadgroup float partial[ROWS * SIMDGROUPS];
    const uint column = (group.x * SIMDGROUPS + simdgroup) * (OUTPUTS / 2);

    const Input in = input_of(x, selection, scale, z, group.y * ROWS, p.rows, p.selected, p.eps);
    const Matrix a = matrix_at(gate, gate_scales, gate_biases, column, p.columns, BITS);
    const Matrix b = matrix_at(up, up_scales, up_biases, column, p.columns, OTHER_BITS);
    const float own = multiply<ROWS, TILE, true>(in, a, b, tile, partial, thread_index, simdgroup, lane);

    const float own_up = simd_shuffle_down(own, OUTPUTS / 2);
    const uint row = in.first_row + lane / OUTPUTS, own_column = column + lane % OUTPUTS;
    if (lane < ROWS * OUTPUTS && lane % OUTPUTS < OUTPUTS / 2 && row < p.rows && own_column < p.columns) {
        out[size_t(row) * p.columns + own_column] = silu(own) * own_up;
    }
}

// Rows, and values of each that lie in threadgroup memory at a time.
template [[host_name("qmv_1")]] [[kernel]] decltype(qmv<1, 2048>) qmv<1, 2048>;
template [[host_name("qmv_2")]] [[kernel]] decltype(qmv<2, 1024>) qmv<2, 1024>;
template [[host_name("qmv_4")]] [[kernel]] decltype(qmv<4, 512>) qmv<4, 512>;
template [[host_name("qmv_8")]] [[kernel]] decltype(qmv<8, 512>) qmv<8, 512>;
template [[host_name("qmv_swiglu_1")]] [[kernel]] decltype(qmv_swiglu<1, 2048>) qmv_swiglu<1, 2048>;
template [[host_name("qmv_swiglu_2")]] [[kernel]] decltype(qmv_swiglu<2, 1024>) qmv_swiglu<2, 1024>;
template [[host_name("qmv_swiglu_4")]] [[kernel]] decltype(qmv_swiglu<4, 512>) qmv_swiglu<4, 512>;
template [[host_name("qmv_swiglu_8")]] [[kernel]] decltype(qmv_swiglu<8, 512>) qmv_swiglu<8, 512>;
