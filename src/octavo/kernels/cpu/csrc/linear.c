// y = x W^T for weights of 4 or 8 bits, with the same bits for a row whatever rows are computed beside it.
//
// A row of x is cut into groups of 32 columns, each written as scale * (128 * high + low) with two planes of 8-bit
// integers: 15 bits, which costs a second integer product but no second read of the weights. Sums within a group are
// integers, and so exact; groups are added in float32, in column order. Each of the 16 lanes of a vector is one row of
// W, so nothing is ever added across lanes.
//
// Packed: tiles of 16 rows of W; a tile is a run of records, one per 32 columns:
//   codes     for every 4 columns 64 bytes, 4 per row; in 4 bits, columns c and c + group/2 share bytes (low, high)
//   scales    16 float16 for each group in the record
//   minima    16 float16 for each group in the record, if there are any

#include "linear.h"

#include <math.h>
#include <stdlib.h>
#if defined(__AMX_INT8__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "pool.h"
#include "scratch.h"
#include "vec.h"

enum { SPAN = 32, MOST_ROWS = 4, ROWS_PER_ITEM = 64 };
#define FULL 16319.0f // largest 128 * 127 + 63

// Encoded x: blocks of `height` rows (16, or fewer if there are fewer rows); in a block, for each span of 32 columns,
//   high, low      [height][SPAN] int8
//   scale, scaled_sum [height] float32: of the span; and times the sum of its integers
//   sum, first     [height] int32: of the integers, and of those in the first half
enum { BYTES_PER_SPAN = 2 * SPAN + 16, BLOCK_ROWS = 16 };

// Views of one span of a block, from its row `row`.
typedef struct {
    const int8_t *high, *low;
    const float *scale, *scaled_sum;
    const int32_t *sum, *first;
} span_view;

INLINE span_view view_span(const uint8_t *block, int64_t height, int64_t span, int64_t row) {
    const uint8_t *at = block + span * height * BYTES_PER_SPAN;
    const float *numbers = (const float *)(at + height * 2 * SPAN);
    return (span_view){
        .high = (const int8_t *)at + row * SPAN,
        .low = (const int8_t *)at + (height + row) * SPAN,
        .scale = numbers + row,
        .scaled_sum = numbers + height + row,
        .sum = (const int32_t *)numbers + 2 * height + row,
        .first = (const int32_t *)numbers + 3 * height + row,
    };
}

INLINE vi load_codes(const uint8_t *p) { return *(const vi_loose *)p; }

// Per lane: acc + sum of 4 products of an unsigned byte of w and a signed byte of x. |w * x| sums fit in 16 bits by
// pairs, except for codes above 127, which `wide` says there may be.
INLINE vi dot4(vi acc, vi w, vi x, int wide) {
#if defined(__AVX512VNNI__) && VL == 16
    (void)wide;
    return (vi)_mm512_dpbusd_epi32((__m512i)acc, (__m512i)w, (__m512i)x);
#elif defined(__AVXVNNI__) && VL == 8
    (void)wide;
    return (vi)_mm256_dpbusd_avx_epi32((__m256i)acc, (__m256i)w, (__m256i)x);
#elif defined(__AVX2__) && VL == 8
    if (!wide) {
        __m256i pairs = _mm256_maddubs_epi16((__m256i)w, (__m256i)x);
        return acc + (vi)_mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
    }
    // Even and odd bytes as 16-bit numbers.
    __m256i even = _mm256_and_si256((__m256i)w, _mm256_set1_epi16(255)), odd = _mm256_srli_epi16((__m256i)w, 8);
    __m256i x_even = _mm256_srai_epi16(_mm256_slli_epi16((__m256i)x, 8), 8), x_odd = _mm256_srai_epi16((__m256i)x, 8);
    return acc + (vi)_mm256_madd_epi16(even, x_even) + (vi)_mm256_madd_epi16(odd, x_odd);
#else
    (void)wide;
    for (int byte = 0; byte < 4; byte++) acc += ((w >> (8 * byte)) & 255) * ((x << (24 - 8 * byte)) >> 24);
    return acc;
#endif
}

