// What one part of the positions gives a few rows of queries: the largest score, and by it the sum of weights and the
// weighted sum of values. All of it is a function of the row's own keys in the part.
#ifndef OCTAVO_PART_H
#define OCTAVO_PART_H

#include "positions.h"
#include "scores.h"

// Positions of a part; values taken at a time; keys loaded ahead; most rows of a tile, and up to which keys and values
// are read where they lie.
enum { PART = 256, BATCH = 64, AHEAD = 32, TILE_ROWS = 64, FEW_ROWS = 2 * BLOCK };
#define HIDDEN (-1e30f)

// Per row of a tile.
typedef struct {
    float *largest, *sum; // [rows]
    float *out;           // [rows, Dv]
} partial;

// What of positions [begin, begin + PART) a token sees, counted from begin: nothing where low >= high.
typedef struct {
    int64_t low, high;
} visible;

// Of a thread.
typedef struct {
    float *q, *weights, *staging; // [TILE_ROWS, Dk] scaled, [TILE_ROWS, PART], [BATCH, Dk or Dv]
    float *columns;               // [Dk, LANES] keys
    int64_t *rows;                // [PART] where the positions of the part lie
    visible *seen;                // [TILE_ROWS] by rows, of the part
    partial part, total;
} workspace;

// Rows of queries, those of K/V heads [head, head + num_heads) for tokens [t0, t1) of a sequence, head by head.
typedef struct {
    const octavo_sequence *sequence;
    const octavo_heads *heads;
    const octavo_rows *k, *v;
    int64_t head, num_heads, group, t0, t1;
} row_tile;

INLINE int64_t rows_of_head(const row_tile *tile) { return (tile->t1 - tile->t0) * tile->group; }

INLINE int64_t rows_of_tile(const row_tile *tile) { return tile->num_heads * rows_of_head(tile); }

// A row's token of the sequence, and its head of queries.
INLINE int64_t token_of(const row_tile *tile, int64_t row) {
    return tile->t0 + (uint32_t)row % (uint32_t)rows_of_head(tile) / (uint32_t)tile->group;
}

INLINE int64_t query_head_of(const row_tile *tile, int64_t row) {
    const uint32_t head = (uint32_t)row / (uint32_t)rows_of_head(tile);
    return (tile->head + head) * tile->group + (uint32_t)row % (uint32_t)tile->group;
}

INLINE visible seen_by(const row_tile *tile, int64_t token, int64_t begin) {
    const int64_t position = tile->sequence->start + token;
    const int64_t low = first_visible(tile->heads, position) - begin, high = position + 1 - begin;
    return (visible){low < 0 ? 0 : low, high > PART ? PART : high};
}

// The same for all rows of the tile, to seen [rows].
INLINE void find_seen(const row_tile *tile, int64_t begin, visible *seen) {
    for (int64_t head = 0; head < tile->num_heads; head++)
        for (int64_t token = tile->t0; token < tile->t1; token++) {
            const visible here = seen_by(tile, token, begin);
            for (int64_t i = 0; i < tile->group; i++) *seen++ = here;
        }
}

// Where `count` rows can be read as one of the dtypes of `load_element`, which is returned: where they lie, or decoded
// into `staging`, if that is worth it or there is no other way.
INLINE int find_elements(const octavo_rows *stored, const int64_t *rows, int64_t head, int64_t count, int few,
                         float *staging, const char **elements) {
    if (stored->dtype == F32 || (few && stored->dtype <= BF16)) {
        const int64_t size = stored->dtype == F32 ? 4 : 2;
        const char *data = (const char *)stored->data + head * stored->head_stride * size;
        for (int64_t i = 0; i < count; i++) elements[i] = data + rows[i] * stored->row_stride * size;
        return stored->dtype;
    }
    for (int64_t i = 0; i < count; i++) {
        decode(stored, rows[i], head, staging + i * stored->dim);
        elements[i] = (const char *)(staging + i * stored->dim);
    }
    return F32;
}

// Begin to load rows [from, to) of `rows`. A head's rows that lie side by side the processor loads ahead by itself.
INLINE void load_ahead(const octavo_rows *stored, const int64_t *rows, const row_tile *tile, int64_t from, int64_t to) {
    if (stored->dtype > BF16 || stored->row_stride == stored->dim) return;
    const int64_t size = stored->dtype == F32 ? 4 : 2;
    for (int64_t i = from; i < to; i++)
        for (int64_t head = tile->head; head < tile->head + tile->num_heads; head++) {
            const int64_t begin = rows[i] * stored->row_stride + head * stored->head_stride;
            const char *data = (const char *)stored->data + begin * size;
            for (int64_t at = 0; at < stored->dim * size; at += 64) __builtin_prefetch(data + at);
        }
}

