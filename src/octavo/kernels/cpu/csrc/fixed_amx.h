// Products of one tile of W, in whole steps, with 6 and more rows of x, in tile registers. The integers are those of
// fixed_products.h.
//
// Up to 8 rows: both planes with the codes of one group at a time. More: both planes with both bytes of the weights, which
// are formed once for all rows, over a whole stripe.
#ifndef OCTAVO_FIXED_AMX_H
#define OCTAVO_FIXED_AMX_H

#include "amx.h"
#include "fixed_products.h"

#if AMX

typedef uint16_t vus __attribute__((vector_size(4 * VL)));

// The weights of a pair of spans, a byte in each: 256 * high + low, of which the high one is signed; by fours of columns.
typedef struct {
    uint8_t high[PAIR / 4][4 * LANES], low[PAIR / 4][4 * LANES];
} weight_pair;

// Of a block's rows: [high and low plane of x][high and low byte of weights][row][lane].
typedef int32_t stripe_sums[2][2][BLOCK_ROWS][LANES];

// For blocks of 16 rows, or for both planes of 8 with groups of `group` columns.
static void configure_fixed(int64_t height, int group) {
    struct {
        uint8_t palette, start, reserved[14];
        uint16_t bytes[16];
        uint8_t rows[16];
    } config = {.palette = 1};
    for (int t = 0; t < 8; t++) {
        config.rows[t] = (uint8_t)(height == 8 && t >= 6 ? group / 4 : 16);
        config.bytes[t] = (uint16_t)(height == 8 && (t == 4 || t == 5) ? group : 64);
    }
    finish_writes();
    _tile_loadconfig(&config);
}

INLINE void write_weights(vi codes, vus scale, vus offset, uint8_t *high, uint8_t *low) {
    const vus even = (vus)(codes & 0x00ff00ff) * scale + offset, odd = ((vus)codes >> 8) * scale + offset;
    *(vi *)low = ((vi)even & 0x00ff00ff) | (vi)(odd << 8);
    *(vi *)high = (vi)(even >> 8) | ((vi)odd & (vi)splat_i((int32_t)0xff00ff00));
}

INLINE void unpack_stripe(const uint8_t *record, int64_t spans, int bits, int group, int zero, int has_minimum,
                          weight_pair *out) {
    const int64_t bytes = record_bytes(bits, group, has_minimum);
    for (int64_t s = 0; s < spans; s++, record += bytes) {
        load_ahead(record, bytes);
        for (int g = 0; g < SPAN / group; g++) {
            const vi numbers = load_steps(record, bits, g, has_minimum, 0, 0);
            const vi low = numbers & 0xffff, scales = low | low << 16;
            // To a code and not to what it is above the middle.
            vi offset = (has_minimum ? numbers >> 16 : splat_i(0)) - low * (has_minimum ? middle_of(bits) : zero);
            offset = (offset & 0xffff) | offset << 16;
#pragma GCC unroll 4
            for (int step = 0; step < group / 8; step++) {
                vi first, second;
                load_pair(record, bits, g * group / 8 + step, 0, &first, &second);
                const int64_t at = s % 2 * (SPAN / 4) + g * group / 4 + step;
                weight_pair *pair = out + s / 2;
                write_weights(first, (vus)scales, (vus)offset, pair->high[at], pair->low[at]);
                write_weights(second, (vus)scales, (vus)offset, pair->high[at + group / 8], pair->low[at + group / 8]);
            }
        }
    }
}

#define UNPACK(bits, group, minimum) unpack_stripe(record, spans, bits, group, part->zero, minimum, out); return;

static void unpack_fixed(const octavo_weight *part, const uint8_t *record, int64_t spans, weight_pair *out) {
    switch (FORM(part->bits, part->group, part->has_minimum)) {
    case FORM(4, 32, 0): UNPACK(4, 32, 0)
    case FORM(4, 32, 1): UNPACK(4, 32, 1)
    case FORM(4, 16, 0): UNPACK(4, 16, 0)
    case FORM(4, 16, 1): UNPACK(4, 16, 1)
    case FORM(5, 32, 0): UNPACK(5, 32, 0)
    case FORM(5, 32, 1): UNPACK(5, 32, 1)
    }
}

// The sums of a block of `height` rows whose first pair lies at `x`.
INLINE void multiply_stripe(const weight_pair *weights, const uint8_t *x, int64_t step, int64_t pairs,
                            stripe_sums *sums) {
    finish_writes();
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t p = 0; p < pairs; p++, x += step) {
        _tile_loadd(4, x, ROW_PLANES);
        _tile_loadd(6, weights[p].high, 4 * LANES);
        _tile_dpbssd(0, 4, 6);
        _tile_loadd(7, weights[p].low, 4 * LANES);
        _tile_dpbsud(1, 4, 7);
        _tile_loadd(5, x + PAIR, ROW_PLANES);
        _tile_dpbssd(2, 5, 6);
        _tile_dpbsud(3, 5, 7);
    }
    _tile_stored(0, (*sums)[0][0], 4 * LANES);
    _tile_stored(1, (*sums)[0][1], 4 * LANES);
    _tile_stored(2, (*sums)[1][0], 4 * LANES);
    _tile_stored(3, (*sums)[1][1], 4 * LANES);
}