INLINE vi splat_bytes(const int8_t *p) {
    int32_t word;
    memcpy(&word, p, 4);
    return splat_i(word);
}

static int64_t record_bytes(int bits, int group, int has_minimum) {
    return LANES * SPAN * bits / 8 + (SPAN / group) * LANES * 2 * (has_minimum ? 2 : 1);
}

int64_t octavo_packed_bytes(int64_t rows, int64_t columns, int32_t bits, int32_t group, int32_t has_minimum) {
    return (rows + LANES - 1) / LANES * (columns / SPAN) * record_bytes(bits, group, has_minimum);
}

// ---- activations

INLINE void store_bytes(int8_t *p, vi v) {
#if VL == 16
    _mm_storeu_si128((__m128i *)p, _mm512_cvtepi32_epi8((__m512i)v));
#else
    for (int i = 0; i < VL; i++) p[i] = (int8_t)v[i];
#endif
}

static void encode_row(const float *x, int64_t spans, uint8_t *block, int64_t height, int64_t row) {
    const vf shifter = splat(12582912.0f); // 1.5 * 2^23: adding it rounds to a whole number, ties to even
    for (int64_t s = 0; s < spans; s++, x += SPAN) {
        span_view out = view_span(block, height, s, row);
        int8_t *high_out = (int8_t *)out.high, *low_out = (int8_t *)out.low;
        vi most = splat_i(0);
        for (int v = 0; v < SPAN / VL; v++) {
            vi bits = (vi)load(x + v * VL) & 0x7fffffff; // ordered like the values, with infinities and NaN on top
            vi more = bits > most;
            most = (more & bits) | (~more & most);
        }
        int32_t largest_bits = 0;
        for (int i = 0; i < VL; i++) largest_bits = most[i] > largest_bits ? most[i] : largest_bits;
        float largest;
        memcpy(&largest, &largest_bits, 4);
        // Not finite: poison the result. Next to nothing: zero.
        const int bad = largest_bits >= 0x7f800000, none = !bad && largest < 1e-30f;
        const vf inverse = splat(bad || none ? 0.0f : FULL / largest);
        int32_t sums[2];
        for (int half = 0; half < 2; half++) {
            vi sum = splat_i(0);
            for (int v = 0; v < LANES / VL; v++) {
                const int at = half * LANES + v * VL;
                // The sum's low mantissa bits are the whole number, offset by the shifter's own.
                vi q = (vi)(fma_v(load(x + at), inverse, shifter)) - (vi)shifter;
                if (bad) q = splat_i(0);
                vi high = (q + 64) >> 7;
                sum += q;
                store_bytes(high_out + at, high);
                store_bytes(low_out + at, q - (high << 7));
            }
            sums[half] = 0;
            for (int i = 0; i < VL; i++) sums[half] += sum[i];
        }
        const float scale = bad ? NAN : none ? 0.0f : largest / FULL;
        const int32_t sum = sums[0] + sums[1];
        *(float *)out.scale = scale;
        *(float *)out.scaled_sum = scale * (float)sum;
        *(int32_t *)out.sum = sum;
        *(int32_t *)out.first = sums[0];
    }
}

// ---- products

// total * scale + minimum * (sum of x), added to acc.
INLINE vf add_group(vf acc, vi high, vi low, int zero, vf scale, int has_minimum, vf minimum, float x_scale,
                    float x_scaled_sum, int32_t sum) {
    vi total = (high << 7) + low;
    if (zero) total -= splat_i(zero * sum);
    acc = fma_v(to_float(total), scale * splat(x_scale), acc);
    return has_minimum ? fma_v(minimum, splat(x_scaled_sum), acc) : acc;
}

