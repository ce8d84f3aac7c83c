// Weights into the layout of codes.h, and single rows out of it.

#include <math.h>
#include <stdatomic.h>

#include "blocks.h"
#include "codes.h"
#include "fixed.h"
#include "pool.h"

int64_t octavo_packed_bytes(int64_t rows, int64_t columns, int32_t bits, int32_t group, int32_t has_minimum) {
    return (rows + LANES - 1) / LANES * tile_bytes(columns / SPAN, bits, group, has_minimum);
}

// Where column i of a record lies for one lane, in codes of fewer than 8 bits: byte `byte` of vector `index`.
typedef struct {
    int index, byte, second;
} place;

INLINE place place_of(int i, int lane, int group) {
    const int c = i % group, second = c >= group / 2, c4 = second ? c - group / 2 : c;
    return (place){.index = group / 8 * (i / group) + c4 / 4, .byte = 4 * lane + c4 % 4, .second = second};
}

// 16 rows' codes of a record, [lane][column], into the record, whose bytes have any content.
INLINE void write_codes(const uint8_t codes[LANES][SPAN], int bits, int group, uint8_t *record) {
    uint8_t words[SPAN / 4][4 * LANES]; // by fours of columns
    for (int w = 0; w < SPAN / 4; w++)
        for (int lane = 0; lane < LANES; lane++) memcpy(words[w] + 4 * lane, codes[lane] + 4 * w, 4);
    if (bits == 8) {
        memcpy(record, words, sizeof words);
        return;
    }
    for (int index = 0; index < SPAN / 8; index++) {
        const int first = index % (group / 8) + group / 4 * (index / (group / 8));
        const uint8_t *at[2] = {words[first], words[first + group / 8]};
        for (int i = 0; i < 64; i++) record[64 * index + i] = (at[0][i] & 15) | (at[1][i] & 15) << 4;
        for (int plane = 0; plane < bits - 4; plane++) {
            uint8_t *out = record + code_bytes(4) + 64 * plane + 16 * index;
            for (int half = 0; half < 2; half++)
                for (int i = 0; i < 8; i++) {
                    uint64_t eight;
                    memcpy(&eight, at[half] + 8 * i, 8);
                    // Gathers a bit of each byte in the top byte, the lowest first.
                    out[8 * half + i] = ((eight >> (4 + plane) & 0x0101010101010101u) * 0x0102040810204080u) >> 56;
                }
        }
    }
}

typedef struct {
    const uint8_t *codes;
    const float *scales, *minima;
    int64_t columns;
    octavo_weight weight;
    uint8_t *out;
} packing;

// The steps of a tile's stripes, which lie there as the largest weights.
INLINE void finish_steps(uint8_t *tile, int64_t spans, int64_t bytes) {
    for (int64_t stripe = 0; stripe < count_stripes(spans); stripe++) {
        float *steps = (float *)(tile + step_offset(spans, stripe, bytes));
        for (int lane = 0; lane < LANES; lane++) steps[lane] = step_of(steps[lane]);
    }
}

// A NaN stays.
INLINE void keep_larger(float *largest, float x) {
    if (x > *largest || x != x) *largest = x;
}

INLINE float *steps_at(uint8_t *tile, int64_t spans, int64_t span, int64_t bytes) {
    return (float *)(tile + step_offset(spans, stripe_of(spans, span), bytes));
}

// A group's numbers into its record, for one lane.
INLINE void write_numbers(uint8_t *record, const octavo_weight *w, int g, int lane, float scale, float minimum,
                          const float *steps) {
    if (is_fixed(w->bits)) {
        write_steps(record, w->bits, g, lane, scale, minimum, w->zero, w->has_minimum, steps[lane]);
        return;
    }
    uint16_t *numbers = (uint16_t *)(record + code_bytes(w->bits));
    numbers[LANES * g + lane] = to_half(scale / w->unit);
    if (w->has_minimum) numbers[LANES * (SPAN / w->group + g) + lane] = to_half(minimum / w->unit);
}

