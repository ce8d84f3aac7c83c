// Causal attention straight from stored rows, whatever storage they lie in. The result of a query row is a function
// of its own keys and values alone: scores are summed over the head's elements in order, keys are taken in chunks at
// absolute multiples of CHUNK, and each chunk is added to a running maximum, sum and output. Rows are computed
// together only to share the decoding of a chunk.

#include "attention.h"

#include <stdatomic.h>

#include "codecs.h"
#include "pool.h"
#include "scratch.h"
#include "vec.h"

enum { CHUNK = 64, TILE_ROWS = 32, BLOCK = VL == 16 ? 4 : 2, CHUNK_VECTORS = CHUNK / VL, GROUP = 4 };
#define HIDDEN (-1e30f)

// The row of a position, and how many positions from it on lie in rows one after another.
typedef struct {
    int64_t row, count;
} row_run;

INLINE row_run run_of(const octavo_sequence *s, int64_t position) {
    if (s->blocks) {
        int64_t most = s->block_size;
        if (position >= s->keep) position += s->skip;
        else if (s->keep - position < most) most = s->keep - position;
        const int64_t offset = position % s->block_size, left = s->block_size - offset;
        return (row_run){s->blocks[position / s->block_size] * s->block_size + offset, left < most ? left : most};
    }
    if (!s->ring) return (row_run){s->base + position, INT64_MAX};
    return (row_run){s->base + position % s->ring, s->ring - position % s->ring};
}

INLINE int64_t first_visible(const octavo_heads *heads, int64_t position) {
    return heads->window && position >= heads->window ? position - heads->window + 1 : 0;
}

// ---- storing

// New keys and values x [tokens, heads, dim], tokens `stride` apart, into the rows of their positions.
void octavo_store(const float *x, int64_t stride, int64_t num_heads, const octavo_rows *rows,
                  const octavo_sequence *sequences, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        const octavo_sequence *s = sequences + i;
        for (int64_t t = 0; t < s->num_tokens; t++) {
            int64_t row = run_of(s, s->start + t).row;
            for (int64_t h = 0; h < num_heads; h++)
                encode(x + (s->first_token + t) * stride + h * rows->dim, rows, row, h);
        }
    }
}

// ---- attending

typedef struct {
    const float *q;
    int64_t q_stride;
    const octavo_rows *k, *v;
    const octavo_sequence *sequences;
    const octavo_heads *heads;
    const float *sinks; // [Hq], or NULL
    int64_t tokens_per_tile;
    float *out;
    int64_t out_stride;
    _Atomic int *failed; // set where memory ran out
} attention;

// Workspace of one item.
typedef struct {
    float *q, *keys, *values, *weights, *out; // [rows, Dk], [Dk, CHUNK], [CHUNK, Dv], [rows, CHUNK], [rows, Dv]
    float *largest, *factor;                  // [rows]
    vf (*sums)[NV];                           // [rows]
    float *staging;                           // [LANES, Dk]
} workspace;

// out[d][0..16) = rows[0..16)[d] for d in [0, dim); out rows are CHUNK apart.
INLINE void transpose(const float *rows, int64_t dim, float *out) {
#if defined(__AVX512F__)
    for (int64_t d = 0; d < dim; d += 16) {
        __m512 a[16], b[16];
        for (int i = 0; i < 16; i++) a[i] = _mm512_loadu_ps(rows + i * dim + d);
        for (int i = 0; i < 8; i++) {
            b[2 * i] = _mm512_unpacklo_ps(a[2 * i], a[2 * i + 1]);
            b[2 * i + 1] = _mm512_unpackhi_ps(a[2 * i], a[2 * i + 1]);
        }
        for (int i = 0; i < 4; i++)
            for (int half = 0; half < 2; half++) {
                a[4 * i + 2 * half] = (__m512)_mm512_unpacklo_pd((__m512d)b[4 * i + half], (__m512d)b[4 * i + 2 + half]);
                a[4 * i + 2 * half + 1] =
                    (__m512)_mm512_unpackhi_pd((__m512d)b[4 * i + half], (__m512d)b[4 * i + 2 + half]);
            }
        // a[4 i + c] holds, in its four quarters, column c, c + 4, c + 8, c + 12 of rows 4 i to 4 i + 3.
        for (int c = 0; c < 4; c++) {
            __m512 low = _mm512_shuffle_f32x4(a[c], a[4 + c], 0x88), high = _mm512_shuffle_f32x4(a[c], a[4 + c], 0xdd);
            __m512 low2 = _mm512_shuffle_f32x4(a[8 + c], a[12 + c], 0x88);
            __m512 high2 = _mm512_shuffle_f32x4(a[8 + c], a[12 + c], 0xdd);
            _mm512_storeu_ps(out + (d + c) * CHUNK, _mm512_shuffle_f32x4(low, low2, 0x88));
            _mm512_storeu_ps(out + (d + 4 + c) * CHUNK, _mm512_shuffle_f32x4(high, high2, 0x88));
            _mm512_storeu_ps(out + (d + 8 + c) * CHUNK, _mm512_shuffle_f32x4(low, low2, 0xdd));
            _mm512_storeu_ps(out + (d + 12 + c) * CHUNK, _mm512_shuffle_f32x4(high, high2, 0xdd));
        }
    }
#else
    for (int64_t d = 0; d < dim; d++)
        for (int i = 0; i < 16; i++) out[d * CHUNK + i] = rows[i * dim + d];
#endif
}

