// y = x W^T for weights of 4 to 8 bits, with the same bits for a row whatever rows are computed beside it.
//
// A row of x is written as scale * (128 * high + low) with two planes of 8-bit integers: 15 bits, which costs a second
// integer product but no second read of the weights. Sums of integers are exact, whatever forms them; the rest is added
// in float32, in column order. Each of the 16 lanes of a vector is one row of W, so nothing is ever added across lanes.
// Weights of 6 and 8 bits are multiplied as their codes, by groups of 16 or 32 columns, with a scale of x for every 32
// (activations.h, products.h, amx.h). Those of 4 and 5 bits are whole numbers of a step in up to 512 columns, and so is
// x: that many are added up as integers (fixed*.h).

#include "linear.h"

#include "activations.h"
#include "amx.h"
#include "best_rows.h"
#include "codes.h"
#include "fixed_amx.h"
#include "fixed_products.h"
#include "gate.h"
#include "pool.h"
#include "products.h"
#include "rowwise.h"
#include "scratch.h"
#include "vec.h"

// Rows of x of an item, whose numbers are to stay in the second cache; of long rows, without tile registers, half.
enum { ROWS_PER_ITEM = 256, LONG_SPANS = 32, AMX_LEAST_ROWS = 6, CACHED_BYTES = 1 << 20 };

// How x is encoded: as activations.h says, and as fixed_activations.h does, with sums for weights of 4 and of 5 bits.
enum { BY_SPANS, FIXED_4, FIXED_5, NUM_ENCODED };

typedef struct {
    const octavo_weight *parts;
    int32_t num_parts;
    const float *x;
    int64_t x_stride, rows, spans, tiles;
    uint8_t *encoded[NUM_ENCODED]; // NULL: no part needs it
    fixed_layout layout[NUM_ENCODED];
    int64_t height, rows_per_item;
    int past_caches; // whether y is too large for them
    int in_tiles;    // whether tile registers are used
    float *y;
    int64_t y_stride;
    int64_t gate_tiles; // 0: no gates; else so many tiles lie before those of the values
    int32_t gelu;
    best_rows *best; // wanted instead of y, or NULL
} product;

#define TILE(bits, group, minimum)                                                                                  \
    switch (rows) {                                                                                                 \
    case 1: multiply_tile(w, x, height, row, spans, 1, bits, group, part->zero, minimum, acc); return;              \
    case 2: multiply_tile(w, x, height, row, spans, 2, bits, group, part->zero, minimum, acc); return;              \
    case 3: multiply_tile(w, x, height, row, spans, 3, bits, group, part->zero, minimum, acc); return;              \
    case 4: multiply_tile(w, x, height, row, spans, 4, bits, group, part->zero, minimum, acc); return;              \
    default: multiply_tile(w, x, height, row, spans, MOST_ROWS, bits, group, part->zero, minimum, acc); return;     \
    }

// One function for each form that octavo_has_form names, here of 6 and 8 bits.
static void any_tile(const octavo_weight *part, const uint8_t *w, const uint8_t *x, int64_t height, int64_t row,
                     int64_t spans, int rows, vf acc[MOST_ROWS][NV]) {
    switch (FORM(part->bits, part->group, part->has_minimum)) {
    case FORM(6, 16, 0): TILE(6, 16, 0)
    case FORM(8, 32, 0): TILE(8, 32, 0)
    case FORM(8, 32, 1): TILE(8, 32, 1)
    case FORM(8, 16, 0): TILE(8, 16, 0)
    case FORM(8, 16, 1): TILE(8, 16, 1)
    }
}

#define FIXED(bits, group, minimum)                                                                                 \
    switch (rows) {                                                                                                 \
    case 1: multiply_fixed(w, x, l, row, 1, bits, group, part->zero, minimum, acc); return;                         \
    case 2: multiply_fixed(w, x, l, row, 2, bits, group, part->zero, minimum, acc); return;                         \
    case 3: multiply_fixed(w, x, l, row, 3, bits, group, part->zero, minimum, acc); return;                         \
    case 4: multiply_fixed(w, x, l, row, 4, bits, group, part->zero, minimum, acc); return;                         \
    default: multiply_fixed(w, x, l, row, MOST_ROWS, bits, group, part->zero, minimum, acc); return;                \
    }

