// Products of one tile of W with a few rows of x, in vector registers.
#ifndef OCTAVO_PRODUCTS_H
#define OCTAVO_PRODUCTS_H

#include "activations.h"
#include "codes.h"

// Rows of x that are multiplied at once: as many as there are registers for.
enum { MOST_ROWS = PAIRS_OF_BYTES && VL == 16 ? 8 : 4 };

// How many of `left` rows are next; there is code for 1 to 4 and for MOST_ROWS.
INLINE int rows_at_once(int64_t left) { return left >= MOST_ROWS ? MOST_ROWS : left < 4 ? (int)left : 4; }

// Per lane: acc + sum of 4 products of an unsigned byte of w and a signed byte of x.
INLINE vi dot4(vi acc, vi w, vi x) {
#if defined(__AVX512VNNI__) && VL == 16
    return (vi)_mm512_dpbusd_epi32((__m512i)acc, (__m512i)w, (__m512i)x);
#elif defined(__AVXVNNI__) && VL == 8
    return (vi)_mm256_dpbusd_avx_epi32((__m256i)acc, (__m256i)w, (__m256i)x);
#else
    for (int byte = 0; byte < 4; byte++) acc += ((w >> (8 * byte)) & 255) * ((x << (24 - 8 * byte)) >> 24);
    return acc;
#endif
}

// Per lane: acc + the product of the low halves + that of the high halves, all signed.
INLINE vi dot2(vi acc, vi a, vi b) {
#if defined(__AVX512VNNI__) && VL == 16
    return (vi)_mm512_dpwssd_epi32((__m512i)acc, (__m512i)a, (__m512i)b);
#elif defined(__AVX512BW__) && VL == 16
    return acc + (vi)_mm512_madd_epi16((__m512i)a, (__m512i)b);
#elif defined(__AVXVNNI__) && VL == 8
    return (vi)_mm256_dpwssd_avx_epi32((__m256i)acc, (__m256i)a, (__m256i)b);
#elif defined(__AVX2__) && VL == 8
    return acc + (vi)_mm256_madd_epi16((__m256i)a, (__m256i)b);
#else
    return acc + ((a << 16) >> 16) * ((b << 16) >> 16) + (a >> 16) * (b >> 16);
#endif
}

// total * scale + minimum * (sum of x), added to acc, for group g of `groups` in the span and its row r.
INLINE vf add_group(vf acc, vi total, int zero, vf scale, int has_minimum, vf minimum, span_view span, int r,
                    int groups, int g) {
    const int32_t sum = groups == 1 ? span.sum[r] : g == 0 ? span.first[r] : span.sum[r] - span.first[r];
    if (zero) total -= splat_i(zero * sum);
    acc = fma_v(to_float(total), scale * splat(span.scale[r]), acc);
    if (!has_minimum) return acc;
    return fma_v(minimum, splat(groups == 1 ? span.scaled_sum[r] : span.scale[r] * (float)sum), acc);
}

#if PAIRS_OF_BYTES
// Per lane: sums of the products of 4 columns' codes, a byte each, with rows of x.
INLINE void add_codes(vi codes, const int16_t *x, int rows, vi total[MOST_ROWS]) {
    const vi even = codes & 0x00ff00ff, odd = (codes >> 8) & 0x00ff00ff;
    for (int r = 0; r < rows; r++) {
        const int8_t *at = (const int8_t *)(x + r * SPAN);
        total[r] = dot2(dot2(total[r], even, splat_bytes(at)), odd, splat_bytes(at + 4));
    }
}
#endif

// Sums of vector `v` of the codes of group `g` of a record with rows of x, whole.
INLINE void total_group(const uint8_t *w, span_view span, int g, int rows, int bits, int group, int v,
                        vi total[MOST_ROWS]) {
    const int steps = bits == 8 ? group / 4 : group / 8;
#if PAIRS_OF_BYTES
    for (int r = 0; r < rows; r++) total[r] = splat_i(0);
#else
    vi high[MOST_ROWS], low[MOST_ROWS];
    for (int r = 0; r < rows; r++) high[r] = low[r] = splat_i(0);
#endif
    for (int step = 0; step < steps; step++) {
        vi first, second;
        if (bits == 8) first = load_codes(w + 64 * (g * steps + step) + 4 * VL * v);
        else load_pair(w, bits, g * steps + step, v, &first, &second);
#if PAIRS_OF_BYTES
        const int16_t *x = span.words + g * group + 4 * step;
        add_codes(first, x, rows, total);
        if (bits != 8) add_codes(second, x + group / 2, rows, total);
#else
        for (int r = 0; r < rows; r++) {
            const int at = g * group + r * SPAN + 4 * step;
            const int8_t *h = span.high + at, *l = span.low + at;
            high[r] = dot4(high[r], first, splat_bytes(h));
            low[r] = dot4(low[r], first, splat_bytes(l));
            if (bits != 8) {
                high[r] = dot4(high[r], second, splat_bytes(h + group / 2));
                low[r] = dot4(low[r], second, splat_bytes(l + group / 2));
            }
        }
#endif
    }
#if !PAIRS_OF_BYTES
    for (int r = 0; r < rows; r++) total[r] = (high[r] << 7) + low[r];
#endif
}

// One tile for `rows` rows of a block of x: acc[row] gets 16 results.
INLINE void multiply_tile(const uint8_t *w, const uint8_t *x, int64_t height, int64_t row, int64_t spans, int rows,
                          int bits, int group, int zero, int has_minimum, vf acc[MOST_ROWS][NV]) {
    const int groups = SPAN / group;
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < NV; v++) acc[r][v] = splat(0.0f);
    for (int64_t s = 0; s < spans; s++) {
        const span_view span = view_span(x, height, s, row);
        const uint8_t *scales = w + code_bytes(bits);
        load_ahead(w, record_bytes(bits, group, has_minimum));
        for (int g = 0; g < groups; g++)
            for (int v = 0; v < NV; v++) {
                vi total[MOST_ROWS];
                total_group(w, span, g, rows, bits, group, v, total);
                vf scale = load_half((const uint16_t *)scales + LANES * g + VL * v);
                vf minimum = splat(0.0f);
                if (has_minimum) minimum = load_half((const uint16_t *)scales + LANES * (groups + g) + VL * v);
                for (int r = 0; r < rows; r++)
                    acc[r][v] = add_group(acc[r][v], total[r], zero, scale, has_minimum, minimum, span, r, groups, g);
            }
        w = scales + groups * LANES * 2 * (has_minimum ? 2 : 1);
    }
}

#endif
