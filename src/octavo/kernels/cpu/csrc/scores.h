// Products of a few rows of queries or weights with stored keys and values, in vector registers, straight from how
// they lie in memory.
//
// A score is 16 sums, each of every 16th product of elements in their order, added up as by `sum_lanes`. A value's
// lanes are its elements, to which keys are added in their order. Neither depends on what is computed beside it. For a few
// rows the lanes of scores are those sums; for more, keys are laid out anew, so that lanes are keys, and nothing is added
// across them.
#ifndef OCTAVO_SCORES_H
#define OCTAVO_SCORES_H

#include "codecs.h"
#include "vec.h"

enum { BLOCK = VL == 16 ? 4 : 2, STEP = VL / 4, GROUP = 4 }; // rows, keys and vectors of values taken at once

// VL elements from `d` on of a row of float32, float16 or bfloat16.
INLINE vf load_element(int dtype, const char *row, int64_t d) {
    if (dtype == F32) return load((const float *)row + d);
    if (dtype == F16) return load_half((const uint16_t *)row + d);
    return load_bfloat((const uint16_t *)row + d);
}

// The sums of STEP keys, 16 lanes each, down to 4 lanes each: key j in quarter j of the result.
INLINE vf fold_keys(vf sums[STEP][NV]) {
#if VL == 16
    const __m512 a = (__m512)sums[0][0], b = (__m512)sums[1][0], c = (__m512)sums[2][0], d = (__m512)sums[3][0];
    const __m512 ab = _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
    const __m512 cd = _mm512_add_ps(_mm512_shuffle_f32x4(c, d, 0x44), _mm512_shuffle_f32x4(c, d, 0xee));
    return (vf)_mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xdd));
#elif VL == 8
    const __m256 a = (__m256)(sums[0][0] + sums[0][1]), b = (__m256)(sums[1][0] + sums[1][1]);
    return (vf)_mm256_add_ps(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31));
#else
    return (sums[0][0] + sums[0][2]) + (sums[0][1] + sums[0][3]);
#endif
}

// The scores of VL keys from four results of `fold_keys`: quarter j of number m belongs to key 4 j + m.
INLINE vf fold_quarters(const vf *folded) {
#if VL == 16
#define PAIRS(a, b) _mm512_add_ps((__m512)_mm512_unpacklo_pd((__m512d)(a), (__m512d)(b)),                            \
                                  (__m512)_mm512_unpackhi_pd((__m512d)(a), (__m512d)(b)))
    const __m512 x = PAIRS(folded[0], folded[1]), y = PAIRS(folded[2], folded[3]);
    return (vf)_mm512_add_ps(_mm512_shuffle_ps(x, y, 0x88), _mm512_shuffle_ps(x, y, 0xdd));
#elif VL == 8
#define PAIRS(a, b) _mm256_add_ps((__m256)_mm256_unpacklo_pd((__m256d)(a), (__m256d)(b)),                            \
                                  (__m256)_mm256_unpackhi_pd((__m256d)(a), (__m256d)(b)))
    const __m256 x = PAIRS(folded[0], folded[1]), y = PAIRS(folded[2], folded[3]);
    return (vf)_mm256_add_ps(_mm256_shuffle_ps(x, y, 0x88), _mm256_shuffle_ps(x, y, 0xdd));
#else
    vf out;
    for (int m = 0; m < 4; m++) out[m] = (folded[m][0] + folded[m][2]) + (folded[m][1] + folded[m][3]);
    return out;
#endif
}

// scores[r][0..VL) = q[r] · keys[0..VL) for `rows` rows of q, `dim` apart, and of scores, `stride` apart.
INLINE void score_keys(int dtype, const char *const *keys, const float *q, int64_t dim, int rows, int64_t stride,
                       float *scores) {
    vf folded[BLOCK][4];
    for (int m = 0; m < 4; m++) {
        vf sums[BLOCK][STEP][NV];
        for (int r = 0; r < rows; r++)
            for (int j = 0; j < STEP; j++)
                for (int v = 0; v < NV; v++) sums[r][j][v] = splat(0.0f);
        for (int64_t d = 0; d < dim; d += LANES)
            for (int v = 0; v < NV; v++) {
                vf key[STEP];
                for (int j = 0; j < STEP; j++) key[j] = load_element(dtype, keys[4 * j + m], d + v * VL);
                for (int r = 0; r < rows; r++) {
                    const vf query = load(q + r * dim + d + v * VL);
                    for (int j = 0; j < STEP; j++) sums[r][j][v] = fma_v(query, key[j], sums[r][j][v]);
                }
            }
        for (int r = 0; r < rows; r++) folded[r][m] = fold_keys(sums[r]);
    }
    for (int r = 0; r < rows; r++) store(scores + r * stride, fold_quarters(folded[r]));
}