// One tile for `blocks` blocks of rows at `x` -> acc [blocks][height][LANES].
static void multiply_fixed_amx(const octavo_weight *part, const uint8_t *tile, const uint8_t *x, fixed_layout l,
                               int64_t blocks, float *acc) {
    weight_pair weights[STRIPE_PAIRS] __attribute__((aligned(64)));
    stripe_sums sums __attribute__((aligned(64)));
    const int64_t bytes = record_bytes(part->bits, part->group, part->has_minimum), stripes = count_stripes(l.spans);
    if (l.spans % 2) memset(weights, 0, sizeof weights); // what is beyond the last span is only read
    for (int64_t stripe = 0; stripe < stripes; stripe++) {
        const int64_t start = stripe_start(l.spans, stripe), next = stripe_start(l.spans, stripe + 1);
        const int64_t end = 2 * next < l.spans ? 2 * next : l.spans;
        const uint8_t *steps = tile + 2 * start * bytes + stripe * STEP_BYTES;
        unpack_fixed(part, steps + STEP_BYTES, end - 2 * start, weights);
        const vf step = load((const float *)steps);
        for (int64_t b = 0; b < blocks; b++) {
            const uint8_t *block = x + b * fixed_bytes(l);
            const float *scales = (const float *)block + stripe * l.height;
            multiply_stripe(weights, block + scale_bytes(l) + start * pair_bytes(l), pair_bytes(l), next - start, &sums);
            float *out = acc + b * l.height * LANES;
            for (int64_t r = 0; r < l.height; r++) {
                const vi high = (*(const vi *)sums[0][0][r] << 8) + *(const vi *)sums[0][1][r];
                const vi low = (*(const vi *)sums[1][0][r] << 8) + *(const vi *)sums[1][1][r];
                const vf before = stripe ? load(out + r * LANES) : splat(0.0f);
                store(out + r * LANES, add_stripe(before, high, low, scales[r], step));
            }
        }
    }
}

// ---- few rows

enum { FEW = 8, SLOTS = 4 };

// A group on its way through the tile registers.
typedef struct {
    const uint8_t *record;
    int64_t span, stripe, end; // of the stripe
} group_cursor;

INLINE int64_t stripe_end(int64_t spans, int64_t stripe) {
    const int64_t next = 2 * stripe_start(spans, stripe + 1);
    return next < spans ? next : spans;
}

INLINE void next_record(group_cursor *at, int64_t spans, int64_t bytes) {
    at->record += bytes;
    if (++at->span == at->end && at->span < spans) {
        at->record += STEP_BYTES;
        at->end = stripe_end(spans, ++at->stripe);
    }
}

// Four bits of each byte, less the middle of a code's range, as signed bytes. Where they are not all of a code, the rest of
// it is yet to be added.
INLINE vi signed_nibbles(vi codes, int bits, int high) {
#if defined(__GFNI__)
    // Each bit of the result is one of the codes' bits, or constant: in the code's middle the sign changes.
    if (bits == 4) {
        const __m512i from = _mm512_set1_epi64(high ? 0x1020408080808080 : 0x0102040808080808);
        return (vi)_mm512_gf2p8affine_epi64_epi8((__m512i)codes, from, 0xf8);
    }
    const __m512i from = _mm512_set1_epi64(high ? 0x1020408000000000 : 0x0102040800000000);
    return (vi)_mm512_gf2p8affine_epi64_epi8((__m512i)codes, from, 0xf0);
#else
    const vi nibbles = (high ? codes >> 4 : codes) & 0x0f0f0f0f;
    return (vi)_mm512_sub_epi8((__m512i)nibbles, _mm512_set1_epi8((char)middle_of(bits)));
#endif
}

// The codes of a group, less the middle: [group / 4][64].
INLINE void unpack_signed(const uint8_t *record, int bits, int group, int g, uint8_t *out) {
    const uint8_t *planes = record + code_bytes(4);
#pragma GCC unroll 4
    for (int step = 0; step < group / 8; step++) {
        const int index = g * group / 8 + step;
        const vi both = load_codes(record + 64 * index);
        *(vi *)(out + 64 * step) = add_high_bits(signed_nibbles(both, bits, 0), planes, bits, 2 * index, 0);
        *(vi *)(out + 64 * step + 8 * group) = add_high_bits(signed_nibbles(both, bits, 1), planes, bits, 2 * index + 1, 0);
    }
}