// And of 4 and 5.
static void fixed_tile(const octavo_weight *part, const uint8_t *w, const uint8_t *x, fixed_layout l, int64_t row,
                       int rows, vf acc[MOST_ROWS][NV]) {
    switch (FORM(part->bits, part->group, part->has_minimum)) {
    case FORM(4, 32, 0): FIXED(4, 32, 0)
    case FORM(4, 32, 1): FIXED(4, 32, 1)
    case FORM(4, 16, 0): FIXED(4, 16, 0)
    case FORM(4, 16, 1): FIXED(4, 16, 1)
    case FORM(5, 32, 0): FIXED(5, 32, 0)
    case FORM(5, 32, 1): FIXED(5, 32, 1)
    }
}

// Whether there are kernels for such weights; 8 bits take any code.
int32_t octavo_has_form(int32_t bits, int32_t group, int32_t has_minimum) {
    switch (FORM(bits, group, has_minimum)) {
    case FORM(4, 32, 0): case FORM(4, 32, 1): case FORM(4, 16, 0): case FORM(4, 16, 1):
    case FORM(5, 32, 0): case FORM(5, 32, 1): case FORM(6, 16, 0):
    case FORM(8, 32, 0): case FORM(8, 32, 1): case FORM(8, 16, 0): case FORM(8, 16, 1): return 1;
    default: return 0;
    }
}

#if AMX
#define BLOCK(bits, group, minimum)                                                                                  \
    if (rows == 8) {                                                                                                \
        if (zero == 0) multiply_tile_amx(w, bytes, codes, first, x, spans, 8, bits, group, 0, minimum, acc);         \
        else multiply_tile_amx(w, bytes, codes, first, x, spans, 8, bits, group, zero, minimum, acc);                \
    } else {                                                                                                        \
        if (zero == 0) multiply_tile_amx(w, bytes, codes, first, x, spans, 16, bits, group, 0, minimum, acc);        \
        else multiply_tile_amx(w, bytes, codes, first, x, spans, 16, bits, group, zero, minimum, acc);               \
    }                                                                                                               \
    return;

// `any_tile` for a block of 8 or 16 rows.
static void block_amx(const octavo_weight *part, const uint8_t *w, uint8_t *codes, int first, const uint8_t *x,
                      int64_t spans, int rows, vf acc[BLOCK_ROWS]) {
    const int64_t bytes = record_bytes(part->bits, part->group, part->has_minimum);
    const int zero = part->zero;
    switch (FORM(part->bits, part->group, part->has_minimum)) {
    case FORM(6, 16, 0): BLOCK(6, 16, 0)
    case FORM(8, 32, 0): BLOCK(8, 32, 0)
    case FORM(8, 32, 1): BLOCK(8, 32, 1)
    case FORM(8, 16, 0): BLOCK(8, 16, 0)
    case FORM(8, 16, 1): BLOCK(8, 16, 1)
    }
}
#endif

INLINE void store_lanes(float *y, const vf *acc, float unit, int64_t count, int past_caches) {
    if (count == LANES && past_caches) {
        for (int v = 0; v < NV; v++) stream(y + v * VL, acc[v] * splat(unit));
    } else if (count == LANES) {
        for (int v = 0; v < NV; v++) store(y + v * VL, acc[v] * splat(unit));
    } else {
        for (int64_t i = 0; i < count; i++) y[i] = acc[i / VL][i % VL] * unit;
    }
}

static int encoding_of(const octavo_weight *part) {
    return !is_fixed(part->bits) ? BY_SPANS : part->bits == 4 ? FIXED_4 : FIXED_5;
}

static int64_t block_bytes(const product *p, int encoding) {
    return encoding == BY_SPANS ? p->spans * p->height * BYTES_PER_SPAN : fixed_bytes(p->layout[encoding]);
}

