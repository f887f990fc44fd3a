// A model of Apple's tensor operations for the host driver, in place of kernels/metal4/tensors.h: what these kernels take
// them to do. It poisons results whose operands are too small, scatters elements over lanes in an order of its own, and
// has a place that holds none.
#pragma once
using namespace metal;

template <class Pointer> struct matrix_t {
    Pointer first;
    int rows, columns, stride;
    float element(int row, int column) { return float(first[row * stride + column]); }
};
typedef matrix_t<threadgroup bfloat*> shared_tensor_t;
typedef matrix_t<device const bfloat*> device_tensor_t;

inline shared_tensor_t shared_tensor(threadgroup bfloat* first, int rows, int columns, int stride) {
    return shared_tensor_t{first, rows, columns, stride};
}
inline device_tensor_t device_tensor(device const bfloat* first, int rows, int columns, int stride) {
    return device_tensor_t{first, rows, columns, stride};
}

struct place_t {
    int column, row;
    int operator[](int i) const { return i == 0 ? column : row; }
};

#define UNDEFINED as_type<float>(0xffffffffu)

template <int M, int N> struct sums_t {
    uint lane;
    float values[M * N / 32 + 1];
    ushort get_capacity() const { return M * N / 32 + 1; }
    bool is_valid_element(ushort i) const { return i != 3; }
    thread float& operator[](ushort i) { return values[i]; }
    place_t get_multidimensional_index(ushort i) const {
        const int at = int(i > 3 ? i - 1 : i) * 32 + int(lane * 5 % 32);
        return place_t{at % N, at / N};
    }
};

template <int M, int N, int K, bool TRANSPOSED> struct product_t {
    template <class Left, class Right, class Sum> sums_t<M, N> get_destination_cooperative_tensor() const {
        sums_t<M, N> sums;
        sums.lane = simd_prefix_exclusive_sum(1u);
        for (ushort i = 0; i < sums.get_capacity(); i++) sums[i] = UNDEFINED;
        return sums;
    }
    // All lanes have to call it. What others wrote to threadgroup memory is there only after a barrier of theirs.
    template <class Left, class Right> void run(thread Left& left, thread Right& right, thread sums_t<M, N>& sums) const {
        simdgroup_barrier(mem_flags::mem_none);
        const int length = K < 0 ? left.columns : K;
        const bool fits = left.rows >= M && left.columns >= length && length >= 1 &&
            (TRANSPOSED ? right.rows >= N && right.columns >= length : right.rows >= length && right.columns >= N);
        for (ushort i = 0; i < sums.get_capacity(); i++) {
            if (!sums.is_valid_element(i)) continue;
            const place_t at = sums.get_multidimensional_index(i);
            float sum = sums[i];
            for (int k = 0; k < length; k++) {
                sum = fma(left.element(at[1], k), TRANSPOSED ? right.element(at[0], k) : right.element(k, at[0]), sum);
            }
            sums[i] = fits ? sum : UNDEFINED;
        }
        simdgroup_barrier(mem_flags::mem_none);
    }
};

#define PRODUCT_T(M, N, K, TRANSPOSED) product_t<M, N, K, TRANSPOSED>
#define ANY_LENGTH -1
#define SUMS_OF(PRODUCT, LEFT_T, RIGHT_T) PRODUCT.template get_destination_cooperative_tensor<LEFT_T, RIGHT_T, float>()
