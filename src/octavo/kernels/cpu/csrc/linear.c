// y = x W^T for weights of 4 to 8 bits, with the same bits for a row whatever rows are computed beside it.
//
// A row of x is cut into groups of 32 columns, each written as scale * (128 * high + low) with two planes of 8-bit
// integers: 15 bits, which costs a second integer product but no second read of the weights. Sums within a group are
// integers, and so exact; groups are added in float32, in column order. Each of the 16 lanes of a vector is one row of
// W, so nothing is ever added across lanes.

#include "linear.h"

#include "activations.h"
#include "amx.h"
#include "codes.h"
#include "pool.h"
#include "products.h"
#include "scratch.h"
#include "vec.h"

enum { ROWS_PER_ITEM = 64, AMX_LEAST_ROWS = 6 };

typedef struct {
    const octavo_weight *parts;
    int32_t num_parts;
    const float *x;
    int64_t x_stride, rows, spans, tiles;
    uint8_t *encoded;
    int64_t height;
    float *y;
    int64_t y_stride;
} product;

#define FORM(bits, group, minimum) ((bits) * 1000 + (group) * 10 + (minimum))
#define TILE(bits, group, minimum)                                                                                  \
    switch (rows) {                                                                                                 \
    case 1: multiply_tile(w, x, height, row, spans, 1, bits, group, part->zero, minimum, acc); return;              \
    case 2: multiply_tile(w, x, height, row, spans, 2, bits, group, part->zero, minimum, acc); return;              \
    case 3: multiply_tile(w, x, height, row, spans, 3, bits, group, part->zero, minimum, acc); return;              \
    default: multiply_tile(w, x, height, row, spans, 4, bits, group, part->zero, minimum, acc); return;             \
    }

// One function for each form that octavo_has_form names.
static void any_tile(const octavo_weight *part, const uint8_t *w, const uint8_t *x, int64_t height, int64_t row,
                     int64_t spans, int rows, vf acc[MOST_ROWS][NV]) {
    switch (FORM(part->bits, part->group, part->has_minimum)) {
    case FORM(4, 32, 0): TILE(4, 32, 0)
    case FORM(4, 32, 1): TILE(4, 32, 1)
    case FORM(4, 16, 0): TILE(4, 16, 0)
    case FORM(4, 16, 1): TILE(4, 16, 1)
    case FORM(5, 32, 0): TILE(5, 32, 0)
    case FORM(5, 32, 1): TILE(5, 32, 1)
    case FORM(6, 16, 0): TILE(6, 16, 0)
    case FORM(8, 32, 0): TILE(8, 32, 0)
    case FORM(8, 32, 1): TILE(8, 32, 1)
    case FORM(8, 16, 0): TILE(8, 16, 0)
    case FORM(8, 16, 1): TILE(8, 16, 1)
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
    case FORM(4, 32, 0): BLOCK(4, 32, 0)
    case FORM(4, 32, 1): BLOCK(4, 32, 1)
    case FORM(4, 16, 0): BLOCK(4, 16, 0)
    case FORM(4, 16, 1): BLOCK(4, 16, 1)
    case FORM(5, 32, 0): BLOCK(5, 32, 0)
    case FORM(5, 32, 1): BLOCK(5, 32, 1)
    case FORM(6, 16, 0): BLOCK(6, 16, 0)
    case FORM(8, 32, 0): BLOCK(8, 32, 0)
    case FORM(8, 32, 1): BLOCK(8, 32, 1)
    case FORM(8, 16, 0): BLOCK(8, 16, 0)
    case FORM(8, 16, 1): BLOCK(8, 16, 1)
    }
}
#endif

INLINE void store_lanes(float *y, const vf *acc, float unit, int64_t count) {
    if (count == LANES) {
        for (int v = 0; v < NV; v++) store(y + v * VL, acc[v] * splat(unit));
    } else {
        for (int64_t i = 0; i < count; i++) y[i] = acc[i / VL][i % VL] * unit;
    }
}

// Rows in a block of x: what a kernel takes at once.
static int64_t block_height(int64_t rows) {
#if AMX
    if (rows >= AMX_LEAST_ROWS && amx_allowed()) return rows <= 8 ? 8 : BLOCK_ROWS;
#endif
    return rows < BLOCK_ROWS ? rows : BLOCK_ROWS;
}

static void encode_item(void *job, int64_t first, int64_t last) {
    product *p = job;
    for (int64_t row = first; row < last; row++) {
        uint8_t *block = p->encoded + row / p->height * p->spans * p->height * BYTES_PER_SPAN;
        encode_row(p->x + row * p->x_stride, p->spans, block, p->height, row % p->height);
    }
}

