// Floats as integers in their order.
#pragma once

// The total order (-NaN < -inf < .. < -0 < 0 < .. < inf < NaN), so that every row has one order, whatever is in it, and
// with any maths mode.
inline uint order_key(uint bits) { return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u; }
inline float key_value(uint key) {
    return as_type<float>((key & 0x80000000u) != 0 ? key & 0x7fffffffu : ~key);
}
