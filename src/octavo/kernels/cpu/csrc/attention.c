// Causal attention straight from stored rows, whatever storage they lie in. The result of a query row is a function
// of its own keys and values alone: positions are cut into parts at absolute multiples of PART, each part gives a
// largest score, a sum and an output (part.h), and these are added up in order of parts. Rows are computed together
// only to share what is loaded, and parts by several threads only where there is too little else to share.

#include "attention.h"

#include <stdatomic.h>

#include "part.h"
#include "pool.h"
#include "scratch.h"

// Products for scores with fewer of which another thread costs more than it takes over; float32 numbers that all partial
// results may take: threads share no more tiles.
enum { LEAST_WORK = 1 << 16, MOST_PARTIALS = 4 << 20 };

// A tile, and the parts of positions that it sees.
typedef struct {
    row_tile rows;
    int64_t first_part, num_parts;
    float *partials;      // [num_parts, partial_floats] where threads share the parts, or NULL
    _Atomic int32_t left; // of them, that nobody has computed yet; 0 where they are not shared
} tile;

// All parts of a tile, or one.
typedef struct {
    int32_t tile, part;
} item;

typedef struct {
    const float *q;
    int64_t q_stride;
    const float *sinks; // [Hq], or NULL
    float *out;
    int64_t out_stride;
    tile *tiles;
    item *items;
    _Atomic int *failed; // set where memory ran out
} attention;

static int64_t align(int64_t floats) { return (floats + 15) / 16 * 16; }

static int64_t partial_floats(int64_t rows, int64_t v_dim) { return 2 * align(rows) + rows * v_dim; }

static partial partial_at(float *floats, int64_t rows) {
    return (partial){floats, floats + align(rows), floats + 2 * align(rows)};
}

// Its `q` is NULL if memory ran out.
static workspace make_workspace(int64_t k_dim, int64_t v_dim) {
    const int64_t q = TILE_ROWS * k_dim, weights = TILE_ROWS * PART, staging = BATCH * (k_dim > v_dim ? k_dim : v_dim);
    const int64_t rows = PART * 2, seen = TILE_ROWS * 4, part = partial_floats(TILE_ROWS, v_dim), columns = k_dim * LANES;
    float *at = octavo_scratch(SCRATCH_ATTENTION, (q + weights + staging + columns + rows + seen + 2 * part) * 4);
    if (at == NULL) return (workspace){0};
    workspace w = {.q = at, .weights = at + q, .staging = at + q + weights, .columns = at + q + weights + staging};
    at += q + weights + staging + columns;
    w.rows = (int64_t *)at;
    w.seen = (visible *)(at + rows);
    w.part = partial_at(at + rows + seen, TILE_ROWS);
    w.total = partial_at(at + rows + seen + part, TILE_ROWS);
    return w;
}

static void load_queries(const attention *a, const tile *t, const workspace *w) {
    const row_tile *rows = &t->rows;
    const int64_t dim = rows->k->dim;
    for (int64_t r = 0; r < rows_of_tile(rows); r++) {
        const int64_t token = rows->sequence->first_token + token_of(rows, r), head = query_head_of(rows, r);
        const float *q = a->q + token * a->q_stride + head * dim;
        for (int64_t d = 0; d < dim; d += VL) store(w->q + r * dim + d, load(q + d) * splat(rows->heads->scale));
    }
}

// What a row has before its first part: nothing, or its sink, whose weight is exp(sink - largest) = 1, of no value.
static void begin_total(const attention *a, const tile *t, const workspace *w) {
    const row_tile *rows = &t->rows;
    memset(w->total.out, 0, (size_t)(rows_of_tile(rows) * rows->v->dim) * 4);
    for (int64_t r = 0; r < rows_of_tile(rows); r++) {
        const float sink = a->sinks ? a->sinks[query_head_of(rows, r)] : HIDDEN;
        w->total.largest[r] = sink > HIDDEN ? sink : HIDDEN;
        w->total.sum[r] = a->sinks ? 1.0f : 0.0f;
    }
}

static void add_part_to_total(const tile *t, int64_t part, partial result, const workspace *w) {
    find_seen(&t->rows, part * PART, w->seen);
    for (int64_t r = 0; r < rows_of_tile(&t->rows); r++)
        if (w->seen[r].low < w->seen[r].high) add_partial(w->total, result, r, t->rows.v->dim);
}

