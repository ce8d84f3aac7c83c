// Norms, rotary embedding, gates: one row at a time, so that a row never depends on its neighbours.

#include "rowwise.h"

#include <math.h>

#include "gate.h"
#include "pool.h"
#include "scratch.h"
#include "vec.h"

enum { VALUES_PER_ITEM = 16384 }; // some microseconds of work: less is not worth handing out

static int64_t rows_per_item(int64_t width) {
    int64_t rows = VALUES_PER_ITEM / (width < 1 ? 1 : width);
    return rows < 1 ? 1 : rows;
}

// x · weight / sqrt(mean(x²) + eps) over n values. `y` may be `x`.
static void norm_row(const float *x, const float *weight, int64_t n, float eps, float *y) {
    vf sums[NV];
    float tail = 0.0f;
    int64_t whole = n / LANES * LANES;
    for (int v = 0; v < NV; v++) sums[v] = splat(0.0f);
    for (int64_t i = 0; i < whole; i += LANES)
        for (int v = 0; v < NV; v++) {
            vf value = load(x + i + v * VL);
            sums[v] = fma_v(value, value, sums[v]);
        }
    for (int64_t i = whole; i < n; i++) tail += x[i] * x[i];
    const float factor = 1.0f / sqrtf((sum_lanes(sums) + tail) / (float)n + eps);
    for (int64_t i = 0; i < whole; i += VL) store(y + i, load(x + i) * splat(factor) * load(weight + i));
    for (int64_t i = whole; i < n; i++) y[i] = x[i] * factor * weight[i];
}

typedef struct {
    const float *x, *weight;
    float *y;
    int64_t width;
    float eps;
} norm_job;

static void norm_item(void *job, int64_t first, int64_t last) {
    const norm_job *j = job;
    for (int64_t row = first; row < last; row++)
        norm_row(j->x + row * j->width, j->weight, j->width, j->eps, j->y + row * j->width);
}

// x, y [rows, width] contiguous.
void octavo_rms_norm(const float *x, const float *weight, int64_t rows, int64_t width, float eps, float *y) {
    norm_job job = {x, weight, y, width, eps};
    octavo_parallel(rows, rows_per_item(width), norm_item, &job);
}

typedef struct {
    float *x;
    const float *added, *inner_weight, *weight;
    float *y;
    int64_t width;
    float inner_eps, eps;
} add_norm_job;

static void add_norm_item(void *job, int64_t first, int64_t last) {
    const add_norm_job *j = job;
    for (int64_t row = first; row < last; row++) {
        float *x = j->x + row * j->width, *y = j->y + row * j->width;
        const float *added = j->added + row * j->width;
        if (j->inner_weight) {
            norm_row(added, j->inner_weight, j->width, j->inner_eps, y);
            added = y;
        }
        for (int64_t i = 0; i < j->width; i++) x[i] += added[i];
        norm_row(x, j->weight, j->width, j->eps, y);
    }
}

// x += added, after a norm of its own if there is an inner weight; then y = norm(x). All [rows, width] contiguous.
void octavo_add_rms_norm(float *x, const float *added, const float *inner_weight, float inner_eps, const float *weight,
                         int64_t rows, int64_t width, float eps, float *y) {
    add_norm_job job = {x, added, inner_weight, weight, y, width, inner_eps, eps};
    octavo_parallel(rows, rows_per_item(width), add_norm_item, &job);
}

typedef struct {
    float *x;
    int64_t stride, num_q, num_k, dim;
    octavo_rotation rotation;
    const float *q_weight, *k_weight;
    float eps;
} rotate_job;

static void rotate_item(void *job, int64_t first, int64_t last) {
    const rotate_job *j = job;
    const int64_t half = j->dim / 2;
    for (int64_t token = first; token < last; token++) {
        const int64_t at = (j->rotation.positions ? j->rotation.positions[token] : token) * j->dim;
        const float *cos = j->rotation.cos + at, *sin = j->rotation.sin + at;
        for (int64_t head = 0; head < j->num_q + j->num_k; head++) {
            float *x = j->x + token * j->stride + head * j->dim;
            const float *weight = head < j->num_q ? j->q_weight : j->k_weight;
            if (weight) norm_row(x, weight, j->dim, j->eps, x);
            int64_t i = 0;
            for (; i + VL <= half; i += VL) {
                vf a = load(x + i), b = load(x + half + i);
                store(x + i, fma_v(b, load(sin + i), a * load(cos + i)));
                store(x + half + i, fma_v(a, load(sin + half + i), b * load(cos + half + i)));
            }
            for (; i < half; i++) {
                float a = x[i], b = x[half + i];
                x[i] = a * cos[i] + b * sin[i];
                x[half + i] = b * cos[half + i] + a * sin[half + i];
            }
        }
    }
}