static void encode_item(void *job, int64_t first, int64_t last) {
    product *p = job;
    for (int encoding = 0; encoding < NUM_ENCODED; encoding++) {
        if (p->encoded[encoding] == NULL) continue;
        for (int64_t row = first; row < last; row++) {
            uint8_t *block = p->encoded[encoding] + row / p->height * block_bytes(p, encoding);
            const float *x = p->x + row * p->x_stride;
            if (encoding == BY_SPANS) encode_row(x, p->spans, block, p->height, row % p->height);
            else encode_fixed_row(x, p->layout[encoding], block, row % p->height);
        }
    }
}

// One tile for rows of x, on their way to y.
typedef struct {
    const octavo_weight *part;
    const uint8_t *w;
    int64_t row, end, count; // rows of x, and of W
    float *y;                // of x's row `row`
    int64_t y_stride;
    int past_caches;
    int64_t column;   // of y
    best_lanes *best; // of all rows of x, instead of y; or NULL
} tile_task;

static void store_row(const tile_task *t, int64_t row, const vf *acc) {
    if (t->best) keep_best(t->best + row, acc, t->part->unit, t->count, t->column);
    else store_lanes(t->y + (row - t->row) * t->y_stride, acc, t->part->unit, t->count, t->past_caches);
}

static void multiply_rows(const product *p, const tile_task *t) {
    const int encoding = encoding_of(t->part);
    for (int64_t row = t->row, rows; row < t->end; row += rows) {
        rows = rows_at_once(t->end - row);
        const uint8_t *x = p->encoded[encoding] + row / p->height * block_bytes(p, encoding);
        vf acc[MOST_ROWS][NV];
        if (encoding == BY_SPANS) any_tile(t->part, t->w, x, p->height, row % p->height, p->spans, (int)rows, acc);
        else fixed_tile(t->part, t->w, x, p->layout[encoding], row % p->height, (int)rows, acc);
        for (int64_t r = 0; r < rows; r++) store_row(t, row + r, acc[r]);
    }
}

#if AMX
// `configured`: for which groups of columns the registers are, or minus, times rows of x, if in whole steps; 0: none.
static void multiply_blocks(const product *p, const tile_task *t, int *configured) {
    const int encoding = encoding_of(t->part);
    const uint8_t *x = p->encoded[encoding] + t->row / p->height * block_bytes(p, encoding);
    const int wanted = encoding == BY_SPANS ? t->part->group : -(int)p->height * t->part->group;
    if (*configured != wanted) {
        if (wanted > 0) amx_configure(wanted);
        else configure_fixed(p->height, t->part->group);
        *configured = wanted;
    }
    if (encoding != BY_SPANS && p->height == FEW) {
        vf acc[FEW];
        few_rows_amx(t->part, t->w, x, p->layout[encoding], acc);
        for (int64_t r = 0; t->row + r < t->end; r++) store_row(t, t->row + r, acc + r);
        return;
    }
    if (encoding != BY_SPANS) {
        float acc[ROWS_PER_ITEM * LANES] __attribute__((aligned(64)));
        multiply_fixed_amx(t->part, t->w, x, p->layout[encoding], (t->end - t->row + p->height - 1) / p->height, acc);
        for (int64_t row = t->row; row < t->end; row++) {
            const vf out = load(acc + (row - t->row) * LANES);
            store_row(t, row, &out);
        }
        return;
    }
    uint8_t *codes = octavo_scratch(SCRATCH_CODES, p->spans * SPAN * LANES);
    if (codes == NULL) {
        multiply_rows(p, t);
        return;
    }
    for (int64_t row = t->row; row < t->end; x += block_bytes(p, encoding)) {
        vf acc[BLOCK_ROWS];
        block_amx(t->part, t->w, codes, row == t->row, x, p->spans, (int)p->height, acc);
        for (int64_t r = 0; r < p->height && row < t->end; r++, row++) store_row(t, row, acc + r);
    }
}
#endif