#if AMX
// One tile for rows from `row` on, as long as there are enough of them before `end`; returns the first that is left.
// The registers are configured for groups of `*configured` columns, 0 if they are not.
static int64_t multiply_blocks(const product *p, const octavo_weight *part, const uint8_t *w, int64_t row, int64_t end,
                               int64_t count, float *y, int *configured) {
    if (end - row < AMX_LEAST_ROWS || p->spans > AMX_SPANS || !amx_allowed()) return row;
    uint8_t *codes = octavo_scratch(SCRATCH_CODES, p->spans * SPAN * LANES);
    if (codes == NULL) return row;
    if (*configured != part->group) amx_configure(part->group);
    *configured = part->group;
    for (int first = 1; end - row >= AMX_LEAST_ROWS; first = 0) {
        vf acc[BLOCK_ROWS];
        const uint8_t *x = p->encoded + row * p->spans * BYTES_PER_SPAN;
        block_amx(part, w, codes, first, x, p->spans, (int)p->height, acc);
        for (int64_t r = 0; r < p->height && row < end; r++, row++)
            store_lanes(y + row * p->y_stride, acc + r, part->unit, count);
    }
    return row;
}
#endif

// An item is one tile for ROWS_PER_ITEM rows.
static void multiply_item(void *job, int64_t first, int64_t last) {
    product *p = job;
#if AMX
    int configured = 0;
#endif
    for (int64_t item = first; item < last; item++) {
        int64_t tile = item % p->tiles, row = item / p->tiles * ROWS_PER_ITEM, column = 0;
        int64_t end = row + ROWS_PER_ITEM < p->rows ? row + ROWS_PER_ITEM : p->rows;
        const octavo_weight *part = p->parts;
        for (; tile >= (part->rows + LANES - 1) / LANES; part++) {
            tile -= (part->rows + LANES - 1) / LANES;
            column += part->rows;
        }
        const uint8_t *w = part->data + tile * p->spans * record_bytes(part->bits, part->group, part->has_minimum);
        int64_t count = part->rows - tile * LANES < LANES ? part->rows - tile * LANES : LANES;
        float *y = p->y + column + tile * LANES;
#if AMX
        row = multiply_blocks(p, part, w, row, end, count, y, &configured);
#endif
        for (; row < end; row += MOST_ROWS) {
            int rows = end - row < MOST_ROWS ? (int)(end - row) : MOST_ROWS;
            vf acc[MOST_ROWS][NV];
            const uint8_t *x = p->encoded + row / p->height * p->spans * p->height * BYTES_PER_SPAN;
            any_tile(part, w, x, p->height, row % p->height, p->spans, rows, acc);
            for (int r = 0; r < rows; r++) store_lanes(y + (row + r) * p->y_stride, acc[r], part->unit, count);
        }
    }
#if AMX
    if (configured) _tile_release();
#endif
}

int32_t octavo_linear(const octavo_weight *parts, int32_t num_parts, int64_t columns, const float *x, int64_t x_stride,
                      int64_t rows, float *y, int64_t y_stride) {
    if (rows <= 0) return 0;
    product p = {.parts = parts, .num_parts = num_parts, .x = x, .x_stride = x_stride, .rows = rows,
                 .spans = columns / SPAN, .y = y, .y_stride = y_stride};
    for (int32_t i = 0; i < num_parts; i++) p.tiles += (parts[i].rows + LANES - 1) / LANES;
    p.height = block_height(rows);
    int64_t count = (rows + p.height - 1) / p.height * p.height * p.spans;
    p.encoded = octavo_scratch(SCRATCH_ENCODED, count * BYTES_PER_SPAN + 64); // a vector may reach past the last number
    if (p.encoded == NULL) return 1;
    if (rows % p.height) { // rows that nobody asked for are computed too
        int64_t block = p.height * p.spans * BYTES_PER_SPAN;
        memset(p.encoded + rows / p.height * block, 0, block);
    }
    octavo_parallel(rows, rows * p.spans < 1024 ? rows : 4, encode_item, &p);
    int64_t items = p.tiles * ((rows + ROWS_PER_ITEM - 1) / ROWS_PER_ITEM);
    // Less than about a microsecond of work is not worth handing out, nor are tile registers worth configuring for it.
    int64_t work = (rows < ROWS_PER_ITEM ? rows : ROWS_PER_ITEM) * p.spans;
    int64_t grain = (rows < AMX_LEAST_ROWS ? 64 : 512) / work;
    octavo_parallel(items, grain < 1 ? 1 : grain, multiply_item, &p);
    return 0;
}