// Four elements from `d` on of VL / 4 keys, the first of them and every fourth after it.
INLINE vf gather_fours(const char *const *keys, int64_t d) {
#if VL == 16
    const __m512 first = _mm512_castps128_ps512(_mm_loadu_ps((const float *)keys[0] + d));
    const __m512 two = _mm512_insertf32x4(first, _mm_loadu_ps((const float *)keys[4] + d), 1);
    const __m512 three = _mm512_insertf32x4(two, _mm_loadu_ps((const float *)keys[8] + d), 2);
    return (vf)_mm512_insertf32x4(three, _mm_loadu_ps((const float *)keys[12] + d), 3);
#elif VL == 8
    const __m256 first = _mm256_castps128_ps256(_mm_loadu_ps((const float *)keys[0] + d));
    return (vf)_mm256_insertf128_ps(first, _mm_loadu_ps((const float *)keys[4] + d), 1);
#else
    return load((const float *)keys[0] + d);
#endif
}

// 16 keys of float32 -> columns [dim][LANES].
INLINE void write_columns(const char *const *keys, int64_t dim, float *columns) {
    for (int64_t d = 0; d < dim; d += 4)
        for (int v = 0; v < NV; v++) {
            vf fours[4];
            for (int m = 0; m < 4; m++) fours[m] = gather_fours(keys + v * VL + m, d);
            float *out = columns + d * LANES + v * VL;
#if VL == 16
#define EACH(which, a, b) (vf)_mm512_unpack##which##_ps((__m512)(a), (__m512)(b))
#define BOTH(which, a, b) (vf)_mm512_unpack##which##_pd((__m512d)(a), (__m512d)(b))
#elif VL == 8
#define EACH(which, a, b) (vf)_mm256_unpack##which##_ps((__m256)(a), (__m256)(b))
#define BOTH(which, a, b) (vf)_mm256_unpack##which##_pd((__m256d)(a), (__m256d)(b))
#endif
#if VL > 4
            const vf a = EACH(lo, fours[0], fours[1]), b = EACH(lo, fours[2], fours[3]);
            const vf c = EACH(hi, fours[0], fours[1]), e = EACH(hi, fours[2], fours[3]);
            store(out, BOTH(lo, a, b));
            store(out + LANES, BOTH(hi, a, b));
            store(out + 2 * LANES, BOTH(lo, c, e));
            store(out + 3 * LANES, BOTH(hi, c, e));
#else
            for (int i = 0; i < 4; i++)
                for (int m = 0; m < 4; m++) out[i * LANES + m] = fours[m][i];
#endif
        }
}

// `score_keys` for LANES keys as columns: of each four of the 16 sums that `sum_lanes` adds up first, then of these.
INLINE void score_columns(const float *columns, const float *q, int64_t dim, int rows, int64_t stride, float *scores) {
    for (int v = 0; v < NV; v++) {
        vf quarters[4][BLOCK];
        for (int g = 0; g < 4; g++) {
            vf sums[4][BLOCK];
            for (int i = 0; i < 4; i++)
                for (int r = 0; r < rows; r++) sums[i][r] = splat(0.0f);
            for (int64_t d = g; d < dim; d += LANES)
                for (int i = 0; i < 4; i++) {
                    const vf key = load(columns + (d + 4 * i) * LANES + v * VL);
                    for (int r = 0; r < rows; r++)
                        sums[i][r] = fma_v(splat(q[r * dim + d + 4 * i]), key, sums[i][r]);
                }
            for (int r = 0; r < rows; r++) quarters[g][r] = (sums[0][r] + sums[2][r]) + (sums[1][r] + sums[3][r]);
        }
        for (int r = 0; r < rows; r++)
            store(scores + r * stride + v * VL,
                  (quarters[0][r] + quarters[2][r]) + (quarters[1][r] + quarters[3][r]));
    }
}

// out[r] += weights[r] · values, `count` keys in order, for `rows` rows of out, `dim` apart, and of weights, `stride`
// apart.
INLINE void add_values(int dtype, const char *const *values, const float *weights, int64_t stride, int64_t dim,
                       int64_t count, int rows, float *out) {
    int64_t d = 0;
    for (; d + GROUP * VL <= dim; d += GROUP * VL) {
        vf acc[BLOCK][GROUP];
        for (int r = 0; r < rows; r++)
            for (int g = 0; g < GROUP; g++) acc[r][g] = load(out + r * dim + d + g * VL);
        for (int64_t key = 0; key < count; key++) {
            vf value[GROUP];
            for (int g = 0; g < GROUP; g++) value[g] = load_element(dtype, values[key], d + g * VL);
            for (int r = 0; r < rows; r++) {
                const vf weight = splat(weights[r * stride + key]);
                for (int g = 0; g < GROUP; g++) acc[r][g] = fma_v(weight, value[g], acc[r][g]);
            }
        }
        for (int r = 0; r < rows; r++)
            for (int g = 0; g < GROUP; g++) store(out + r * dim + d + g * VL, acc[r][g]);
    }
    for (; d < dim; d += VL) {
        vf acc[BLOCK];
        for (int r = 0; r < rows; r++) acc[r] = load(out + r * dim + d);
        for (int64_t key = 0; key < count; key++) {
            const vf value = load_element(dtype, values[key], d);
            for (int r = 0; r < rows; r++) acc[r] = fma_v(splat(weights[r * stride + key]), value, acc[r]);
        }
        for (int r = 0; r < rows; r++) store(out + r * dim + d, acc[r]);
    }
}

#endif
