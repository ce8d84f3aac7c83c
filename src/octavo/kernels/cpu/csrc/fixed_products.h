// Products of one tile of W, in whole steps, with a few rows of x, in vector registers.
//
// A group's sum of x times (code - middle) fits in 16 bits for each plane of x: beside the sum of x it makes a pair, which
// one instruction multiplies by scale and offset and adds up.
#ifndef OCTAVO_FIXED_PRODUCTS_H
#define OCTAVO_FIXED_PRODUCTS_H

#include "fixed_activations.h"
#include "products.h"

// acc + a stripe's part, of whose planes the sums are these.
INLINE vf add_stripe(vf acc, vi high, vi low, float scale, vf step) {
    return fma_v(fma_v(to_float(high), splat(PLANE), to_float(low)) * splat(scale), step, acc);
}

// The low half of a sum of products beside that of x, if anything is multiplied with the latter.
INLINE vi beside(vi sum, const span_sum *of_x, int wanted) {
    return wanted ? (sum & 0xffff) | splat_i(of_x->beside) : sum;
}

#if PAIRS_OF_BYTES
// The sums of a group of W's codes with both planes of rows of x, for which no instruction adds up four bytes: pairs of
// them in 16 bits, which hold a whole group's. They meet scale and offset as `multiply_fixed` says.
INLINE void add_group_pairs(const uint8_t *record, const int8_t *x, const span_sums *sums, int g, int rows, int bits,
                            int group, vi numbers, int v, vi high[MOST_ROWS][NV], vi low[MOST_ROWS][NV]) {
    const int which = group == 16 ? g : BOTH_HALVES;
    const vi scale = (numbers & 0xffff) | numbers << 16;
    vi codes[SPAN / 4];
    for (int step = 0; step < group / 8; step++)
        load_pair(record, bits, g * group / 8 + step, v, codes + step, codes + group / 8 + step);
    for (int r = 0; r < rows; r++) {
        const int8_t *at = x + r * ROW_PLANES + g * group;
        vi h = pairs_of_bytes(codes[0], splat_bytes(at)), w = pairs_of_bytes(codes[0], splat_bytes(at + PAIR));
        for (int step = 1; step < group / 4; step++) {
            h = add_words(h, pairs_of_bytes(codes[step], splat_bytes(at + 4 * step)));
            w = add_words(w, pairs_of_bytes(codes[step], splat_bytes(at + 4 * step + PAIR)));
        }
        high[r][v] = dot2(dot2(high[r][v], h, scale), splat_i(sums[2 * r][which][0].beside), numbers);
        low[r][v] = dot2(dot2(low[r][v], w, scale), splat_i(sums[2 * r][which][1].beside), numbers);
    }
}
#endif

// `multiply_tile` for 4 and 5 bits.
INLINE void multiply_fixed(const uint8_t *tile, const uint8_t *x, fixed_layout l, int64_t row, int rows, int bits,
                           int group, int zero, int has_minimum, vf acc[MOST_ROWS][NV]) {
    const int offset = middle_of(bits) - zero;
    const int64_t bytes = record_bytes(bits, group, has_minimum), stripes = count_stripes(l.spans);
    const int64_t height = l.height, next_pair = pair_bytes(l);
    const uint8_t *pair = x + scale_bytes(l);
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < NV; v++) acc[r][v] = splat(0.0f);
    for (int64_t stripe = 0; stripe < stripes; stripe++) {
        const int64_t start = 2 * stripe_start(l.spans, stripe), next = 2 * stripe_start(l.spans, stripe + 1);
        const int64_t end = next < l.spans ? next : l.spans;
        const float *steps = (const float *)(tile + start * bytes + stripe * STEP_BYTES);
        const uint8_t *record = (const uint8_t *)(steps + LANES);
        vi high[MOST_ROWS][NV], low[MOST_ROWS][NV];
        for (int r = 0; r < rows; r++)
            for (int v = 0; v < NV; v++) high[r][v] = low[r][v] = splat_i(0);
        for (int64_t s = start; s < end; s++, record += bytes) {
            const int8_t *planes = (const int8_t *)pair + row * ROW_PLANES + s % 2 * SPAN;
            const span_sums *sums = sums_at(pair, height, row, (int)(s % 2));
            load_ahead(record, bytes);
            for (int g = 0; g < SPAN / group; g++)
                for (int v = 0; v < NV; v++) {
                    const vi numbers = load_steps(record, bits, g, has_minimum, offset, v);
#if PAIRS_OF_BYTES
                    add_group_pairs(record, planes, sums, g, rows, bits, group, numbers, v, high, low);
#else
                    const int which = group == 16 ? g : BOTH_HALVES;
                    vi h[MOST_ROWS], w[MOST_ROWS];
                    for (int r = 0; r < rows; r++) {
                        h[r] = splat_i(sums[2 * r][which][0].before);
                        w[r] = splat_i(sums[2 * r][which][1].before);
                    }
                    for (int step = 0; step < group / 8; step++) {
                        vi first, second;
                        load_pair(record, bits, g * group / 8 + step, v, &first, &second);
                        for (int r = 0; r < rows; r++) {
                            const int8_t *at = planes + r * ROW_PLANES + g * group + 4 * step;
                            h[r] = dot4(h[r], first, splat_bytes(at));
                            w[r] = dot4(w[r], first, splat_bytes(at + PAIR));
                            h[r] = dot4(h[r], second, splat_bytes(at + group / 2));
                            w[r] = dot4(w[r], second, splat_bytes(at + group / 2 + PAIR));
                        }
                    }
                    for (int r = 0; r < rows; r++) {
                        const span_sum *of_x = sums[2 * r][which];
                        high[r][v] = dot2(high[r][v], beside(h[r], of_x, has_minimum || offset), numbers);
                        low[r][v] = dot2(low[r][v], beside(w[r], of_x + 1, has_minimum || offset), numbers);
                    }
#endif
                }
            if (s % 2) pair += next_pair;
        }
        for (int r = 0; r < rows; r++) {
            const float scale = ((const float *)x)[stripe * height + row + r];
            for (int v = 0; v < NV; v++)
                acc[r][v] = add_stripe(acc[r][v], high[r][v], low[r][v], scale, load(steps + v * VL));
        }
    }
}

#endif
