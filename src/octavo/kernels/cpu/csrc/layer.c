// Several kernels of a layer in one call: in a decode step each takes a few microseconds, and so does coming here.

#include <stddef.h>
#include <stdint.h>

#include "attention.h"
#include "linear.h"
#include "rowwise.h"
#include "scratch.h"

// What happens to projected heads x [tokens, Hq + 2 Hkv, dim], which are overwritten: queries and keys are normalised,
// where there are weights, and rotated, keys and values stored, and all attended to -> out [tokens, Hq, dim].
// Returns 0, or 1 if memory ran out.
int32_t octavo_attend_qkv(float *x, int64_t tokens, int64_t dim, const octavo_rotation *rotation,
                          const float *q_weight, const float *k_weight, float eps, const octavo_rows *k,
                          const octavo_rows *v, const octavo_sequence *sequences, int64_t count,
                          const octavo_heads *heads, const float *sinks, float *out) {
    const int64_t num_q = heads->num_q_heads, num_kv = heads->num_kv_heads, stride = (num_q + 2 * num_kv) * dim;
    octavo_rotate(x, tokens, stride, num_q, num_kv, dim, rotation, q_weight, k_weight, eps);
    octavo_store(x + num_q * dim, stride, num_kv, k, sequences, count);
    octavo_store(x + (num_q + num_kv) * dim, stride, num_kv, v, sequences, count);
    return octavo_attend(x, stride, k, v, sequences, count, heads, sinks, out);
}

// y = down(activation(gate(x)) * up(x)): x [rows, columns], y [rows, sum of the rows of `down`], both contiguous;
// gate_up has 2 * width rows, gates before values. Returns 0, or 1 if memory ran out.
int32_t octavo_gated_mlp(const float *x, int64_t rows, int64_t columns, const octavo_weight *gate_up,
                         int32_t gate_up_parts, int64_t width, int32_t gelu, const octavo_weight *down,
                         int32_t down_parts, float *y) {
    if (rows <= 0) return 0;
    int64_t y_width = 0;
    for (int32_t i = 0; i < down_parts; i++) y_width += down[i].rows;
    float *gated = octavo_scratch(SCRATCH_LAYER, rows * width * 4);
    if (gated == NULL) return 1;
    if (octavo_gated_linear(gate_up, gate_up_parts, columns, x, rows, width, gelu, gated)) return 1;
    return octavo_linear(down, down_parts, width, gated, width, rows, y, y_width);
}

// A matrix of `rows` rows, in parts.
typedef struct {
    const octavo_weight *parts;
    int64_t rows;
    int32_t num_parts;
} matrix;

// A layer of a transformer; NULL for norms and biases that it has not. `out_norm`s come before what a part of the layer
// gives is added to x. Gate and up have `2 * width` rows. `rotation` says which it takes, `group` how it attends.
typedef struct {
    const float *input_norm, *bias, *q_norm, *k_norm, *attention_out_norm, *mlp_norm, *mlp_out_norm;
    matrix qkv, o, gate_up, down;
    float eps;
    int32_t gelu, rotation;
} octavo_block;

// Where a layer keeps keys and values: k and v of blocks, or of rings.
typedef struct {
    const octavo_rows *blocks[2], *rings[2];
    const octavo_heads *heads;
    const float *sinks;
    int64_t group;
} octavo_block_store;

// Of a group of layers, the step's sequences, which lie in rings or else in blocks.
typedef struct {
    const octavo_sequence *sequences;
    int64_t count, in_rings;
} octavo_group_step;

static int32_t multiply(const matrix *w, const float *x, int64_t columns, int64_t tokens, float *y) {
    return octavo_linear(w->parts, w->num_parts, columns, x, columns, tokens, y, w->rows);
}

// All layers over x [tokens, width], which is overwritten; y gets the norm, by `norm`, of what x is in the end. Bit for
// bit what the kernels give one by one. Returns 0, or 1 if memory ran out.
int32_t octavo_blocks(const octavo_block *blocks, const octavo_block_store *stores, int64_t count,
                      const octavo_group_step *groups, const octavo_rotation *rotations, float *x, int64_t tokens,
                      int64_t width, const float *norm, float eps, float *y) {
    int64_t most_qkv = 0, most_o = 0;
    for (int64_t i = 0; i < count; i++) {
        const int64_t o = stores[i].heads->num_q_heads * stores[i].blocks[0]->dim;
        most_qkv = blocks[i].qkv.rows > most_qkv ? blocks[i].qkv.rows : most_qkv;
        most_o = o > most_o ? o : most_o;
    }
    float *normed = octavo_scratch(SCRATCH_BLOCKS, tokens * (2 * width + most_qkv + most_o) * 4);
    if (normed == NULL) return 1;
    float *added = normed + tokens * width, *qkv = added + tokens * width, *attended = qkv + tokens * most_qkv;
    for (int64_t i = 0; i < count; i++) {
        const octavo_block *b = blocks + i;
        const octavo_block_store *s = stores + i;
        const octavo_group_step *g = groups + s->group;
        const octavo_rows *const *kv = g->in_rings ? s->rings : s->blocks;
        const int64_t dim = kv[0]->dim;
        if (i == 0) octavo_rms_norm(x, b->input_norm, tokens, width, b->eps, normed);
        else octavo_add_rms_norm(x, added, b[-1].mlp_out_norm, b[-1].eps, b->input_norm, tokens, width, b->eps, normed);
        if (multiply(&b->qkv, normed, width, tokens, qkv)) return 1;
        if (b->bias)
            for (int64_t t = 0; t < tokens; t++)
                for (int64_t n = 0; n < b->qkv.rows; n++) qkv[t * b->qkv.rows + n] += b->bias[n];
        if (octavo_attend_qkv(qkv, tokens, dim, rotations + b->rotation, b->q_norm, b->k_norm, b->eps, kv[0], kv[1],
                              g->sequences, g->count, s->heads, s->sinks, attended)) return 1;
        if (multiply(&b->o, attended, s->heads->num_q_heads * dim, tokens, added)) return 1;
        octavo_add_rms_norm(x, added, b->attention_out_norm, b->eps, b->mlp_norm, tokens, width, b->eps, normed);
        if (octavo_gated_mlp(normed, tokens, width, b->gate_up.parts, b->gate_up.num_parts, b->gate_up.rows / 2, b->gelu,
                             b->down.parts, b->down.num_parts, added)) return 1;
    }
    const octavo_block *last = blocks + count - 1;
    octavo_add_rms_norm(x, added, last->mlp_out_norm, last->eps, norm, tokens, width, eps, y);
    return 0;
}