#define MULTIPLY_FEW(sum, tile_x, tile_w, x, codes)                                                                  \
    do {                                                                                                            \
        _tile_loadd(tile_w, codes, 64);                                                                             \
        _tile_loadd(tile_x, x, PAIR);                                                                               \
        _tile_zero(sum);                                                                                            \
        _tile_dpbssd(sum, tile_x, tile_w);                                                                          \
    } while (0)

// `multiply_fixed` for a block of 8 rows.
INLINE void multiply_few(const uint8_t *tile, const uint8_t *x, fixed_layout l, int bits, int group, int zero,
                         int has_minimum, vf acc[FEW]) {
    const int groups = SPAN / group, offset = middle_of(bits) - zero;
    const int64_t bytes = record_bytes(bits, group, has_minimum), spans = l.spans, count = spans * groups;
    const int64_t next_pair = FEW * (ROW_PLANES + 2 * (int64_t)sizeof(span_sums));
    const uint8_t *pairs = x + scale_bytes(l);
    uint8_t codes[SLOTS][SPAN * LANES] __attribute__((aligned(64)));
    int32_t sums[2][FEW][2][LANES] __attribute__((aligned(64))); // of both planes
    vi high[FEW], low[FEW];
#pragma GCC unroll 8
    for (int r = 0; r < FEW; r++) acc[r] = splat(0.0f), high[r] = low[r] = splat_i(0);
    group_cursor ahead = {tile + STEP_BYTES, 0, 0, stripe_end(spans, 0)}, now = ahead;
    // In turn i the codes of group i + 3 are unpacked, the sums of i + 1 stored, the products of i + 2 begun, and the
    // sums of i added up, so that nothing waits for what was begun just before it.
    for (int64_t i = -3; i < count; i++) {
        if (i + 3 < count) {
            const int g = (int)((i + 3) % groups);
            if (g == 0) load_ahead(ahead.record, bytes);
            unpack_signed(ahead.record, bits, group, g, codes[(i + 3) % SLOTS]);
            if (g == groups - 1) next_record(&ahead, spans, bytes);
        }
        finish_writes();
        if (i >= -1 && i + 1 < count) {
            if (i % 2) _tile_stored(0, sums[0], 64);
            else _tile_stored(1, sums[1], 64);
        }
        if (i >= -2 && i + 2 < count) {
            const int64_t span = (i + 2) / groups, g = (i + 2) % groups;
            const uint8_t *at = pairs + span / 2 * next_pair + span % 2 * SPAN + g * group;
            if (i % 2) MULTIPLY_FEW(1, 5, 7, at, codes[(i + 2) % SLOTS]);
            else MULTIPLY_FEW(0, 4, 6, at, codes[(i + 2) % SLOTS]);
        }
        if (i < 0) continue;
        const int g = (int)(i % groups);
        const vi numbers = load_steps(now.record, bits, g, has_minimum, offset, 0);
        const span_sums *of_x = sums_at(pairs + now.span / 2 * next_pair, FEW, 0, (int)(now.span % 2));
#pragma GCC unroll 8
        for (int r = 0; r < FEW; r++) {
            const span_sum *both = of_x[2 * r][group == 16 ? g : BOTH_HALVES];
            const int wanted = has_minimum || offset;
            high[r] = dot2(high[r], beside(*(const vi *)sums[i % 2][r][0], both, wanted), numbers);
            low[r] = dot2(low[r], beside(*(const vi *)sums[i % 2][r][1], both + 1, wanted), numbers);
        }
        if (g < groups - 1) continue;
        if (now.span + 1 == now.end) {
            const vf step = load((const float *)(tile + step_offset(spans, now.stripe, bytes)));
#pragma GCC unroll 8
            for (int r = 0; r < FEW; r++) {
                acc[r] = add_stripe(acc[r], high[r], low[r], ((const float *)x)[now.stripe * FEW + r], step);
                high[r] = low[r] = splat_i(0);
            }
        }
        next_record(&now, spans, bytes);
    }
}

#define FEW_ROWS(bits, group, minimum) multiply_few(w, x, l, bits, group, part->zero, minimum, acc); return;

static void few_rows_amx(const octavo_weight *part, const uint8_t *w, const uint8_t *x, fixed_layout l, vf acc[FEW]) {
    switch (FORM(part->bits, part->group, part->has_minimum)) {
    case FORM(4, 32, 0): FEW_ROWS(4, 32, 0)
    case FORM(4, 32, 1): FEW_ROWS(4, 32, 1)
    case FORM(4, 16, 0): FEW_ROWS(4, 16, 0)
    case FORM(4, 16, 1): FEW_ROWS(4, 16, 1)
    case FORM(5, 32, 0): FEW_ROWS(5, 32, 0)
    case FORM(5, 32, 1): FEW_ROWS(5, 32, 1)
    }
}

#endif
#endif