// In place: the first num_q + num_k heads of every row of x (rows `stride` apart) are normalised, where there is a
// weight [dim] for them, and rotated; tables have `dim` columns.
void octavo_rotate(float *x, int64_t rows, int64_t stride, int64_t num_q, int64_t num_k, int64_t dim,
                   const octavo_rotation *rotation, const float *q_weight, const float *k_weight, float eps) {
    rotate_job job = {x, stride, num_q, num_k, dim, *rotation, q_weight, k_weight, eps};
    octavo_parallel(rows, rows_per_item((num_q + num_k) * dim), rotate_item, &job);
}

typedef struct {
    const float *x;
    float *y;
    int64_t width;
    int32_t gelu;
} gate_job;

static void gate_item(void *job, int64_t first, int64_t last) {
    const gate_job *j = job;
    for (int64_t row = first; row < last; row++) {
        const float *gate = j->x + row * 2 * j->width, *up = gate + j->width;
        float *y = j->y + row * j->width;
        int64_t i = 0;
        for (; i + VL <= j->width; i += VL) store(y + i, activate(load(gate + i), j->gelu) * load(up + i));
        if (i < j->width) {
            float padded[VL] = {0};
            for (int64_t k = i; k < j->width; k++) padded[k - i] = gate[k];
            vf value = activate(load(padded), j->gelu);
            for (int64_t k = i; k < j->width; k++) y[k] = value[k - i] * up[k];
        }
    }
}

// x [rows, 2 * width], gates before values -> y [rows, width] = activation(gate) · value.
void octavo_gate(const float *x, int64_t rows, int64_t width, int32_t gelu, float *y) {
    gate_job job = {x, y, width, gelu};
    octavo_parallel(rows, rows_per_item(4 * width), gate_item, &job);
}

enum { BEST_PIECE = 16384, MOST_PIECES = 4096 };

typedef struct {
    const float *x;
    int64_t width, pieces, piece;
    float *largest; // [rows, pieces]; NaN where there is one
} best_job;

static void best_item(void *job, int64_t first, int64_t last) {
    const best_job *j = job;
    for (int64_t item = first; item < last; item++) {
        const int64_t begin = item % j->pieces * j->piece;
        const int64_t count = j->width - begin < j->piece ? j->width - begin : j->piece;
        const float *x = j->x + item / j->pieces * j->width + begin;
        vf most[NV], bad[NV];
        for (int v = 0; v < NV; v++) most[v] = splat(-INFINITY), bad[v] = splat(0.0f);
        const int64_t whole = count / LANES * LANES;
        for (int64_t i = 0; i < whole; i += LANES)
            for (int v = 0; v < NV; v++) {
                const vf value = load(x + i + v * VL);
                most[v] = max_v(value, most[v]);
                bad[v] = (vf)((vi)bad[v] | (value != value));
            }
        int unsound = 0;
        for (int v = 0; v < NV; v++) unsound |= any_lane((vi)bad[v]);
        float largest = max_lanes(most);
        for (int64_t i = whole; i < count; i++) {
            largest = x[i] > largest ? x[i] : largest;
            unsound |= x[i] != x[i];
        }
        j->largest[item] = unsound ? NAN : largest;
    }
}

// The first place from `from` on that has the value, or is NaN. There is one.
static int64_t first_place(const float *x, int64_t from, int64_t width, float value) {
    int64_t i = from;
    for (; i + LANES <= width; i += LANES) {
        vi found = splat_i(0);
        for (int v = 0; v < NV; v++) {
            const vf here = load(x + i + v * VL);
            found |= (here == splat(value)) | (here != here);
        }
        if (any_lane(found)) break;
    }
    while (x[i] != value && x[i] == x[i]) i++;
    return i;
}

// Of every row of x [rows, width]: the largest value, which is NaN if there is one, and the first place that has it.
// Returns 0, or 1 if memory ran out.
int32_t octavo_best(const float *x, int64_t rows, int64_t width, float *best, int64_t *index) {
    const int64_t piece = width > (int64_t)BEST_PIECE * MOST_PIECES ? width : BEST_PIECE;
    const int64_t pieces = (width + piece - 1) / piece;
    best_job job = {x, width, pieces, piece, octavo_scratch(SCRATCH_LAYER, rows * pieces * 4)};
    if (job.largest == NULL) return 1;
    octavo_parallel(rows * pieces, 1, best_item, &job);
    for (int64_t row = 0; row < rows; row++) {
        const float *largest = job.largest + row * pieces;
        int64_t first = 0;
        for (int64_t p = 1; p < pieces && largest[first] == largest[first]; p++)
            if (!(largest[p] <= largest[first])) first = p;
        best[row] = largest[first];
        index[row] = first_place(x + row * width, first * piece, width, largest[first]);
    }
    return 0;
}

// Of every row of x [rows, width] the first place of the largest value, -1 if that is not finite. Returns as above.
int32_t octavo_greedy(const float *x, int64_t rows, int64_t width, int64_t *index) {
    float *best = octavo_scratch(SCRATCH_BLOCKS, rows * 4);
    if (best == NULL || octavo_best(x, rows, width, best, index)) return 1;
    for (int64_t row = 0; row < rows; row++)
        if (!isfinite(best[row])) index[row] = -1;
    return 0;
}