// CALL(dtype, rows) with both constant, for 1 to BLOCK rows.
#if VL == 16
#define OF_ROWS(CALL, dtype, rows)                                                                                   \
    switch (rows) {                                                                                                 \
    case 1: CALL(dtype, 1); break;                                                                                  \
    case 2: CALL(dtype, 2); break;                                                                                  \
    case 3: CALL(dtype, 3); break;                                                                                  \
    default: CALL(dtype, 4);                                                                                        \
    }
#else
#define OF_ROWS(CALL, dtype, rows)                                                                                   \
    switch (rows) {                                                                                                 \
    case 1: CALL(dtype, 1); break;                                                                                  \
    default: CALL(dtype, 2);                                                                                        \
    }
#endif
#define OF_DTYPE(CALL, dtype, rows)                                                                                  \
    switch (dtype) {                                                                                                \
    case F32: OF_ROWS(CALL, F32, rows) break;                                                                       \
    case F16: OF_ROWS(CALL, F16, rows) break;                                                                       \
    default: OF_ROWS(CALL, BF16, rows)                                                                              \
    }

// What any of the rows [row, row + BLOCK) of a head's `rows` sees.
INLINE visible seen_by_block(const visible *seen, int64_t row, int64_t rows) {
    const int64_t last = row + BLOCK < rows ? row + BLOCK - 1 : rows - 1;
    return (visible){seen[row].low, seen[last].high};
}

// Scores of LANES keys from `key` on for the many rows q of a head, as far as they see one of them.
INLINE void score_many(const row_tile *tile, const char *const *keys, int64_t key, const float *q,
                       const workspace *w, float *scores) {
    const int64_t dim = tile->k->dim, rows = rows_of_head(tile);
    write_columns(keys, dim, w->columns);
    for (int64_t r = 0; r < rows; r += BLOCK) {
        const visible seen = seen_by_block(w->seen, r, rows);
        if (seen.low >= key + LANES || seen.high <= key) continue;
#define SCORE_COLUMNS(dim, count) score_columns(w->columns, q + r * dim, dim, count, PART, scores + r * PART)
        OF_ROWS(SCORE_COLUMNS, dim, rows - r)
    }
}

// weights[r][from, to) = q[r] · keys, where from and to are multiples of LANES around what the tile sees; of many rows,
// around what a few of them see.
static void score_part(const row_tile *tile, int64_t from, int64_t to, const workspace *w) {
    const int64_t dim = tile->k->dim, rows = rows_of_head(tile);
    const int few = rows <= FEW_ROWS;
    if (few) load_ahead(tile->k, w->rows, tile, from, from + AHEAD < to ? from + AHEAD : to);
    for (int64_t key = from; key < to; key += LANES) {
        if (few) {
            if (key + AHEAD < to) load_ahead(tile->k, w->rows, tile, key + AHEAD, key + AHEAD + LANES);
            load_ahead(tile->v, w->rows, tile, key, key + LANES);
        }
        for (int64_t head = 0; head < tile->num_heads; head++) {
            const char *keys[LANES];
            const float *q = w->q + head * rows * dim;
            float *scores = w->weights + head * rows * PART + key;
            const int dtype = find_elements(tile->k, w->rows + key, tile->head + head, LANES, few, w->staging, keys);
            if (!few) {
                score_many(tile, keys, key, q, w, scores);
                continue;
            }
            for (int64_t r = 0; r < rows; r += BLOCK)
                for (int v = 0; v < NV; v++) {
#define SCORE(dtype, count) score_keys(dtype, keys + v * VL, q + r * dim, dim, count, PART, scores + r * PART + v * VL)
                    OF_DTYPE(SCORE, dtype, rows - r)
                }
        }
    }
}

static void add_part(const row_tile *tile, int64_t from, int64_t to, const workspace *w, float *out) {
    const int64_t dim = tile->v->dim, rows = rows_of_head(tile);
    memset(out, 0, (size_t)(rows_of_tile(tile) * dim) * 4);
    for (int64_t key = from; key < to; key += BATCH) {
        const int64_t count = to - key < BATCH ? to - key : BATCH;
        for (int64_t head = 0; head < tile->num_heads; head++) {
            const char *values[BATCH];
            const float *weights = w->weights + head * rows * PART;
            float *sums = out + head * rows * dim;
            const int dtype = find_elements(tile->v, w->rows + key, tile->head + head, count, rows <= FEW_ROWS,
                                            w->staging, values);
            for (int64_t r = 0; r < rows; r += BLOCK) {
                const visible seen = seen_by_block(w->seen, r, rows);
                const int64_t first = seen.low > key ? seen.low - key : 0;
                const int64_t last = seen.high - key < count ? seen.high - key : count;
                if (first >= last) continue;
#define ADD(dtype, n)                                                                                                \
    add_values(dtype, values + first, weights + r * PART + key + first, PART, dim, last - first, n, sums + r * dim)
                OF_DTYPE(ADD, dtype, rows - r)
            }
        }
    }
}

