// What both forms of attention, few rows and many, have in common.
#pragma once
#include "math.h"
#include "pages.h"

#define SCORE_SCALE 0.0625f  // 1 / sqrt(HEAD_DIM)
#define LOWEST -3.0e38f      // below all scores; an infinity does not survive fast maths