// Keys (transposed) and values of positions [first, last) of the chunk at `begin`; what is there of others, in the same
// vectors, is anything: nobody looks at their scores.
static void load_chunk(const attention *a, const octavo_sequence *s, int64_t head, int64_t begin, int64_t first,
                       int64_t last, const workspace *w) {
    const int64_t k_dim = a->k->dim, v_dim = a->v->dim;
    row_run run = {0, 0};
    for (int64_t position = first; position < last;) {
        const int64_t at = (position - begin) / LANES * LANES, end = begin + at + LANES < last ? begin + at + LANES : last;
        for (; position < end; position++, run.row++, run.count--) {
            if (run.count == 0) run = run_of(s, position);
            decode(a->k, run.row, head, w->staging + (position - begin - at) * k_dim);
            decode(a->v, run.row, head, w->values + (position - begin) * v_dim);
        }
        transpose(w->staging, k_dim, w->keys + at);
    }
}

// weights[r] = q[r] · keys for `rows` rows and the keys of `count` vectors.
INLINE void score_vectors(const float *q, const float *keys, int64_t dim, int rows, int count, float *weights) {
    vf acc[BLOCK][GROUP];
    for (int r = 0; r < rows; r++)
        for (int g = 0; g < count; g++) acc[r][g] = splat(0.0f);
    for (int64_t d = 0; d < dim; d++)
        for (int r = 0; r < rows; r++)
            for (int g = 0; g < count; g++)
                acc[r][g] = fma_v(splat(q[r * dim + d]), load(keys + d * CHUNK + g * VL), acc[r][g]);
    for (int r = 0; r < rows; r++)
        for (int g = 0; g < count; g++) store(weights + r * CHUNK + g * VL, acc[r][g]);
}

// Of keys [from, to) of the chunk, and what shares their vectors.
INLINE void score_rows(const float *q, const float *keys, int64_t dim, int64_t from, int64_t to, int rows,
                       float *weights) {
    int64_t c = from / VL;
    const int64_t end = (to + VL - 1) / VL;
    for (; c + GROUP <= end; c += GROUP) score_vectors(q, keys + c * VL, dim, rows, GROUP, weights + c * VL);
    if (c + 2 <= end) {
        score_vectors(q, keys + c * VL, dim, rows, 2, weights + c * VL);
        c += 2;
    }
    if (c < end) score_vectors(q, keys + c * VL, dim, rows, 1, weights + c * VL);
}

// out[r] = out[r] * factor[r] + weights[r] · values, keys [from, to) in order.
INLINE void add_values(float *out, const float *factor, const float *weights, const float *values, int64_t dim,
                       int64_t from, int64_t to, int rows) {
    int64_t d = 0;
    for (; d + GROUP * VL <= dim; d += GROUP * VL) {
        vf acc[BLOCK][GROUP];
        for (int r = 0; r < rows; r++)
            for (int g = 0; g < GROUP; g++) acc[r][g] = load(out + r * dim + d + g * VL) * splat(factor[r]);
        for (int64_t key = from; key < to; key++)
            for (int r = 0; r < rows; r++)
                for (int g = 0; g < GROUP; g++)
                    acc[r][g] = fma_v(splat(weights[r * CHUNK + key]), load(values + key * dim + d + g * VL), acc[r][g]);
        for (int r = 0; r < rows; r++)
            for (int g = 0; g < GROUP; g++) store(out + r * dim + d + g * VL, acc[r][g]);
    }
    for (; d < dim; d += VL)
        for (int r = 0; r < rows; r++) {
            vf acc = load(out + r * dim + d) * splat(factor[r]);
            for (int64_t key = from; key < to; key++)
                acc = fma_v(splat(weights[r * CHUNK + key]), load(values + key * dim + d), acc);
            store(out + r * dim + d, acc);
        }
}