static void pack_item(void *job, int64_t first, int64_t last) {
    const packing *p = job;
    const int bits = p->weight.bits, group = p->weight.group, groups = SPAN / group;
    const int64_t bytes = record_bytes(bits, group, p->weight.has_minimum), spans = p->columns / SPAN;
    const int64_t row_groups = p->columns / group, whole = tile_bytes(spans, bits, group, p->weight.has_minimum);
    uint8_t codes[LANES][SPAN] = {0};
    for (int64_t t = first; t < last; t++) {
        const int64_t row = t * LANES;
        const int lanes = p->weight.rows - row < LANES ? (int)(p->weight.rows - row) : LANES;
        uint8_t *tile = p->out + t * whole;
        if (is_fixed(bits) || lanes < LANES) memset(tile, 0, (size_t)whole);
        if (is_fixed(bits)) {
            for (int64_t g = 0; g < row_groups; g++) {
                float *steps = steps_at(tile, spans, g / groups, bytes);
                for (int lane = 0; lane < lanes; lane++) {
                    const int64_t at = (row + lane) * row_groups + g;
                    const float minimum = p->weight.has_minimum ? p->minima[at] : 0.0f;
                    keep_larger(steps + lane, largest_weight(p->scales[at], minimum, bits, p->weight.zero));
                }
            }
            finish_steps(tile, spans, bytes);
        }
        if (lanes < LANES) memset(codes, 0, sizeof codes);
        for (int64_t s = 0; s < spans; s++) {
            uint8_t *record = tile + record_offset(spans, s, bits, bytes);
            const float *steps = is_fixed(bits) ? steps_at(tile, spans, s, bytes) : NULL;
            for (int lane = 0; lane < lanes; lane++) {
                memcpy(codes[lane], p->codes + (row + lane) * p->columns + s * SPAN, SPAN);
                for (int g = 0; g < groups; g++) {
                    int64_t at = (row + lane) * row_groups + s * groups + g;
                    write_numbers(record, &p->weight, g, lane, p->scales[at],
                                  p->weight.has_minimum ? p->minima[at] : 0.0f, steps);
                }
            }
            write_codes(codes, bits, group, record);
        }
    }
}

// codes [rows, columns] uint8, scales and minima [rows, columns / group] float32 -> `weight->data`. Its unit is set where
// there can only be one.
void octavo_pack(const uint8_t *codes, const float *scales, const float *minima, int64_t columns,
                 octavo_weight *weight) {
    if (is_fixed(weight->bits)) weight->unit = 1.0f;
    packing p = {codes, scales, minima, columns, *weight, (uint8_t *)weight->data};
    octavo_parallel((weight->rows + LANES - 1) / LANES, 4, pack_item, &p);
}

// ---- from a file's own blocks

typedef struct {
    const uint8_t *rows;
    int64_t stride;
    const int64_t *order;
    int64_t blocks; // in a row
    int encoding;
    octavo_weight weight;
    uint8_t *out;
    _Atomic uint32_t largest; // bits of the largest |scale| or |minimum|, which are ordered like the values
} block_packing;

INLINE const uint8_t *stored_row(const block_packing *p, int64_t row) {
    return p->rows + (p->order ? p->order[row] : row) * p->stride;
}

INLINE void find_largest(block_packing *p, int encoding, int64_t first, int64_t last) {
    const block_form form = FORMS[encoding];
    uint32_t largest = 0;
    for (int64_t row = first; row < last; row++) {
        const uint8_t *block = stored_row(p, row);
        for (int64_t b = 0; b < p->blocks; b++, block += form.bytes) {
            float numbers[2][MOST_GROUPS];
            const int count = form.spans * SPAN / form.group;
            block_numbers(encoding, block, numbers[0], numbers[1]);
            for (int which = 0; which <= form.has_minimum; which++)
                for (int i = 0; i < count; i++) {
                    uint32_t bits;
                    memcpy(&bits, &numbers[which][i], 4);
                    bits &= 0x7fffffffu;
                    largest = bits > largest ? bits : largest;
                }
        }
    }
    uint32_t before = atomic_load(&p->largest);
    while (largest > before && !atomic_compare_exchange_weak(&p->largest, &before, largest)) {}
}

