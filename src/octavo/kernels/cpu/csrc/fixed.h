// Weights of 4 and 5 bits as whole numbers of a step, so that 512 columns are added up before anything is rounded.
//
// A tile of them is cut into stripes of at most STRIPE columns. A stripe has a step for each row: 1 / MOST_STEPS of the
// largest that a code of that row can mean there. Scales and minima are rounded to whole steps, and a weight is
//   (code - middle) * scale + offset       whole, of at most 16 bits; middle is 8 or 16
// Packed: a stripe is 16 float32 steps and its records, whose numbers are int16 here:
//   scales             16 for each group in the record, if there are no minima; the offset is (middle - zero) * scale
//   scales and offsets 16 pairs for each group, if there are
#ifndef OCTAVO_FIXED_H
#define OCTAVO_FIXED_H

#include <math.h>

#include "codes.h"
#include "linear.h"
#include "vec.h"

enum { PAIR = 2 * SPAN, STRIPE_PAIRS = 8, STRIPE = STRIPE_PAIRS * PAIR, STEP_BYTES = 4 * LANES };
#define MOST_STEPS 32600.0f // and what rounding of a scale adds, which is below 9 steps, stays within 127 * 256 + 127

INLINE int is_fixed(int bits) { return bits < 6; }
INLINE int middle_of(int bits) { return 1 << (bits - 1); }

INLINE int64_t count_pairs(int64_t spans) { return (spans + 1) / 2; }
INLINE int64_t count_stripes(int64_t spans) { return (count_pairs(spans) + STRIPE_PAIRS - 1) / STRIPE_PAIRS; }

// The first pair of spans of a stripe, and the stripe of a span.
INLINE int64_t stripe_start(int64_t spans, int64_t stripe) { return count_pairs(spans) * stripe / count_stripes(spans); }
INLINE int64_t stripe_of(int64_t spans, int64_t span) {
    return ((span / 2 + 1) * count_stripes(spans) - 1) / count_pairs(spans);
}

INLINE int64_t tile_bytes(int64_t spans, int bits, int group, int has_minimum) {
    return spans * record_bytes(bits, group, has_minimum) + (is_fixed(bits) ? count_stripes(spans) * STEP_BYTES : 0);
}

// Where in a tile the record of a span lies, and the steps of a stripe.
INLINE int64_t record_offset(int64_t spans, int64_t span, int bits, int64_t bytes) {
    return span * bytes + (is_fixed(bits) ? (stripe_of(spans, span) + 1) * STEP_BYTES : 0);
}
INLINE int64_t step_offset(int64_t spans, int64_t stripe, int64_t bytes) {
    return 2 * stripe_start(spans, stripe) * bytes + stripe * STEP_BYTES;
}

// The largest that a code of such a group can mean.
INLINE float largest_weight(float scale, float minimum, int bits, int zero) {
    const float low = fabsf(minimum - (float)zero * scale);
    const float high = fabsf(minimum + (float)((1 << bits) - 1 - zero) * scale);
    return low > high ? low : high;
}

// Of a row whose largest weight in a stripe that is: none where it is next to nothing.
INLINE float step_of(float largest) { return largest < 1e-34f ? 0.0f : largest / MOST_STEPS; }

INLINE int16_t to_steps(float x, float step) {
    if (!(step > 0.0f && step < INFINITY)) return 0;
    const float shifted = x / step + 12582912.0f; // 1.5 * 2^23: adding it rounds to a whole number, ties to even
    int32_t bits;
    memcpy(&bits, &shifted, 4);
    return (int16_t)(bits - 0x4b400000);
}

// The numbers of group `g` of a record, for one of its lanes.
INLINE void write_steps(uint8_t *record, int bits, int g, int lane, float scale, float minimum, int zero,
                        int has_minimum, float step) {
    int16_t *numbers = (int16_t *)(record + code_bytes(bits));
    if (!has_minimum) {
        numbers[LANES * g + lane] = to_steps(scale, step);
        return;
    }
    numbers[2 * (LANES * g + lane)] = to_steps(scale, step);
    numbers[2 * (LANES * g + lane) + 1] = to_steps(minimum + (float)(middle_of(bits) - zero) * scale, step);
}

// Scale and offset of a group in the low and the high half of each word: vector `v` of group `g`.
INLINE vi load_steps(const uint8_t *record, int bits, int g, int has_minimum, int offset, int v) {
    const uint8_t *numbers = record + code_bytes(bits);
    if (has_minimum) return *(const vi_loose *)(numbers + 4 * (LANES * g + VL * v));
    const vi scale = load_words(numbers + 2 * (LANES * g + VL * v));
    return offset ? scale | (scale * offset) << 16 : scale;
}

#endif