// Scores [from, to) of one row become weights, none for keys that it does not see.
INLINE void weigh_row(float *scores, int64_t from, int64_t to, visible seen, float softcap, float *largest,
                      float *sum) {
    vi lane;
    for (int i = 0; i < VL; i++) lane[i] = i;
    vf most[NV], sums[NV];
    for (int v = 0; v < NV; v++) most[v] = splat(HIDDEN), sums[v] = splat(0.0f);
    for (int64_t key = from; key < to; key += LANES) {
        const int whole = key >= seen.low && key + LANES <= seen.high;
        for (int v = 0; v < NV; v++) {
            vf score = load(scores + key + v * VL);
            if (softcap != 0.0f) // cap · tanh(score / cap), and tanh(x) = 1 - 2 / (exp(2 x) + 1)
                score = splat(softcap) - splat(2.0f * softcap) / (exp_v(score * splat(2.0f / softcap)) + splat(1.0f));
            if (!whole) {
                const vi at = lane + (int32_t)(key + v * VL);
                score = select_v((at >= (int32_t)seen.low) & (at < (int32_t)seen.high), score, splat(HIDDEN));
            }
            if (!whole || softcap != 0.0f) store(scores + key + v * VL, score);
            most[v] = max_v(most[v], score);
        }
    }
    *largest = max_lanes(most);
    for (int64_t key = from; key < to; key += LANES) {
        const int whole = key >= seen.low && key + LANES <= seen.high;
        for (int v = 0; v < NV; v++) {
            vf weight = exp_to_88(load(scores + key + v * VL) - splat(*largest));
            if (!whole) {
                const vi at = lane + (int32_t)(key + v * VL);
                weight = select_v((at >= (int32_t)seen.low) & (at < (int32_t)seen.high), weight, splat(0.0f));
            }
            store(scores + key + v * VL, weight);
            sums[v] += weight;
        }
    }
    *sum = sum_lanes(sums);
}

// The part of a tile at `begin`, into `result`; its queries are in w->q. Of rows that see nothing of it: anything.
static void attend_part(const row_tile *tile, int64_t begin, const workspace *w, partial result) {
    const int64_t rows = rows_of_tile(tile), of_head = rows_of_head(tile);
    find_seen(tile, begin, w->seen);
    const int64_t first = w->seen[0].low, last = w->seen[rows - 1].high;
    const int64_t from = first / LANES * LANES, to = (last + LANES - 1) / LANES * LANES;
    find_rows(tile->sequence, begin + first, begin + last, w->rows + first);
    // The vectors' other lanes: whatever is there, nobody looks at its score.
    for (int64_t i = from; i < first; i++) w->rows[i] = w->rows[first];
    for (int64_t i = last; i < to; i++) w->rows[i] = w->rows[last - 1];
    score_part(tile, from, to, w);
    for (int64_t head = 0; head < rows; head += of_head)
        for (int64_t r = head; r < head + of_head; r++) {
            const visible block = seen_by_block(w->seen + head, (r - head) / BLOCK * BLOCK, of_head);
            weigh_row(w->weights + r * PART, block.low / LANES * LANES, (block.high + LANES - 1) / LANES * LANES,
                      w->seen[r], tile->heads->softcap, result.largest + r, result.sum + r);
        }
    add_part(tile, first, last, w, result.out);
}

// total += part, for row `row` of both; a row's parts are added in their order. One function for every use: inlined, a
// compiler might round its products in different places.
static __attribute__((noinline)) void add_partial(partial total, partial part, int64_t row, int64_t dim) {
    const float before = total.largest[row], here = part.largest[row], now = before > here ? before : here;
    const vf kept = exp_v(splat(before - now)), added = exp_v(splat(here - now));
    total.largest[row] = now;
    total.sum[row] = fma_v(splat(part.sum[row]), added, splat(total.sum[row]) * kept)[0];
    for (int64_t d = row * dim; d < (row + 1) * dim; d += VL)
        store(total.out + d, fma_v(load(part.out + d), added, load(total.out + d) * kept));
}

#endif
