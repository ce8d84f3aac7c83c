// What a gate makes of its values.
#ifndef OCTAVO_GATE_H
#define OCTAVO_GATE_H

#include "vec.h"

// SiLU, or GELU in its tanh form: x · sigmoid(x), and x · sigmoid(2 · sqrt(2/pi) · (x + 0.044715 x³)).
INLINE vf activate(vf x, int gelu) {
    vf inner = gelu ? splat(1.5957691216f) * fma_v(splat(0.044715f) * x * x, x, x) : x;
    return x / (splat(1.0f) + exp_v(-inner));
}

#endif
