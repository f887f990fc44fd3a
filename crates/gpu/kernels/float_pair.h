// Numbers as unevaluated sums of two floats: 48 bits where a GPU has no double (Dekker 1971; Hida, Li and Bailey 2001).
// Where a compiler reorders sums, what is left is the precision of a float.
#pragma once

// hi + lo: hi is the sum rounded to a float.
struct FloatPair {
    float hi;
    float lo;
};

inline FloatPair float_pair(float hi, float lo) {
    FloatPair pair;
    pair.hi = hi;
    pair.lo = lo;
    return pair;
}

// a + b, exactly. |a| >= |b|, or a is 0.
inline FloatPair ordered_sum(float a, float b) {
    const float sum = a + b;
    return float_pair(sum, b - (sum - a));
}

// a + b, exactly.
inline FloatPair exact_sum(float a, float b) {
    const float sum = a + b;
    const float part = sum - a;
    return float_pair(sum, (a - (sum - part)) + (b - part));
}

inline FloatPair pair_sum(FloatPair a, FloatPair b) {
    FloatPair sum = exact_sum(a.hi, b.hi);
    const FloatPair rest = exact_sum(a.lo, b.lo);
    sum = ordered_sum(sum.hi, sum.lo + rest.hi);
    return ordered_sum(sum.hi, sum.lo + rest.lo);
}

inline FloatPair pair_product(FloatPair a, FloatPair b) {
    const float product = a.hi * b.hi;
    const float rest = fma(a.hi, b.hi, -product) + (a.hi * b.lo + a.lo * b.hi);
    return ordered_sum(product, rest);
}

inline bool pair_less(FloatPair a, FloatPair b) { return a.hi < b.hi || (a.hi == b.hi && a.lo < b.lo); }

// e^x for -80 <= x <= 0.
inline FloatPair pair_exp(FloatPair x) {
    // 2^n e^r, where |r| is at most ln(2)/2. Parts of ln(2) are so short that n times each is exact.
    const float n = rint(x.hi * 1.44269504f);
    FloatPair r = exact_sum(x.hi, -n * 0.693145752f);
    r = pair_sum(r, float_pair(-n * 1.42860517e-6f, x.lo));
    r = pair_sum(r, float_pair(-n * 1.64659497e-12f, 0.0f));
    // e^s - 1 for s = r / 16 by its Taylor series, whose eighth term is below 2^-60.
    const FloatPair s = float_pair(r.hi * 0.0625f, r.lo * 0.0625f);
    FloatPair y = pair_sum(pair_product(s, float_pair(1.98412701e-4f, -2.72559687e-12f)),
                           float_pair(1.38888892e-3f, -3.36310944e-11f));
    y = pair_sum(pair_product(s, y), float_pair(8.33333377e-3f, -4.34617203e-10f));
    y = pair_sum(pair_product(s, y), float_pair(4.16666679e-2f, -1.24176347e-9f));
    y = pair_sum(pair_product(s, y), float_pair(0.166666672f, -4.96705388e-9f));
    y = pair_sum(pair_product(s, y), float_pair(0.5f, 0.0f));
    y = pair_sum(pair_product(s, y), float_pair(1.0f, 0.0f));
    y = pair_product(s, y);
    // (1 + y)^2 = 1 + (2 y + y^2), four times.
    for (uint i = 0; i < 4; i++) {
        y = pair_sum(float_pair(2.0f * y.hi, 2.0f * y.lo), pair_product(y, y));
    }
    y = pair_sum(float_pair(1.0f, 0.0f), y);
    const float power = as_type<float>(uint(int(n) + 127) << 23);
    return float_pair(y.hi * power, y.lo * power);
}
