// Weights into the layout of codes.h, and single rows out of it.

#include "codes.h"
#include "pool.h"

int64_t octavo_packed_bytes(int64_t rows, int64_t columns, int32_t bits, int32_t group, int32_t has_minimum) {
    return (rows + LANES - 1) / LANES * (columns / SPAN) * record_bytes(bits, group, has_minimum);
}

// Where column i of a record lies for one lane, in codes of fewer than 8 bits: byte `byte` of vector `index`.
typedef struct {
    int index, byte, second;
} place;

INLINE place place_of(int i, int lane, int group) {
    const int c = i % group, second = c >= group / 2, c4 = second ? c - group / 2 : c;
    return (place){.index = group / 8 * (i / group) + c4 / 4, .byte = 4 * lane + c4 % 4, .second = second};
}

typedef struct {
    const uint8_t *codes;
    const float *scales, *minima;
    int64_t rows, columns;
    octavo_weight weight;
    uint8_t *out;
} packing;

static void pack_item(void *job, int64_t first, int64_t last) {
    const packing *p = job;
    const int bits = p->weight.bits, group = p->weight.group, groups = SPAN / group;
    const int64_t bytes = record_bytes(bits, group, p->weight.has_minimum), spans = p->columns / SPAN;
    const int64_t row_groups = p->columns / group;
    const float inverse = 1.0f / p->weight.unit;
    for (int64_t tile = first; tile < last; tile++) {
        for (int64_t s = 0; s < spans; s++) {
            uint8_t *record = p->out + (tile * spans + s) * bytes;
            uint16_t *scales = (uint16_t *)(record + code_bytes(bits)), *minima = scales + groups * LANES;
            memset(record, 0, (size_t)bytes);
            for (int lane = 0; lane < LANES; lane++) {
                int64_t row = tile * LANES + lane;
                if (row >= p->rows) break;
                const uint8_t *codes = p->codes + row * p->columns + s * SPAN;
                for (int i = 0; i < SPAN; i++) {
                    if (bits == 8) {
                        record[64 * (i / 4) + 4 * lane + i % 4] = codes[i];
                        continue;
                    }
                    const place at = place_of(i, lane, group);
                    record[64 * at.index + at.byte] |= (codes[i] & 15) << (4 * at.second);
                    for (int plane = 0; plane < bits - 4; plane++)
                        record[code_bytes(4) + 64 * plane + 8 * (2 * at.index + at.second) + at.byte / 8] |=
                            (codes[i] >> (4 + plane) & 1) << (at.byte % 8);
                }
                for (int g = 0; g < groups; g++) {
                    int64_t at = row * row_groups + s * groups + g;
                    scales[LANES * g + lane] = to_half(p->scales[at] * inverse);
                    if (p->weight.has_minimum) minima[LANES * g + lane] = to_half(p->minima[at] * inverse);
                }
            }
        }
    }
}

// codes [rows, columns] uint8, scales and minima [rows, columns / group] float32 -> `weight->data`.
void octavo_pack(const uint8_t *codes, const float *scales, const float *minima, int64_t columns,
                 const octavo_weight *weight) {
    packing p = {codes, scales, minima, weight->rows, columns, *weight, (uint8_t *)weight->data};
    octavo_parallel((weight->rows + LANES - 1) / LANES, 4, pack_item, &p);
}

// Row `row` of the weight, decoded: 16-bit rounding of scales aside, the file's own value.
static void decode_row(const octavo_weight *part, int64_t columns, int64_t row, float *y) {
    const int bits = part->bits, group = part->group, groups = SPAN / group, lane = (int)(row % LANES);
    const int64_t bytes = record_bytes(bits, group, part->has_minimum), spans = columns / SPAN;
    const uint8_t *record = part->data + row / LANES * spans * bytes;
    for (int64_t s = 0; s < spans; s++, record += bytes) {
        const uint16_t *scales = (const uint16_t *)(record + code_bytes(bits));
        for (int i = 0; i < SPAN; i++) {
            const int g = i / group;
            int code = record[64 * (i / 4) + 4 * lane + i % 4];
            if (bits != 8) {
                const place at = place_of(i, lane, group);
                code = record[64 * at.index + at.byte] >> (4 * at.second) & 15;
                for (int plane = 0; plane < bits - 4; plane++)
                    code |= (record[code_bytes(4) + 64 * plane + 8 * (2 * at.index + at.second) + at.byte / 8] >>
                                 (at.byte % 8) & 1) << (4 + plane);
            }
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