// One tile for `rows` rows of a block of x: acc[row] gets 16 results.
INLINE void multiply_tile(const uint8_t *w, const uint8_t *x, int64_t height, int64_t row, int64_t spans, int rows,
                          int bits, int group, int zero, int has_minimum, vf acc[MOST_ROWS][NV]) {
    const int steps = group / 4, groups = SPAN / group;
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < NV; v++) acc[r][v] = splat(0.0f);
    for (int64_t s = 0; s < spans; s++) {
        const span_view span = view_span(x, height, s, row);
        const uint8_t *scales = w + LANES * SPAN * bits / 8;
        for (int g = 0; g < groups; g++) {
            const int8_t *x_high = span.high + g * group, *x_low = span.low + g * group;
            vi high[MOST_ROWS][NV], low[MOST_ROWS][NV];
            for (int r = 0; r < rows; r++)
                for (int v = 0; v < NV; v++) high[r][v] = low[r][v] = splat_i(0);
            for (int step = 0; step < (bits == 4 ? steps / 2 : steps); step++)
                for (int v = 0; v < NV; v++) {
                    vi codes = load_codes(w + 64 * step + 4 * VL * v);
                    vi first = bits == 4 ? codes & 0x0f0f0f0f : codes, second = (codes >> 4) & 0x0f0f0f0f;
                    for (int r = 0; r < rows; r++) {
                        const int8_t *h = x_high + r * SPAN + 4 * step, *l = x_low + r * SPAN + 4 * step;
                        high[r][v] = dot4(high[r][v], first, splat_bytes(h), bits == 8);
                        low[r][v] = dot4(low[r][v], first, splat_bytes(l), bits == 8);
                        if (bits == 4) {
                            high[r][v] = dot4(high[r][v], second, splat_bytes(h + group / 2), 0);
                            low[r][v] = dot4(low[r][v], second, splat_bytes(l + group / 2), 0);
                        }
                    }
                }
            for (int v = 0; v < NV; v++) {
                vf scale = load_half((const uint16_t *)scales + LANES * g + VL * v);
                vf minimum = splat(0.0f);
                if (has_minimum) minimum = load_half((const uint16_t *)scales + LANES * (groups + g) + VL * v);
                for (int r = 0; r < rows; r++) {
                    int32_t sum = groups == 1 ? span.sum[r] : g == 0 ? span.first[r] : span.sum[r] - span.first[r];
                    float scaled = groups == 1 ? span.scaled_sum[r] : span.scale[r] * (float)sum;
                    acc[r][v] = add_group(acc[r][v], high[r][v], low[r][v], zero, scale, has_minimum, minimum,
                                          span.scale[r], scaled, sum);
                }
            }
            w += LANES * group * bits / 8;
        }
        w = scales + groups * LANES * 2 * (has_minimum ? 2 : 1);
    }
}

typedef struct {
    const octavo_weight *parts;
    int32_t num_parts;
    const float *x;
    int64_t x_stride, rows, spans, tiles, row_items;
    uint8_t *encoded;
    int64_t height;
    float *y;
    int64_t y_stride;
} product;

#define TILE(bits, group, minimum)                                                                                  \
    switch (rows) {                                                                                                 \
    case 1: multiply_tile(w, x, height, row, spans, 1, bits, group, zero, minimum, acc); break;                                  \
    case 2: multiply_tile(w, x, height, row, spans, 2, bits, group, zero, minimum, acc); break;                                  \
    case 3: multiply_tile(w, x, height, row, spans, 3, bits, group, zero, minimum, acc); break;                                  \
    default: multiply_tile(w, x, height, row, spans, 4, bits, group, zero, minimum, acc); break;                                 \
    }

INLINE void store_lanes(float *y, const vf *acc, float unit, int64_t count) {
    if (count == LANES) {
        for (int v = 0; v < NV; v++) store(y + v * VL, acc[v] * splat(unit));
    } else {
        for (int64_t i = 0; i < count; i++) y[i] = acc[i / VL][i % VL] * unit;
    }
}