// Where tile `tile` of all parts is, for rows [row, end) of x, on its way to y.
static tile_task find_tile(const product *p, int64_t tile, int64_t row, int64_t end) {
    int64_t column = 0;
    const octavo_weight *part = p->parts;
    for (; tile >= (part->rows + LANES - 1) / LANES; part++) {
        tile -= (part->rows + LANES - 1) / LANES;
        column += part->rows;
    }
    return (tile_task){
        .part = part,
        .w = part->data + tile * tile_bytes(p->spans, part->bits, part->group, part->has_minimum),
        .row = row,
        .end = end,
        .count = part->rows - tile * LANES < LANES ? part->rows - tile * LANES : LANES,
        .y = p->best ? NULL : p->y + row * p->y_stride + column + tile * LANES,
        .y_stride = p->y_stride,
        .past_caches = p->past_caches,
        .column = column + tile * LANES,
    };
}

static void multiply_tile_rows(const product *p, const tile_task *t, int *configured) {
#if AMX
    if (p->in_tiles) {
        multiply_blocks(p, t, configured);
        return;
    }
#endif
    (void)configured;
    multiply_rows(p, t);
}

// A tile of gates and one of values, which stay in the caches, to one of y.
static void multiply_gated(const product *p, tile_task gates, int64_t tile, int *configured) {
    float both[2][ROWS_PER_ITEM * LANES] __attribute__((aligned(64)));
    tile_task values = find_tile(p, tile + p->gate_tiles, gates.row, gates.end);
    const tile_task out = gates;
    gates.y = both[0], values.y = both[1];
    gates.y_stride = values.y_stride = LANES;
    gates.past_caches = values.past_caches = 0;
    multiply_tile_rows(p, &gates, configured);
    multiply_tile_rows(p, &values, configured);
    for (int64_t r = 0; r < out.end - out.row; r++)
        for (int64_t i = r * LANES; i < (r + 1) * LANES; i += VL) {
            const vf value = activate(load(both[0] + i), p->gelu) * load(both[1] + i);
            float *y = out.y + r * out.y_stride + (i - r * LANES);
            if (out.past_caches) stream(y, value);
            else store(y, value);
        }
}

// An item is one tile, or one of gates and one of values, for `rows_per_item` rows.
static void multiply_item(void *job, int64_t first, int64_t last) {
    product *p = job;
    best_lanes best[BEST_MOST_ROWS];
    if (p->best) begin_best(best, p->rows);
    int configured = 0;
    for (int64_t item = first; item < last; item++) {
        const int64_t tile = item % p->tiles, row = item / p->tiles * p->rows_per_item;
        const int64_t end = row + p->rows_per_item < p->rows ? row + p->rows_per_item : p->rows;
        tile_task task = find_tile(p, tile, row, end);
        if (p->best) task.best = best;
        if (p->gate_tiles) multiply_gated(p, task, tile, &configured);
        else multiply_tile_rows(p, &task, &configured);
    }
    if (p->best) merge_best(p->best, best, p->rows);
    if (p->past_caches) finish_streams();
#if AMX
    if (configured) _tile_release();
#endif
}

// Room for the encodings of x that the parts need. Returns 0, or 1 if memory ran out.
static int32_t place_encoded(product *p) {
    const int64_t blocks = (p->rows + p->height - 1) / p->height;
    int needed[NUM_ENCODED] = {0};
    for (int32_t i = 0; i < p->num_parts; i++) needed[encoding_of(p->parts + i)] = 1;
    int64_t bytes = 0, at[NUM_ENCODED];
    for (int encoding = 0; encoding < NUM_ENCODED; encoding++) {
        p->layout[encoding] = (fixed_layout){p->spans, p->height, encoding == FIXED_4 ? 4 : 5,
                                             .has_sums = !p->in_tiles || p->height < BLOCK_ROWS};
        at[encoding] = bytes;
        if (needed[encoding]) bytes += (blocks * block_bytes(p, encoding) + 127) / 64 * 64; // a vector may reach beyond it
    }
    uint8_t *memory = octavo_scratch(SCRATCH_ENCODED, bytes);
    if (memory == NULL) return 1;
    for (int encoding = 0; encoding < NUM_ENCODED; encoding++) {
        p->encoded[encoding] = needed[encoding] ? memory + at[encoding] : NULL;
        if (needed[encoding] && p->rows % p->height) { // rows that nobody asked for are computed too
            const int64_t block = block_bytes(p, encoding);
            memset(p->encoded[encoding] + p->rows / p->height * block, 0, (size_t)block);
        }
    }
    return 0;
}