static void attend_tile(const attention *a, const tile *t, const workspace *w);

// The tile's total, divided by the sum of weights, to where the tokens have their results.
static void end_total(const attention *a, const tile *t, const workspace *w) {
    const row_tile *rows = &t->rows;
    const int64_t dim = rows->v->dim;
    vi bad = splat_i(0);
    for (int64_t r = 0; r < rows_of_tile(rows); r++) {
        const int64_t token = rows->sequence->first_token + token_of(rows, r), head = query_head_of(rows, r);
        float *out = a->out + token * a->out_stride + head * dim;
        const vf sum = splat(w->total.sum[r]);
        for (int64_t d = 0; d < dim; d += VL) {
            const vf value = load(w->total.out + r * dim + d) / sum;
            bad |= ((vi)value & 0x7fffffff) >= 0x7f800000;
            store(out + d, value);
        }
    }
    // A value that is not finite spoils even the tokens that give it no weight: each again, with its own keys only.
    if (rows->t1 - rows->t0 > 1 && any_lane(bad))
        for (int64_t token = rows->t0; token < rows->t1; token++) {
            tile one = {.rows = *rows};
            one.rows.t0 = token;
            one.rows.t1 = token + 1;
            const int64_t position = rows->sequence->start + token;
            one.first_part = first_visible(rows->heads, position) / PART;
            one.num_parts = position / PART + 1 - one.first_part;
            attend_tile(a, &one, w);
        }
}

static void attend_tile(const attention *a, const tile *t, const workspace *w) {
    load_queries(a, t, w);
    begin_total(a, t, w);
    for (int64_t part = t->first_part; part < t->first_part + t->num_parts; part++) {
        attend_part(&t->rows, part * PART, w, w->part);
        add_part_to_total(t, part, w->part, w);
    }
    end_total(a, t, w);
}

// One part of a tile that threads share. Who computes the last one adds up all, in their order.
static void attend_shared(const attention *a, tile *t, int64_t index, const workspace *w) {
    const int64_t rows = rows_of_tile(&t->rows), floats = partial_floats(rows, t->rows.v->dim);
    load_queries(a, t, w);
    attend_part(&t->rows, (t->first_part + index) * PART, w, partial_at(t->partials + index * floats, rows));
    if (atomic_fetch_sub(&t->left, 1) > 1) return;
    begin_total(a, t, w);
    for (int64_t part = 0; part < t->num_parts; part++)
        add_part_to_total(t, t->first_part + part, partial_at(t->partials + part * floats, rows), w);
    end_total(a, t, w);
}

static void attend_items(void *job, int64_t first, int64_t last) {
    const attention *a = job;
    const row_tile *any = &a->tiles[0].rows;
    const workspace w = make_workspace(any->k->dim, any->v->dim);
    if (w.q == NULL) {
        atomic_store(a->failed, 1);
        return;
    }
    for (const item *i = a->items + first; i < a->items + last; i++) {
        tile *t = a->tiles + i->tile;
        if (t->partials) attend_shared(a, t, i->part, &w);
        else attend_tile(a, t, &w);
    }
}

// ---- sharing

// Tiles of all sequences, the last tokens of each first: they see the most. Returns how many; `tiles` may be NULL.
static int64_t list_tiles(const octavo_sequence *sequences, int64_t count, row_tile rows, tile *tiles) {
    const int64_t tokens = TILE_ROWS / (rows.group * rows.num_heads), num_heads = rows.num_heads;
    int64_t listed = 0;
    for (const octavo_sequence *s = sequences; s < sequences + count; s++)
        for (int64_t i = (s->num_tokens + tokens - 1) / tokens - 1; i >= 0; i--) {
            rows.sequence = s;
            rows.t0 = i * tokens;
            rows.t1 = rows.t0 + tokens < s->num_tokens ? rows.t0 + tokens : s->num_tokens;
            const int64_t first = first_visible(rows.heads, s->start + rows.t0) / PART;
            const int64_t parts = (s->start + rows.t1 - 1) / PART + 1 - first;
            for (rows.head = 0; rows.head < rows.heads->num_kv_heads; rows.head += num_heads, listed++)
                if (tiles) tiles[listed] = (tile){.rows = rows, .first_part = first, .num_parts = parts};
        }
    return listed;
}