static void any_tile(const octavo_weight *part, const uint8_t *w, const uint8_t *x, int64_t height, int64_t row,
                     int64_t spans, int rows, vf acc[MOST_ROWS][NV]) {
    int zero = part->zero;
    if (part->bits == 4) {
        if (part->group == 32) {
            if (part->has_minimum) { TILE(4, 32, 1) } else { TILE(4, 32, 0) }
        } else {
            if (part->has_minimum) { TILE(4, 16, 1) } else { TILE(4, 16, 0) }
        }
    } else {
        if (part->group == 32) {
            if (part->has_minimum) { TILE(8, 32, 1) } else { TILE(8, 32, 0) }
        } else {
            if (part->has_minimum) { TILE(8, 16, 1) } else { TILE(8, 16, 0) }
        }
    }
}

#if defined(__AMX_INT8__) && VL == 16
#define AMX 1
enum { AMX_SPANS = 1024 };

static _Atomic int amx_state = 0; // 0: not asked, 1: allowed, -1: not

static int amx_allowed(void) {
    if (amx_state == 0) {
        // The kernel hands out the tile registers (feature 18) only on request.
        amx_state = syscall(SYS_arch_prctl, 0x1023, 18) == 0 ? 1 : -1;
    }
    return amx_state == 1;
}

static void amx_configure(void) {
    struct {
        uint8_t palette, start, reserved[14];
        uint16_t bytes[16];
        uint8_t rows[16];
    } config = {.palette = 1};
    for (int t = 0; t < 4; t++) config.rows[t] = BLOCK_ROWS, config.bytes[t] = 64;   // sums
    for (int t = 4; t < 6; t++) config.rows[t] = BLOCK_ROWS, config.bytes[t] = SPAN; // x
    for (int t = 6; t < 8; t++) config.rows[t] = SPAN / 4, config.bytes[t] = 64;     // codes
    _tile_loadconfig(&config);
}

// The codes of one tile of W, one byte each: [spans][SPAN / 4][64].
INLINE void unpack_tile(const uint8_t *w, int64_t spans, int bits, int group, int64_t bytes, uint8_t *out) {
    for (int64_t s = 0; s < spans; s++, w += bytes, out += SPAN * LANES) {
        if (bits == 8) {
            memcpy(out, w, SPAN * LANES);
            continue;
        }
        for (int g = 0; g < SPAN / group; g++)
            for (int step = 0; step < group / 8; step++) {
                vi both = load_codes(w + LANES * group / 2 * g + 64 * step);
                uint8_t *first = out + LANES * group * g + 64 * step;
                *(vi_loose *)first = both & 0x0f0f0f0f;
                *(vi_loose *)(first + 8 * group) = (both >> 4) & 0x0f0f0f0f;
            }
    }
}

// Sums of one span in both planes -> sums[plane][row][lane]. `high`, `low`, `rows` and `tile` are tile registers.
#define MULTIPLY_SPAN(high, low, rows, tile, x, codes, sums)                                                        \
    do {                                                                                                            \
        _tile_zero(high);                                                                                           \
        _tile_zero(low);                                                                                            \
        _tile_loadd(tile, codes, 64);                                                                               \
        _tile_loadd(rows, x, SPAN);                                                                                 \
        _tile_dpbsud(high, rows, tile);                                                                             \
        _tile_loadd(rows, x + BLOCK_ROWS * SPAN, SPAN);                                                             \
        _tile_dpbsud(low, rows, tile);                                                                              \
        _tile_stored(high, sums[0], 64);                                                                            \
        _tile_stored(low, sums[1], 64);                                                                             \
    } while (0)

typedef int32_t block_sums[2][BLOCK_ROWS][LANES];