// Whether tile registers are worth it; sets how many rows of x a block and an item have.
static void choose_kernels(product *p) {
    p->height = p->rows < BLOCK_ROWS ? p->rows : BLOCK_ROWS;
    p->rows_per_item = p->spans > LONG_SPANS ? ROWS_PER_ITEM / 2 : ROWS_PER_ITEM;
    p->in_tiles = 0;
#if AMX
    if (p->rows < AMX_LEAST_ROWS || p->spans > AMX_SPANS || !amx_allowed()) return;
    p->in_tiles = 1;
    p->rows_per_item = ROWS_PER_ITEM;
    p->height = p->rows <= 8 ? 8 : BLOCK_ROWS;
#endif
}

// `tiles`, x, y and how it is gated are set. Returns 0, or 1 if memory ran out.
static int32_t multiply(product *p) {
    const int64_t rows = p->rows;
    p->past_caches = rows * p->y_stride * 4 > CACHED_BYTES;
    choose_kernels(p);
    if (place_encoded(p)) return 1;
    octavo_parallel(rows, rows * p->spans < 1024 ? rows : 4, encode_item, p);
    int64_t items = p->tiles * ((rows + p->rows_per_item - 1) / p->rows_per_item);
    // Less than about a microsecond of work is not worth handing out, nor are tile registers worth configuring for it.
    int64_t work = (rows < p->rows_per_item ? rows : p->rows_per_item) * p->spans * (p->gate_tiles ? 2 : 1);
    int64_t grain = (rows < AMX_LEAST_ROWS ? 64 : 512) / work;
    octavo_parallel(items, grain < 1 ? 1 : grain, multiply_item, p);
    return 0;
}

int32_t octavo_linear(const octavo_weight *parts, int32_t num_parts, int64_t columns, const float *x, int64_t x_stride,
                      int64_t rows, float *y, int64_t y_stride) {
    if (rows <= 0) return 0;
    product p = {.parts = parts, .num_parts = num_parts, .x = x, .x_stride = x_stride, .rows = rows,
                 .spans = columns / SPAN, .y = y, .y_stride = y_stride};
    for (int32_t i = 0; i < num_parts; i++) p.tiles += (parts[i].rows + LANES - 1) / LANES;
    return multiply(&p);
}

int32_t octavo_linear_greedy(const octavo_weight *parts, int32_t num_parts, int64_t columns, const float *x,
                             int64_t x_stride, int64_t rows, int64_t *index) {
    if (rows <= 0) return 0;
    best_rows best;
    open_best(&best, rows);
    product p = {.parts = parts, .num_parts = num_parts, .x = x, .x_stride = x_stride, .rows = rows,
                 .spans = columns / SPAN, .best = &best};
    for (int32_t i = 0; i < num_parts; i++) p.tiles += (parts[i].rows + LANES - 1) / LANES;
    if (multiply(&p)) return 1;
    close_best(&best, rows, index);
    return 0;
}

int32_t octavo_gated_linear(const octavo_weight *parts, int32_t num_parts, int64_t columns, const float *x,
                            int64_t rows, int64_t width, int32_t gelu, float *y) {
    if (rows <= 0) return 0;
    int whole = width % LANES == 0; // so that no tile has gates and values, or rows of two parts
    for (int32_t i = 0; i < num_parts; i++) whole &= parts[i].rows % LANES == 0;
    if (!whole) {
        float *both = octavo_scratch(SCRATCH_GATES, rows * 2 * width * 4);
        if (both == NULL || octavo_linear(parts, num_parts, columns, x, columns, rows, both, 2 * width)) return 1;
        octavo_gate(both, rows, width, gelu, y);
        return 0;
    }
    product p = {.parts = parts, .num_parts = num_parts, .x = x, .x_stride = columns, .rows = rows,
                 .spans = columns / SPAN, .tiles = width / LANES, .y = y, .y_stride = width,
                 .gate_tiles = width / LANES, .gelu = gelu};
    return multiply(&p);
}
