// Apple's tensor operations as these kernels use them: all that names their types and descriptors is here.
//
// Nobody has compiled this. What each line rests on, by the numbers of docs/metal4.md:
// [1] A descriptor is an argument of the template `matmul2d`, (m, n, k, transpose left, transpose right, relaxed
//     precision, mode). The mode is always given: the default does not accumulate.
// [2] Extents and strides name the innermost dimension first: a matrix [rows, columns] has extents (columns, rows).
//     Left is [m, k], right [k, n] or, transposed, [n, k]; the result is [m, n].
// [3] Memory of threadgroups can only be given as `tensor_inline`; its strides are the constructor's third argument.
// [4] Elements of operands are not const: a tensor of const elements is refused.
// [5] `execution_simdgroup`: the lanes of one simdgroup compute a product together; all of them have to call `run`.
// [6] `dynamic_extent` as k: as long as the operands are. Elements beyond their extents are not read.
#pragma once
#include <metal_tensor>
#include <MetalPerformancePrimitives/MetalPerformancePrimitives.h>

#if !defined(__HAVE_TENSOR__)
#error "tensor operations need Metal 4: set the language version to 4.0"
#endif

// Matrices in bf16.
typedef metal::tensor<threadgroup bfloat, metal::dextents<int32_t, 2>, metal::tensor_inline> shared_tensor_t;
typedef metal::tensor<device bfloat, metal::dextents<int32_t, 2>, metal::tensor_inline> device_tensor_t;

// The matrix [rows, columns] whose rows start `stride` elements apart.
inline shared_tensor_t shared_tensor(threadgroup bfloat* first, int rows, int columns, int stride) {
    return shared_tensor_t(first, metal::dextents<int32_t, 2>(columns, rows), metal::array<int32_t, 2>{1, stride});
}
inline device_tensor_t device_tensor(device const bfloat* first, int rows, int columns, int stride) {
    return device_tensor_t(const_cast<device bfloat*>(first), metal::dextents<int32_t, 2>(columns, rows),
                           metal::array<int32_t, 2>{1, stride});
}

// The type of a product that a simdgroup computes, [M, K] by [K, N], or by [N, K] if TRANSPOSED: `run` adds it to f32
// sums. Macros, because a descriptor is made where the product is: that is the form that is known to compile.
#define PRODUCT_T(M, N, K, TRANSPOSED)                                                                             \
    mpp::tensor_ops::matmul2d<                                                                                     \
        mpp::tensor_ops::matmul2d_descriptor(M, N, K, false, TRANSPOSED, false,                                    \
                                             mpp::tensor_ops::matmul2d_descriptor::mode::multiply_accumulate),     \
        metal::execution_simdgroup>
// The length of a product that its operands give.
#define ANY_LENGTH static_cast<int>(metal::dynamic_extent)

// Sums of a product of such operands, spread over the lanes: undefined until `clear` (sums.h).
#define SUMS_OF(PRODUCT, LEFT_T, RIGHT_T) PRODUCT.template get_destination_cooperative_tensor<LEFT_T, RIGHT_T, float>()