// How many K/V heads tiles have. A token's heads lie side by side: where enough sequences have one token each, a tile
// takes all of them, so that memory is read from one end to the other.
static int64_t heads_of_tiles(const octavo_sequence *sequences, int64_t count, const octavo_heads *heads) {
    if (heads->num_q_heads > TILE_ROWS || count < octavo_threads() * 4) return 1;
    for (int64_t i = 0; i < count; i++)
        if (sequences[i].num_tokens != 1) return 1;
    return heads->num_kv_heads;
}

static int64_t shared_floats(const tile *t) {
    return t->num_parts * partial_floats(rows_of_tile(&t->rows), t->rows.v->dim);
}

// The items of all tiles, into `job`, with memory for partial results. Returns how many; 0 if memory ran out.
static int64_t list_items(attention *job, int64_t num_tiles, int64_t threads) {
    int64_t parts = 0, items = 0, floats = 0;
    for (const tile *t = job->tiles; t < job->tiles + num_tiles; t++) parts += t->num_parts;
    for (tile *t = job->tiles; t < job->tiles + num_tiles; t++) {
        // Shared where it is so much of all that a thread might be left without work.
        const int much = threads > 1 && t->num_parts > 1 && t->num_parts * threads * 4 > parts;
        const int shared = much && floats + shared_floats(t) <= MOST_PARTIALS;
        t->left = shared ? (int32_t)t->num_parts : 0;
        items += shared ? t->num_parts : 1;
        floats += shared ? shared_floats(t) : 0;
    }
    float *partials = octavo_scratch(SCRATCH_PARTIALS, floats * 4 + items * (int64_t)sizeof(item));
    if (partials == NULL) return 0;
    item *next = job->items = (item *)(partials + floats);
    for (int64_t i = 0; i < num_tiles; i++) {
        tile *t = job->tiles + i;
        if (t->left) {
            t->partials = partials;
            partials += shared_floats(t);
        }
        for (int32_t part = 0; part < (t->left ? t->num_parts : 1); part++) *next++ = (item){(int32_t)i, part};
    }
    return items;
}

// q [tokens, Hq, Dk], tokens `q_stride` apart -> out [tokens, Hq, Dv], contiguous. k and v hold the sequences' rows,
// the step's own included. Learned logits sinks [Hq], unless NULL, join each softmax and add no value. Dk and Dv are
// multiples of 16, at most 32 query heads share a K/V head. Returns 0, or 1 if memory ran out.
int32_t octavo_attend(const float *q, int64_t q_stride, const octavo_rows *k, const octavo_rows *v,
                      const octavo_sequence *sequences, int64_t count, const octavo_heads *heads, const float *sinks,
                      float *out) {
    const row_tile rows = {.heads = heads, .k = k, .v = v, .group = heads->num_q_heads / heads->num_kv_heads,
                           .num_heads = heads_of_tiles(sequences, count, heads)};
    const int64_t num_tiles = list_tiles(sequences, count, rows, NULL);
    if (num_tiles == 0) return 0;
    _Atomic int failed = 0;
    attention job = {.q = q, .q_stride = q_stride, .sinks = sinks, .out = out, .out_stride = heads->num_q_heads * v->dim,
                     .tiles = octavo_scratch(SCRATCH_TILES, num_tiles * (int64_t)sizeof(tile)), .failed = &failed};
    if (job.tiles == NULL) return 1;
    list_tiles(sequences, count, rows, job.tiles);
    int64_t work = 0;
    for (int64_t i = 0; i < count; i++)
        work += sequences[i].num_tokens * (sequences[i].start + sequences[i].num_tokens) * heads->num_q_heads * k->dim;
    const int alone = work < LEAST_WORK;
    const int64_t items = list_items(&job, num_tiles, alone ? 1 : octavo_threads());
    if (items == 0) return 1;
    if (alone) attend_items(&job, 0, items);
    else octavo_parallel_each(items, attend_items, &job);
    return failed;
}