// Scores of one row become weights; keys outside [from, to) of the chunk get none.
INLINE void weigh_row(float *scores, int64_t from, int64_t to, float softcap, float *largest, float *factor,
                      vf sums[NV]) {
    if (from >= to) {
        memset(scores, 0, CHUNK * 4);
        *factor = 1.0f;
        return;
    }
    vi lane;
    for (int i = 0; i < VL; i++) lane[i] = i;
    vf most[NV];
    for (int v = 0; v < NV; v++) most[v] = splat(HIDDEN);
    for (int c = 0; c < CHUNK_VECTORS; c++) {
        vf score = load(scores + c * VL);
        if (softcap != 0.0f) // cap · tanh(score / cap), and tanh(x) = 1 - 2 / (exp(2 x) + 1)
            score = splat(softcap) - splat(2.0f * softcap) / (exp_v(score * splat(2.0f / softcap)) + splat(1.0f));
        vi key = lane + c * VL;
        score = select_v((key >= (int32_t)from) & (key < (int32_t)to), score, splat(HIDDEN));
        store(scores + c * VL, score);
        most[c % NV] = max_v(most[c % NV], score);
    }
    const float before = *largest, here = max_lanes(most), now = before > here ? before : here;
    *largest = now;
    *factor = exp_v(splat(before - now))[0];
    for (int v = 0; v < NV; v++) sums[v] = sums[v] * splat(*factor);
    for (int c = 0; c < CHUNK_VECTORS; c++) {
        vi key = lane + c * VL;
        vf weight = exp_v(load(scores + c * VL) - splat(now));
        weight = select_v((key >= (int32_t)from) & (key < (int32_t)to), weight, splat(0.0f));
        store(scores + c * VL, weight);
        sums[c % NV] += weight;
    }
}

static int64_t align(int64_t floats) { return (floats + 15) / 16 * 16; }

static workspace make_workspace(int64_t k_dim, int64_t v_dim) {
    const int64_t sizes[] = {TILE_ROWS * k_dim, k_dim * CHUNK, CHUNK * v_dim, TILE_ROWS * CHUNK, TILE_ROWS * v_dim,
                             TILE_ROWS, TILE_ROWS, TILE_ROWS * LANES, LANES * k_dim};
    float *parts[9];
    int64_t total = 0;
    for (int i = 0; i < 9; i++) total += align(sizes[i]);
    float *at = octavo_scratch(SCRATCH_ATTENTION, total * 4);
    for (int i = 0; i < 9 && at; i++) {
        parts[i] = at;
        at += align(sizes[i]);
    }
    if (at == NULL) return (workspace){0};
    return (workspace){parts[0], parts[1], parts[2], parts[3], parts[4], parts[5], parts[6], (vf(*)[NV])parts[7], parts[8]};
}