// `multiply_tile` for a block of 16 rows and groups of 32. The sums are integers: they are the same however formed.
INLINE void multiply_tile_amx(const uint8_t *codes, const uint8_t *scales, int64_t bytes, const uint8_t *x,
                              int64_t spans, int zero, int has_minimum, vf acc_out[BLOCK_ROWS]) {
    block_sums sums[2] __attribute__((aligned(64)));
    vf acc[BLOCK_ROWS];
#pragma GCC unroll 16
    for (int r = 0; r < BLOCK_ROWS; r++) acc[r] = splat(0.0f);
    // One span ahead, so that a span's products run while the sums of the one before are added.
    MULTIPLY_SPAN(0, 1, 4, 6, x, codes, sums[0]);
    for (int64_t s = 0; s < spans; s++, scales += bytes) {
        const span_view span = view_span(x, BLOCK_ROWS, s, 0);
        if (s + 1 < spans) {
            const uint8_t *next_x = x + (s + 1) * BLOCK_ROWS * BYTES_PER_SPAN, *next_codes = codes + (s + 1) * SPAN * LANES;
            if (s % 2) MULTIPLY_SPAN(0, 1, 4, 6, next_x, next_codes, sums[0]);
            else MULTIPLY_SPAN(2, 3, 5, 7, next_x, next_codes, sums[1]);
        }
        vf scale = load_half((const uint16_t *)scales), minimum = splat(0.0f);
        if (has_minimum) minimum = load_half((const uint16_t *)scales + LANES);
        const block_sums *now = &sums[s % 2];
#pragma GCC unroll 16
        for (int r = 0; r < BLOCK_ROWS; r++)
            acc[r] = add_group(acc[r], *(const vi *)(*now)[0][r], *(const vi *)(*now)[1][r], zero, scale, has_minimum,
                               minimum, span.scale[r], span.scaled_sum[r], span.sum[r]);
    }
#pragma GCC unroll 16
    for (int r = 0; r < BLOCK_ROWS; r++) acc_out[r] = acc[r];
}
#endif

static void encode_item(void *job, int64_t first, int64_t last) {
    product *p = job;
    for (int64_t row = first; row < last; row++) {
        uint8_t *block = p->encoded + row / p->height * p->spans * p->height * BYTES_PER_SPAN;
        encode_row(p->x + row * p->x_stride, p->spans, block, p->height, row % p->height);
    }
}

// An item is one tile for ROWS_PER_ITEM rows.
static void multiply_item(void *job, int64_t first, int64_t last) {
    product *p = job;
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
        uint8_t *codes = NULL;
        if (end - row >= BLOCK_ROWS && part->group == SPAN && p->spans <= AMX_SPANS && amx_allowed())
            codes = octavo_scratch(SCRATCH_CODES, p->spans * SPAN * LANES);
        if (codes != NULL) {
            int64_t bytes = record_bytes(part->bits, part->group, part->has_minimum);
            unpack_tile(w, p->spans, part->bits, part->group, bytes, codes);
            amx_configure();
            for (; end - row >= BLOCK_ROWS; row += BLOCK_ROWS) {
                vf acc[BLOCK_ROWS];
                const uint8_t *scales = w + LANES * SPAN * part->bits / 8;
                const uint8_t *x = p->encoded + row * p->spans * BYTES_PER_SPAN;
                if (part->has_minimum && part->zero) multiply_tile_amx(codes, scales, bytes, x, p->spans, part->zero, 1, acc);
                else if (part->has_minimum) multiply_tile_amx(codes, scales, bytes, x, p->spans, 0, 1, acc);
                else multiply_tile_amx(codes, scales, bytes, x, p->spans, part->zero, 0, acc);
                for (int r = 0; r < BLOCK_ROWS; r++) store_lanes(y + (row + r) * p->y_stride, acc + r, part->unit, count);
            }
            _tile_release();
        }
#endif
        for (; row < end; row += MOST_ROWS) {
            int rows = end - row < MOST_ROWS ? (int)(end - row) : MOST_ROWS;
            vf acc[MOST_ROWS][NV];
            any_tile(part, w, p->encoded + row / p->height * p->spans * p->height * BYTES_PER_SPAN, p->height, row % p->height,
                     p->spans, rows, acc);
            for (int r = 0; r < rows; r++) store_lanes(y + (row + r) * p->y_stride, acc[r], part->unit, count);
        }
    }
}

