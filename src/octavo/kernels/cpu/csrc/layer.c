// Several kernels of a layer in one call: in a decode step each takes a few microseconds, and so does coming here.

#include <stddef.h>

#include "attention.h"
#include "linear.h"
#include "rowwise.h"
#include "scratch.h"

// What happens to projected heads x [tokens, Hq + 2 Hkv, dim], which are overwritten: queries and keys are normalised,
// where there are weights, and rotated, keys and values stored, and all attended to -> out [tokens, Hq, dim].
// Returns 0, or 1 if memory ran out.
int32_t octavo_attend_qkv(float *x, int64_t tokens, int64_t dim, const float *cos, const float *sin,
                          const float *q_weight, const float *k_weight, float eps, const octavo_rows *k,
                          const octavo_rows *v, const octavo_sequence *sequences, int64_t count,
                          const octavo_heads *heads, const float *sinks, float *out) {
    const int64_t num_q = heads->num_q_heads, num_kv = heads->num_kv_heads, stride = (num_q + 2 * num_kv) * dim;
    octavo_rotate(x, tokens, stride, num_q, num_kv, dim, cos, sin, q_weight, k_weight, eps);
    octavo_store(x + num_q * dim, stride, num_kv, k, sequences, count);
    octavo_store(x + (num_q + num_kv) * dim, stride, num_kv, v, sequences, count);
    return octavo_attend(x, stride, k, v, sequences, count, heads, sinks, out);
}

// y = down(activation(gate(x)) * up(x)): x [rows, columns], y [rows, sum of the rows of `down`], both contiguous;
// gate_up has 2 * width rows, gates before values. Returns 0, or 1 if memory ran out.
int32_t octavo_gated_mlp(const float *x, int64_t rows, int64_t columns, const octavo_weight *gate_up,
                         int32_t gate_up_parts, int64_t width, int32_t gelu, const octavo_weight *down,
                         int32_t down_parts, float *y) {
    int64_t y_width = 0;
    for (int32_t i = 0; i < down_parts; i++) y_width += down[i].rows;
    float *both = octavo_scratch(SCRATCH_LAYER, rows * 3 * width * 4);
    if (both == NULL) return 1;
    float *gated = both + rows * 2 * width;
    if (octavo_linear(gate_up, gate_up_parts, columns, x, columns, rows, both, 2 * width)) return 1;
    octavo_gate(both, rows, width, gelu, gated);
    return octavo_linear(down, down_parts, width, gated, width, rows, y, y_width);
}