// The steps of a tile, whose rows lie at `at`.
INLINE void find_steps(const block_packing *p, int encoding, const uint8_t *const *at, int lanes, uint8_t *tile) {
    const block_form form = FORMS[encoding];
    const int groups = SPAN / form.group;
    const int64_t bytes = record_bytes(form.bits, form.group, form.has_minimum), spans = p->blocks * form.spans;
    float scales[LANES][MOST_GROUPS], minima[LANES][MOST_GROUPS];
    for (int64_t i = 0; i < count_stripes(spans); i++) memset(tile + step_offset(spans, i, bytes), 0, STEP_BYTES);
    for (int64_t b = 0; b < p->blocks; b++) {
        for (int lane = 0; lane < lanes; lane++)
            block_numbers(encoding, at[lane] + b * form.bytes, scales[lane], minima[lane]);
        for (int s = 0; s < form.spans; s++) {
            float *steps = steps_at(tile, spans, b * form.spans + s, bytes);
            for (int lane = 0; lane < lanes; lane++)
                for (int i = s * groups; i < (s + 1) * groups; i++)
                    keep_larger(steps + lane, largest_weight(scales[lane][i], form.has_minimum ? minima[lane][i] : 0.0f,
                                                             form.bits, form.zero));
        }
    }
    finish_steps(tile, spans, bytes);
}

INLINE void pack_tiles(const block_packing *p, int encoding, int64_t first, int64_t last) {
    const block_form form = FORMS[encoding];
    const int bits = form.bits, group = form.group, groups = SPAN / group;
    const int64_t bytes = record_bytes(bits, group, form.has_minimum), spans = p->blocks * form.spans;
    const int64_t whole = tile_bytes(spans, bits, group, form.has_minimum);
    float scales[LANES][MOST_GROUPS] = {0}, minima[LANES][MOST_GROUPS] = {0};
    uint8_t codes[LANES][SPAN] = {0};
    octavo_weight weight = p->weight; // its form as constants
    weight.bits = bits, weight.group = group, weight.zero = form.zero, weight.has_minimum = form.has_minimum;
    for (int64_t t = first; t < last; t++) {
        const int64_t row = t * LANES;
        const int lanes = weight.rows - row < LANES ? (int)(weight.rows - row) : LANES;
        if (lanes < LANES) { // what is of no row is zero
            memset(scales, 0, sizeof scales);
            memset(minima, 0, sizeof minima);
            memset(codes, 0, sizeof codes);
        }
        const uint8_t *at[LANES];
        for (int lane = 0; lane < lanes; lane++) at[lane] = stored_row(p, row + lane);
        uint8_t *tile = p->out + t * whole;
        if (is_fixed(bits)) find_steps(p, encoding, at, lanes, tile);
        for (int64_t b = 0; b < p->blocks; b++) {
            for (int lane = 0; lane < lanes; lane++) block_numbers(encoding, at[lane], scales[lane], minima[lane]);
            for (int s = 0; s < form.spans; s++) {
                const int64_t span = b * form.spans + s;
                uint8_t *record = tile + record_offset(spans, span, bits, bytes);
                const float *steps = is_fixed(bits) ? steps_at(tile, spans, span, bytes) : NULL;
                for (int lane = 0; lane < lanes; lane++) block_codes(encoding, at[lane], s, codes[lane]);
                write_codes(codes, bits, group, record);
                for (int g = 0; g < groups; g++)
                    for (int lane = 0; lane < LANES; lane++)
                        write_numbers(record, &weight, g, lane, scales[lane][s * groups + g],
                                      form.has_minimum ? minima[lane][s * groups + g] : 0.0f, steps);
            }
            for (int lane = 0; lane < lanes; lane++) at[lane] += form.bytes;
        }
    }
}

// `call` with the encoding as a constant.
#define FOR_ENCODING(encoding, call)                                                                                \
    switch (encoding) {                                                                                             \
    case Q4_0: call(Q4_0); break;                                                                                   \
    case Q4_1: call(Q4_1); break;                                                                                   \
    case Q5_0: call(Q5_0); break;                                                                                   \
    case Q5_1: call(Q5_1); break;                                                                                   \
    case Q8_0: call(Q8_0); break;                                                                                   \
    case Q4_K: call(Q4_K); break;                                                                                   \
    case Q5_K: call(Q5_K); break;                                                                                   \
    case Q6_K: call(Q6_K); break;                                                                                   \
    }

static void find_largest_item(void *job, int64_t first, int64_t last) {
    block_packing *p = job;
#define CALL(encoding) find_largest(p, encoding, first, last)
    FOR_ENCODING(p->encoding, CALL)
#undef CALL
}

static void pack_tiles_item(void *job, int64_t first, int64_t last) {
    const block_packing *p = job;
#define CALL(encoding) pack_tiles(p, encoding, first, last)
    FOR_ENCODING(p->encoding, CALL)
#undef CALL
}

