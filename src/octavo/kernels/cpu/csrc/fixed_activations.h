// Rows of x for weights that are whole numbers of a step: each stripe is scale * (127 * high + low), in two planes of 8
// bits. For 5-bit codes the high plane has one bit less, so that a group's sum still fits in 16 bits.
//
// Blocks of `height` rows as in activations.h; in a block
//   scales     [stripes][height] float32, up to a multiple of 64 bytes
//   for each pair of spans, whose columns beyond the last are zero:
//     planes  [height][high, low][PAIR] int8
//     sums    [height][span of the pair][first half, second half, both][high, low] of two int32, if asked for: -middle times
//             the sum of the integers; and the sum in the high half of the word, beside the former where bytes are
//             multiplied by pairs
#ifndef OCTAVO_FIXED_ACTIVATIONS_H
#define OCTAVO_FIXED_ACTIVATIONS_H

#include "activations.h"
#include "fixed.h"

enum { BOTH_HALVES = 2, PLANE = 127, LOW = PLANE / 2, ROW_PLANES = 2 * PAIR };

// Of one plane.
typedef struct {
    int32_t before, beside;
} span_sum;
typedef span_sum span_sums[3][2];

// How a block is laid out.
typedef struct {
    int64_t spans, height;
    int bits; // of the codes that it is multiplied with
    int has_sums;
} fixed_layout;

INLINE int64_t scale_bytes(fixed_layout l) { return (count_stripes(l.spans) * l.height * 4 + 63) / 64 * 64; }
INLINE int64_t pair_bytes(fixed_layout l) {
    return l.height * (ROW_PLANES + (l.has_sums ? 2 * (int64_t)sizeof(span_sums) : 0));
}
INLINE span_sums *sums_at(const uint8_t *pair, int64_t height, int64_t row, int span) {
    return (span_sums *)(pair + height * ROW_PLANES) + 2 * row + span;
}
INLINE int64_t fixed_bytes(fixed_layout l) {
    return (scale_bytes(l) + count_pairs(l.spans) * pair_bytes(l) + 63) / 64 * 64;
}

// The largest integer: PLANE * high + low where both are as large as they can be.
INLINE float largest_integer(int bits) { return (float)(PLANE * (bits == 4 ? 127 : 63) + LOW); }

INLINE span_sum sum_of(int32_t sum, int bits) {
    const int32_t before = -middle_of(bits) * sum; // fits in 16 bits
    return (span_sum){before, (int32_t)((uint32_t)sum << 16) | (PAIRS_OF_BYTES ? before & 0xffff : 0)};
}

// One span of a row -> its places in the planes of a pair.
INLINE void encode_span(const float *x, vf inverse, uint8_t *pair, fixed_layout l, int64_t row, int span) {
    const vf shifter = splat(12582912.0f); // 1.5 * 2^23: adding it rounds to a whole number, ties to even
    int8_t *high_out = (int8_t *)pair + row * ROW_PLANES + span * SPAN, *low_out = high_out + PAIR;
    int32_t sums[3]; // of the high plane in the high half, and of the low one
    for (int half = 0; half < 2; half++) {
        vi sum = splat_i(0);
        for (int v = 0; v < LANES / VL; v++) {
            const int at = half * LANES + v * VL;
            const vf q = fma_v(load(x + at), inverse, shifter) - shifter;
            // The sum's low mantissa bits are the whole number, offset by the shifter's own.
            const vi high = (vi)fma_v(q, splat(1.0f / PLANE), shifter) - (vi)shifter;
            const vi low = __builtin_convertvector(q, vi) - ((high << 7) - high);
            sum += (high << 16) + low;
            store_bytes(high_out + at, high);
            store_bytes(low_out + at, low);
        }
        if (l.has_sums) sums[half] = sum_lanes_i(sum);
    }
    if (!l.has_sums) return;
    sums[BOTH_HALVES] = sums[0] + sums[1];
    span_sums *out = sums_at(pair, l.height, row, span);
    for (int which = 0; which <= BOTH_HALVES; which++) {
        const int32_t low = (int16_t)sums[which], high = (sums[which] - low) >> 16;
        (*out)[which][0] = sum_of(high, l.bits);
        (*out)[which][1] = sum_of(low, l.bits);
    }
}

static const float NOTHING[SPAN] = {0};

static void encode_fixed_row(const float *x, fixed_layout l, uint8_t *block, int64_t row) {
    const int64_t stripes = count_stripes(l.spans), pairs = count_pairs(l.spans);
    const float full = largest_integer(l.bits);
    for (int64_t stripe = 0; stripe < stripes; stripe++) {
        const int64_t start = 2 * stripe_start(l.spans, stripe), next = 2 * stripe_start(l.spans, stripe + 1);
        const int64_t end = next < l.spans ? next : l.spans;
        const int32_t most = largest_bits(x + start * SPAN, (end - start) * SPAN);
        float largest;
        memcpy(&largest, &most, 4);
        // Not finite: poison the result. Next to nothing: zero.
        const int bad = most >= 0x7f800000, none = bad || largest < 1e-30f;
        ((float *)block)[stripe * l.height + row] = bad ? NAN : none ? 0.0f : largest / full;
        const vf inverse = splat(none ? 0.0f : full / largest);
        uint8_t *pair = block + scale_bytes(l) + start / 2 * pair_bytes(l);
        for (int64_t s = start; s < end; s++) {
            encode_span(bad ? NOTHING : x + s * SPAN, inverse, pair, l, row, (int)(s % 2));
            if (s % 2) pair += pair_bytes(l);
        }
    }
    if (l.spans % 2) {
        uint8_t *last = block + scale_bytes(l) + (pairs - 1) * pair_bytes(l) + row * ROW_PLANES + SPAN;
        memset(last, 0, SPAN);
        memset(last + PAIR, 0, SPAN);
    }
}

#endif
