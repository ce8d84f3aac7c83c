// Rows of x as integers: each group of 32 columns is scale * (128 * high + low), two planes of 8 bits; or one of 16 bits
// where no instruction adds up four products of bytes: two of them do not fit in 16 bits with codes above 127.
#ifndef OCTAVO_ACTIVATIONS_H
#define OCTAVO_ACTIVATIONS_H

#include <math.h>

#include "codes.h"
#include "vec.h"

// Encoded x: blocks of `height` rows (16, or fewer if there are fewer rows); in a block, for each span of 32 columns,
//   high, low      [height][SPAN] int8, or both in one [height][SPAN] int16, of each four columns 0, 2, 1, 3
//   scale, scaled_sum [height] float32: of the span; and times the sum of its integers
//   sum, first     [height] int32: of the integers, and of those in the first half
enum { BYTES_PER_SPAN = 2 * SPAN + 16, BLOCK_ROWS = 16 };
#define FULL 16319.0f // largest 128 * 127 + 63

// Views of one span of a block, from its row `row`.
typedef struct {
    const int8_t *high, *low; // PAIRS_OF_BYTES: of bytes that are no planes
    const int16_t *words;
    const float *scale, *scaled_sum;
    const int32_t *sum, *first;
} span_view;

INLINE span_view view_span(const uint8_t *block, int64_t height, int64_t span, int64_t row) {
    const uint8_t *at = block + span * height * BYTES_PER_SPAN;
    const float *numbers = (const float *)(at + height * 2 * SPAN);
    return (span_view){
        .high = (const int8_t *)at + row * SPAN,
        .low = (const int8_t *)at + (height + row) * SPAN,
        .words = (const int16_t *)at + row * SPAN,
        .scale = numbers + row,
        .scaled_sum = numbers + height + row,
        .sum = (const int32_t *)numbers + 2 * height + row,
        .first = (const int32_t *)numbers + 3 * height + row,
    };
}

INLINE vi splat_bytes(const int8_t *p) {
    int32_t word;
    memcpy(&word, p, 4);
    return splat_i(word);
}

INLINE void store_bytes(int8_t *p, vi v) {
#if VL == 16
    _mm_storeu_si128((__m128i *)p, _mm512_cvtepi32_epi8((__m512i)v));
#else
    for (int i = 0; i < VL; i++) p[i] = (int8_t)v[i];
#endif
}

// Of each four columns 0, 2, 1, 3: as they meet the even and the odd bytes of a word.
INLINE void store_words(int16_t *p, vi v) {
#if VL == 16
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtepi32_epi16(_mm512_shuffle_epi32((__m512i)v, 0xd8)));
#else
    for (int i = 0; i < VL; i++) p[(i & ~3) | (i & 1) << 1 | (i & 2) >> 1] = (int16_t)v[i];
#endif
}

// Bits of the largest |x|, which are ordered like the values, with infinities and NaN on top.
INLINE int32_t largest_bits(const float *x, int64_t count) {
    vi most = splat_i(0);
    for (int64_t i = 0; i < count; i += VL) most = max_i(most, (vi)load(x + i) & 0x7fffffff);
    return max_lanes_i(most);
}

static void encode_row(const float *x, int64_t spans, uint8_t *block, int64_t height, int64_t row) {
    const vf shifter = splat(12582912.0f); // 1.5 * 2^23: adding it rounds to a whole number, ties to even
    for (int64_t s = 0; s < spans; s++, x += SPAN) {
        span_view out = view_span(block, height, s, row);
        int8_t *high_out = (int8_t *)out.high, *low_out = (int8_t *)out.low;
        const int32_t most = largest_bits(x, SPAN);
        float largest;
        memcpy(&largest, &most, 4);
        // Not finite: poison the result. Next to nothing: zero.
        const int bad = most >= 0x7f800000, none = !bad && largest < 1e-30f;
        const vf inverse = splat(bad || none ? 0.0f : FULL / largest);
        int32_t sums[2];
        for (int half = 0; half < 2; half++) {
            vi sum = splat_i(0);
            for (int v = 0; v < LANES / VL; v++) {
                const int at = half * LANES + v * VL;
                // The sum's low mantissa bits are the whole number, offset by the shifter's own.
                vi q = (vi)(fma_v(load(x + at), inverse, shifter)) - (vi)shifter;
                if (bad) q = splat_i(0);
                sum += q;
                if (PAIRS_OF_BYTES) {
                    store_words((int16_t *)out.words + at, q);
                    continue;
                }
                const vi high = (q + 64) >> 7;
                store_bytes(high_out + at, high);
                store_bytes(low_out + at, q - (high << 7));
            }
            sums[half] = sum_lanes_i(sum);
        }
        const float scale = bad ? NAN : none ? 0.0f : largest / FULL;
        const int32_t sum = sums[0] + sums[1];
        *(float *)out.scale = scale;
        *(float *)out.scaled_sum = scale * (float)sum;
        *(int32_t *)out.sum = sum;
        *(int32_t *)out.first = sums[0];
    }
}

#endif