// The power of two to divide by so that the largest number is near the top of float16, and few are subnormal.
static float unit_of(uint32_t largest_bits) {
    float largest;
    memcpy(&largest, &largest_bits, 4);
    if (!(largest > 0.0f && largest < INFINITY)) return 1.0f;
    int exponent;
    frexpf(largest, &exponent);
    return ldexpf(1.0f, exponent - 15 > -126 ? exponent - 15 : -126); // float32 has the inverse of no smaller one
}

// Rows of encoded blocks, `stride` bytes apart, the i-th of them order[i] unless that is NULL -> `weight->data`. Sets
// the weight's bits, group, zero, has_minimum and unit; its rows are given. Returns 0, or 1 for other encodings.
int32_t octavo_pack_blocks(const uint8_t *rows, int64_t stride, const int64_t *order, int64_t columns, int32_t encoding,
                           octavo_weight *weight) {
    if (encoding < 0 || encoding >= NUM_ENCODINGS) return 1;
    const block_form form = FORMS[encoding];
    block_packing p = {rows, stride, order, columns / SPAN / form.spans, encoding, .out = (uint8_t *)weight->data};
    weight->bits = form.bits, weight->group = form.group, weight->zero = form.zero, weight->has_minimum = form.has_minimum;
    if (is_fixed(form.bits)) {
        weight->unit = 1.0f;
    } else {
        octavo_parallel(weight->rows, 64, find_largest_item, &p);
        weight->unit = unit_of(p.largest);
    }
    p.weight = *weight;
    octavo_parallel((weight->rows + LANES - 1) / LANES, 4, pack_tiles_item, &p);
    return 0;
}

// The code of column i of a record, for one lane.
INLINE int code_at(const uint8_t *record, int bits, int group, int i, int lane) {
    if (bits == 8) return record[64 * (i / 4) + 4 * lane + i % 4];
    const place at = place_of(i, lane, group);
    int code = record[64 * at.index + at.byte] >> (4 * at.second) & 15;
    for (int plane = 0; plane < bits - 4; plane++)
        code |= (record[code_bytes(4) + 64 * plane + 8 * (2 * at.index + at.second) + at.byte / 8] >> (at.byte % 8) & 1)
                << (4 + plane);
    return code;
}

// Row `row` of the weight, decoded: rounding of scales aside, the file's own value.
static void decode_row(const octavo_weight *part, int64_t columns, int64_t row, float *y) {
    const int bits = part->bits, group = part->group, groups = SPAN / group, lane = (int)(row % LANES);
    const int64_t bytes = record_bytes(bits, group, part->has_minimum), spans = columns / SPAN;
    const uint8_t *tile = part->data + row / LANES * tile_bytes(spans, bits, group, part->has_minimum);
    for (int64_t s = 0; s < spans; s++) {
        const uint8_t *record = tile + record_offset(spans, s, bits, bytes);
        for (int i = 0; i < SPAN; i++) {
            const int g = i / group, code = code_at(record, bits, group, i, lane);
            if (is_fixed(bits)) {
                const int16_t *numbers = (const int16_t *)(record + code_bytes(bits));
                const float step = *(const float *)(tile + step_offset(spans, stripe_of(spans, s), bytes) + 4 * lane);
                const int at = LANES * g + lane;
                const int whole = part->has_minimum ? (code - middle_of(bits)) * numbers[2 * at] + numbers[2 * at + 1]
                                                    : (code - part->zero) * numbers[at];
                y[s * SPAN + i] = (float)whole * step;
                continue;
            }
            const uint16_t *scales = (const uint16_t *)(record + code_bytes(bits));
            uint16_t padded[2 * VL] = {scales[LANES * g + lane], 0};
            padded[1] = part->has_minimum ? scales[LANES * (groups + g) + lane] : 0;
            vf pair = load_half(padded);
            y[s * SPAN + i] = ((float)(code - part->zero) * pair[0] + pair[1]) * part->unit;
        }
    }
}

// Rows `ids` [count] of a one-part weight -> y [count, columns] float32.
void octavo_lookup(const octavo_weight *part, int64_t columns, const int64_t *ids, int64_t count, float *y) {
    for (int64_t i = 0; i < count; i++) decode_row(part, columns, ids[i], y + i * columns);
}
