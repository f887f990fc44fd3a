// 1 / (1 + e^-x), of numbers of any size: e^-|x| is at most 1.
#pragma once

inline float sigmoid(float x) {
    const float e = expf(-fabsf(x));
    return (x < 0.0f ? e : 1.0f) / (1.0f + e);
}