// Tokens [t0, t1) of a sequence, for the query heads of one K/V head.
static void attend_tile(const attention *a, const octavo_sequence *s, int64_t head, int64_t t0, int64_t t1) {
    const int64_t k_dim = a->k->dim, v_dim = a->v->dim, group = a->heads->num_q_heads / a->heads->num_kv_heads;
    const int64_t rows = (t1 - t0) * group, last = s->start + t1, first = first_visible(a->heads, s->start + t0);
    const workspace w = make_workspace(k_dim, v_dim);
    if (w.q == NULL) {
        atomic_store(a->failed, 1);
        return;
    }
    for (int64_t r = 0; r < rows; r++) {
        const float *q = a->q + (s->first_token + t0 + r / group) * a->q_stride + (head * group + r % group) * k_dim;
        for (int64_t d = 0; d < k_dim; d += VL) store(w.q + r * k_dim + d, load(q + d) * splat(a->heads->scale));
        for (int64_t d = 0; d < v_dim; d += VL) store(w.out + r * v_dim + d, splat(0.0f));
        for (int v = 0; v < NV; v++) w.sums[r][v] = splat(0.0f);
        w.largest[r] = HIDDEN;
        if (a->sinks) { // the sum so far is exp(sink - largest) = 1, of no value
            const float sink = a->sinks[head * group + r % group];
            w.largest[r] = sink > HIDDEN ? sink : HIDDEN;
            w.sums[r][0][0] = 1.0f;
        }
    }
    for (int64_t begin = first / CHUNK * CHUNK; begin < last; begin += CHUNK) {
        const int64_t from = first > begin ? first : begin, to = last < begin + CHUNK ? last : begin + CHUNK;
        load_chunk(a, s, head, begin, from, to, &w);
        for (int64_t r0 = 0; r0 < rows; r0 += BLOCK) {
            const int count = rows - r0 < BLOCK ? (int)(rows - r0) : BLOCK;
            float *weights = w.weights + r0 * CHUNK;
            switch (count) {
            case 1: score_rows(w.q + r0 * k_dim, w.keys, k_dim, from - begin, to - begin, 1, weights); break;
            case 2: score_rows(w.q + r0 * k_dim, w.keys, k_dim, from - begin, to - begin, 2, weights); break;
#if VL == 16
            case 3: score_rows(w.q + r0 * k_dim, w.keys, k_dim, from - begin, to - begin, 3, weights); break;
            default: score_rows(w.q + r0 * k_dim, w.keys, k_dim, from - begin, to - begin, 4, weights); break;
#endif
            }
            for (int r = 0; r < count; r++) {
                const int64_t position = s->start + t0 + (r0 + r) / group, low = first_visible(a->heads, position);
                const int64_t high = position + 1 < to ? position + 1 : to;
                weigh_row(weights + r * CHUNK, (low > begin ? low : begin) - begin, high - begin, a->heads->softcap,
                          w.largest + r0 + r, w.factor + r0 + r, w.sums[r0 + r]);
            }
            float *out = w.out + r0 * v_dim, *factor = w.factor + r0;
            switch (count) {
            case 1: add_values(out, factor, weights, w.values, v_dim, from - begin, to - begin, 1); break;
            case 2: add_values(out, factor, weights, w.values, v_dim, from - begin, to - begin, 2); break;
#if VL == 16
            case 3: add_values(out, factor, weights, w.values, v_dim, from - begin, to - begin, 3); break;
            default: add_values(out, factor, weights, w.values, v_dim, from - begin, to - begin, 4); break;
#endif
            }
        }
    }
    vi bad = splat_i(0);
    for (int64_t r = 0; r < rows; r++) {
        float *out = a->out + (s->first_token + t0 + r / group) * a->out_stride + (head * group + r % group) * v_dim;
        const vf sum = splat(sum_lanes(w.sums[r]));
        for (int64_t d = 0; d < v_dim; d += VL) {
            const vf value = load(w.out + r * v_dim + d) / sum;
            bad |= ((vi)value & 0x7fffffff) >= 0x7f800000;
            store(out + d, value);
        }
    }
    // A value that is not finite spoils even the tokens that give it no weight: each again, with its own keys only.
    if (t1 - t0 > 1 && any_lane(bad))
        for (int64_t t = t0; t < t1; t++) attend_tile(a, s, head, t, t + 1);
}

// Items: for every sequence its tiles of tokens, for every tile the K/V heads.
static void attend_item(void *job, int64_t first, int64_t last) {
    const attention *a = job;
    const octavo_sequence *s = a->sequences;
    int64_t before = 0; // items of the sequences before s
    for (int64_t item = first; item < last; item++) {
        int64_t tiles;
        for (;; s++) {
            tiles = (s->num_tokens + a->tokens_per_tile - 1) / a->tokens_per_tile;
            if (item < before + tiles * a->heads->num_kv_heads) break;
            before += tiles * a->heads->num_kv_heads;
        }
        // The last tiles see the most keys: they go first.
        int64_t tile = tiles - 1 - (item - before) / a->heads->num_kv_heads;
        int64_t head = (item - before) % a->heads->num_kv_heads, t0 = tile * a->tokens_per_tile;
        int64_t t1 = t0 + a->tokens_per_tile < s->num_tokens ? t0 + a->tokens_per_tile : s->num_tokens;
        attend_tile(a, s, head, t0, t1);
    }
}

// q [tokens, Hq, Dk], tokens `q_stride` apart -> out [tokens, Hq, Dv], contiguous. k and v hold the sequences' rows,
// the step's own included. Learned logits sinks [Hq], unless NULL, join each softmax and add no value. Dk and Dv are
// multiples of 16, at most 32 query heads share a K/V head. Returns 0, or 1 if memory ran out.
int32_t octavo_attend(const float *q, int64_t q_stride, const octavo_rows *k, const octavo_rows *v,
                   const octavo_sequence *sequences, int64_t count, const octavo_heads *heads, const float *sinks,
                   float *out) {
    const int64_t group = heads->num_q_heads / heads->num_kv_heads;
    _Atomic int failed = 0;
    attention a = {q, q_stride, k, v, sequences, heads, sinks, TILE_ROWS / group, out, heads->num_q_heads * v->dim, &failed};
    int64_t items = 0, work = 0;
    for (int64_t i = 0; i < count; i++) {
        const octavo_sequence *s = sequences + i;
        items += (s->num_tokens + a.tokens_per_tile - 1) / a.tokens_per_tile * heads->num_kv_heads;
        work += s->num_tokens * (s->start + s->num_tokens) * heads->num_q_heads;
    }
    octavo_parallel(items, work < 512 ? items : 1, attend_item, &a);
    return failed;
}
