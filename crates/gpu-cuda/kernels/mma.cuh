// Tensor cores and asynchronous copies: instructions that CUDA C++ has no functions for. Fragments are those of the matrix
// product of [16, 16] and [16, 8] in bf16, summed in f32. Lane l, with row = l / 4 and pair = 2 * (l % 4), has
//
//     left:   words (row, pair), (row + 8, pair), (row, pair + 8), (row + 8, pair + 8), each of two columns
//     right:  words (pair, row), (pair + 8, row), each of two rows
//     sums:   elements (row, pair), (row, pair + 1), (row + 8, pair), (row + 8, pair + 1)
//
// so that sums of two neighbouring products, rounded, are the left side of another.
#pragma once

typedef unsigned int uint;

// As instructions take it.
inline uint shared_address(const void* pointer) { return static_cast<uint>(__cvta_generic_to_shared(pointer)); }

// sums += left right
inline void mma(float (&sums)[4], const uint (&left)[4], uint right0, uint right1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(right0), "r"(right1));
}

// Four matrices of [8, 8] from shared memory: lanes 8 i ..= 8 i + 7 name the rows of matrix i, 16 bytes each. Of each, a
// lane gets word (l / 4, l % 4).
inline void ldmatrix(uint (&words)[4], uint address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3]) : "r"(address) : "memory");
}

// The same of their transposes.
inline void ldmatrix_transposed(uint (&words)[4], uint address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3]) : "r"(address) : "memory");
}

// 8 or 16 bytes from shared memory.
inline void load_shared(uint (&words)[2], uint address) {
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(words[0]), "=r"(words[1]) : "r"(address) : "memory");
}
inline void load_shared(uint (&words)[4], uint address) {
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3]) : "r"(address) : "memory");
}

// Two floats, or 16 bytes, to shared memory.
inline void store_shared(uint address, float first, float second) {
    asm volatile("st.shared.v2.f32 [%0], {%1, %2};" :: "r"(address), "f"(first), "f"(second) : "memory");
}
inline void store_shared(uint address, const uint (&words)[4]) {
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};"
                 :: "r"(address), "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3]) : "memory");
}

// The transpose of one such matrix within the warp.
inline uint transposed(uint word) {
    uint result;
    asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(result) : "r"(word));
    return result;
}

// 16 bytes to shared memory, zeros if there are none: `from` is then not read.
inline void copy_async(uint to, const void* from, bool exists = true) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :: "r"(to), "l"(from), "r"(exists ? 16 : 0) : "memory");
}
// Ends a group of copies.
inline void copies_end() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits for this thread's copies, but for those of the last groups.
template <int LAST> inline void copies_wait() { asm volatile("cp.async.wait_group %0;" :: "n"(LAST) : "memory"); }

// Two values, rounded to bf16, the first in the lower half.
inline uint bf16_pair(float first, float second) {
    uint word;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(second), "f"(first));
    return word;
}
inline float first_bf16(uint word) { return __uint_as_float(word << 16); }
inline float second_bf16(uint word) { return __uint_as_float(word & 0xffff0000u); }

// Two values as sums of two of bf16 each, which keep 16 bits or more of them.
inline void split(float first, float second, uint& high, uint& low) {
    high = bf16_pair(first, second);
    low = bf16_pair(first - first_bf16(high), second - second_bf16(high));
}

// The left side of a product from two neighbouring sums.
inline void split_left(const float (&sums0)[4], const float (&sums1)[4], uint (&high)[4], uint (&low)[4]) {
    split(sums0[0], sums0[1], high[0], low[0]);
    split(sums0[2], sums0[3], high[1], low[1]);
    split(sums1[0], sums1[1], high[2], low[2]);
    split(sums1[2], sums1[3], high[3], low[3]);
}