// x [rows, columns] float32 -> y [rows, sum of the parts' rows] float32. Strides in elements. Returns 0, or 1 if
// memory ran out.
int32_t octavo_linear(const octavo_weight *parts, int32_t num_parts, int64_t columns, const float *x, int64_t x_stride,
                      int64_t rows, float *y, int64_t y_stride) {
    if (rows <= 0) return 0;
    product p = {.parts = parts, .num_parts = num_parts, .x = x, .x_stride = x_stride, .rows = rows,
                 .spans = columns / SPAN, .y = y, .y_stride = y_stride};
    for (int32_t i = 0; i < num_parts; i++) p.tiles += (parts[i].rows + LANES - 1) / LANES;
    p.height = rows < BLOCK_ROWS ? rows : BLOCK_ROWS;
    int64_t count = (rows + p.height - 1) / p.height * p.height * p.spans;
    p.encoded = octavo_scratch(SCRATCH_ENCODED, count * BYTES_PER_SPAN);
    if (p.encoded == NULL) return 1;
    octavo_parallel(rows, rows * p.spans < 1024 ? rows : 4, encode_item, &p);
    int64_t items = p.tiles * ((rows + ROWS_PER_ITEM - 1) / ROWS_PER_ITEM);
    // About 20 microseconds an item or more: less is not worth handing out.
    int64_t work = (rows < ROWS_PER_ITEM ? rows : ROWS_PER_ITEM) * p.spans;
    int64_t grain = 64 / work;
    octavo_parallel(items, grain < 1 ? 1 : grain, multiply_item, &p);
    return 0;
}

// ---- packing

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
            uint16_t *scales = (uint16_t *)(record + LANES * SPAN * bits / 8), *minima = scales + groups * LANES;
            memset(record, 0, (size_t)bytes);
            for (int lane = 0; lane < LANES; lane++) {
                int64_t row = tile * LANES + lane;
                if (row >= p->rows) break;
                const uint8_t *codes = p->codes + row * p->columns + s * SPAN;
                for (int i = 0; i < SPAN; i++) {
                    int g = i / group, c = i % group;
                    if (bits == 8) {
                        record[64 * (i / 4) + 4 * lane + i % 4] = codes[i];
                    } else {
                        int second = c >= group / 2, c4 = second ? c - group / 2 : c;
                        record[LANES * group / 2 * g + 64 * (c4 / 4) + 4 * lane + c4 % 4] |= codes[i] << (4 * second);
                    }
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

// ---- lookup

// Row `row` of the weight, decoded: 16-bit rounding of scales aside, the file's own value.
static void decode_row(const octavo_weight *part, int64_t columns, int64_t row, float *y) {
    const int bits = part->bits, group = part->group, groups = SPAN / group, lane = (int)(row % LANES);
    const int64_t bytes = record_bytes(bits, group, part->has_minimum), spans = columns / SPAN;
    const uint8_t *record = part->data + row / LANES * spans * bytes;
    for (int64_t s = 0; s < spans; s++, record += bytes) {
        const uint16_t *scales = (const uint16_t *)(record + LANES * SPAN * bits / 8);
        for (int i = 0; i < SPAN; i++) {
            int g = i / group, c = i % group, code;
            if (bits == 8) {
                code = record[64 * (i / 4) + 4 * lane + i % 4];
            } else {
                int second = c >= group / 2, c4 = second ? c - group / 2 : c;
                code = record[LANES * group / 2 * g + 64 * (c4 / 4) + 4 * lane + c4 % 4] >> (4 * second) & 15;
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
