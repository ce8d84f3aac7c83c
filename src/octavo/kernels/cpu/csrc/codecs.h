// One head of a stored row, encoded and decoded: the float32 operations of octavo.storage.codecs, in their order, so
// that the bits are those of torch. Nothing here may be contracted: no product is added to anything.
#ifndef OCTAVO_CODECS_H
#define OCTAVO_CODECS_H

#include <math.h>

#include "attention.h"
#include "vec.h"

enum { F32, F16, BF16, Q8_0, Q4_0, TURBO4 }; // octavo_rows.dtype
enum { SCALE_GROUP = 32, MAX_ROTATED = 256 };

typedef int8_t vb __attribute__((vector_size(VL)));
typedef uint8_t vub __attribute__((vector_size(VL)));
typedef int8_t vb_loose __attribute__((vector_size(VL), aligned(1), may_alias));
typedef uint8_t vub_loose __attribute__((vector_size(VL), aligned(1), may_alias));

INLINE float from_half(uint16_t h) {
    uint16_t lanes[VL] = {h};
    return load_half(lanes)[0];
}

// Where x is not finite in float16: NaN.
INLINE uint16_t finite_half(float x) {
    uint16_t h = to_half(x);
    return (h & 0x7c00u) == 0x7c00u ? 0x7e00u : h;
}

// x to whole numbers from `least` to `most`, ties to even; 0 where the scale is 0 or NaN.
INLINE vi codes_of(vf x, float scale, float least, float most) {
    if (!(scale > 0.0f || scale < 0.0f)) return splat_i(0);
    vf code = x / splat(scale);
    code = select_v(code < splat(least), splat(least), code);
    code = select_v(code > splat(most), splat(most), code);
    const vf shifter = splat(12582912.0f); // 1.5 * 2^23: adding it rounds to a whole number
    return __builtin_convertvector((code + shifter) - shifter, vi);
}

// Largest and smallest of 16 or 32 elements and 0; returns 0 if one is not finite.
INLINE int extremes(const float *x, int64_t count, float *highest, float *lowest) {
    vf most[NV], least[NV];
    vi bad = splat_i(0);
    for (int v = 0; v < NV; v++) most[v] = least[v] = splat(0.0f);
    for (int64_t i = 0; i < count; i += LANES)
        for (int v = 0; v < NV; v++) {
            const vf here = load(x + i + v * VL);
            most[v] = max_v(most[v], here);
            least[v] = max_v(least[v], -here);
            bad |= ((vi)here & 0x7fffffff) >= 0x7f800000;
        }
    *highest = max_lanes(most);
    *lowest = -max_lanes(least);
    return !any_lane(bad);
}

INLINE int64_t group_width(int64_t dim, int64_t first) { return dim - first < SCALE_GROUP ? dim - first : SCALE_GROUP; }

// ---- q8_0

INLINE void encode_q8(const float *x, int64_t dim, int8_t *codes, uint16_t *scales) {
    for (int64_t first = 0; first < dim; first += SCALE_GROUP) {
        const int64_t width = group_width(dim, first);
        float highest, lowest;
        const int finite = extremes(x + first, width, &highest, &lowest);
        const float largest = highest > -lowest ? highest : -lowest;
        const uint16_t half = finite ? finite_half(largest * (1.0f / 127.0f)) : 0x7e00u;
        const float scale = from_half(half);
        scales[first / SCALE_GROUP] = half;
        for (int64_t i = first; i < first + width; i += VL)
            *(vb_loose *)(codes + i) = __builtin_convertvector(codes_of(load(x + i), scale, -127.0f, 127.0f), vb);
    }
}

INLINE void decode_q8(const int8_t *codes, const uint16_t *scales, int64_t dim, float *out) {
    for (int64_t first = 0; first < dim; first += SCALE_GROUP) {
        const vf scale = splat(from_half(scales[first / SCALE_GROUP]));
        for (int64_t i = first; i < first + group_width(dim, first); i += VL)
            store(out + i, to_float(__builtin_convertvector(*(const vb_loose *)(codes + i), vi)) * scale);
    }
}

// ---- 4 bits: element d below element d + dim / 2

INLINE void put_nibbles(vi values, int64_t at, int64_t half, uint8_t *codes) {
    for (int i = 0; i < VL; i++) {
        const int64_t d = at + i;
        if (d < half)
            codes[d] = (uint8_t)values[i];
        else
            codes[d - half] |= (uint8_t)(values[i] << 4);
    }
}

INLINE vf lookup(const float *table, vi index) {
#if defined(__AVX512F__)
    return (vf)_mm512_permutexvar_ps((__m512i)index, _mm512_loadu_ps(table));
#else
    vf out;
    for (int i = 0; i < VL; i++) out[i] = table[index[i]];
    return out;
#endif
}

// table[code] of every element.
INLINE void get_nibbles(const uint8_t *codes, int64_t dim, const float *table, float *out) {
    const int64_t half = dim / 2;
    int64_t i = 0;
    for (; i + VL <= half; i += VL) {
        const vi both = __builtin_convertvector(*(const vub_loose *)(codes + i), vi);
        store(out + i, lookup(table, both & 15));
        store(out + half + i, lookup(table, both >> 4));
    }
    for (; i < half; i++) {
        out[i] = table[codes[i] & 15];
        out[half + i] = table[codes[i] >> 4];
    }
}

// ---- q4_0

static const float WHOLE_LEVELS[16] = {-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7};

INLINE void encode_q4(const float *x, int64_t dim, uint8_t *codes, uint16_t *scales) {
    for (int64_t first = 0; first < dim; first += SCALE_GROUP) {
        const int64_t width = group_width(dim, first);
        float highest, lowest;
        const int finite = extremes(x + first, width, &highest, &lowest);
        const uint16_t half = finite ? finite_half((highest >= -lowest ? highest : lowest) * -0.125f) : 0x7e00u;
        const float scale = from_half(half);
        scales[first / SCALE_GROUP] = half;
        for (int64_t i = first; i < first + width; i += VL)
            put_nibbles(codes_of(load(x + i), scale, -8.0f, 7.0f) + 8, i, dim / 2, codes);
    }
}

INLINE void decode_q4(const uint8_t *codes, const uint16_t *scales, int64_t dim, float *out) {
    get_nibbles(codes, dim, WHOLE_LEVELS, out);
    for (int64_t first = 0; first < dim; first += SCALE_GROUP) {
        const vf scale = splat(from_half(scales[first / SCALE_GROUP]));
        for (int64_t i = first; i < first + group_width(dim, first); i += VL) store(out + i, load(out + i) * scale);
    }
}

// ---- turbo4: tables hold signs [dim], levels [16] and bounds [15]

INLINE vf add_neighbours(vf x, int step) {
    vf other, sign;
    for (int i = 0; i < VL; i++) {
        other[i] = x[i ^ step];
        sign[i] = i & step ? -1.0f : 1.0f;
    }
    return other + sign * x; // the product is exact, so a fused sum is the same
}

// x becomes H x: neighbours first, as octavo.storage.codecs.turbo4.hadamard has it.
INLINE void hadamard(float *x, int64_t count) {
    for (int64_t i = 0; i < count; i += VL) {
        vf part = add_neighbours(add_neighbours(load(x + i), 1), 2);
        if (VL > 4) part = add_neighbours(part, 4 % VL);
        if (VL > 8) part = add_neighbours(part, 8 % VL);
        store(x + i, part);
    }
    for (int64_t step = VL; step < count; step *= 2)
        for (int64_t base = 0; base < count; base += 2 * step)
            for (int64_t i = base; i < base + step; i += VL) {
                const vf a = load(x + i), b = load(x + i + step);
                store(x + i, a + b);
                store(x + i + step, a - b);
            }
}

INLINE float norm_of(const float *x, int64_t count) {
    float squares[MAX_ROTATED];
    for (int64_t i = 0; i < count; i++) squares[i] = x[i] * x[i];
    __asm__ volatile("" ::: "memory"); // the squares are rounded before they are added
    for (int64_t half = count / 2; half; half /= 2)
        for (int64_t i = 0; i < half; i++) squares[i] += squares[i + half];
    return (float)sqrt((double)squares[0]);
}

INLINE void encode_turbo(const float *x, const octavo_rows *rows, uint8_t *codes, uint16_t *norms) {
    const float *signs = rows->tables, *bounds = signs + rows->dim + 16;
    for (int64_t first = 0; first < rows->dim; first += rows->scaled) {
        float y[MAX_ROTATED];
        const uint16_t half = finite_half(norm_of(x + first, rows->scaled));
        const float norm = from_half(half);
        norms[first / rows->scaled] = half;
        for (int64_t i = 0; i < rows->scaled; i += VL) store(y + i, load(x + first + i) * load(signs + first + i));
        hadamard(y, rows->scaled);
        for (int64_t i = 0; i < rows->scaled; i += VL) {
            const vf normal = norm > 0.0f ? load(y + i) / splat(norm) : splat(0.0f);
            vi code = splat_i(0);
            for (int b = 0; b < 15; b++) code -= normal > splat(bounds[b]);
            put_nibbles(code, first + i, rows->dim / 2, codes);
        }
    }
}

INLINE void decode_turbo(const octavo_rows *rows, const uint8_t *codes, const uint16_t *norms, float *out) {
    const float *signs = rows->tables;
    get_nibbles(codes, rows->dim, signs + rows->dim, out);
    for (int64_t first = 0; first < rows->dim; first += rows->scaled) {
        const vf scale = splat(from_half(norms[first / rows->scaled]) * (1.0f / (float)rows->scaled));
        hadamard(out + first, rows->scaled);
        for (int64_t i = first; i < first + rows->scaled; i += VL)
            store(out + i, load(out + i) * scale * load(signs + i));
    }
}

// ---- one head

INLINE void encode_cast(const float *x, uint16_t *out, int32_t dtype, int64_t count) {
    int64_t i = 0;
#if defined(__AVX512F__)
    if (dtype == F16)
        for (; i + 16 <= count; i += 16)
            _mm256_storeu_si256((__m256i *)(out + i), _mm512_cvtps_ph(_mm512_loadu_ps(x + i), _MM_FROUND_TO_NEAREST_INT));
#endif
    for (; i < count; i++) out[i] = dtype == F16 ? to_half(x[i]) : to_bfloat(x[i]);
}

// x [dim] into head `head` of stored row `row`.
INLINE void encode(const float *x, const octavo_rows *rows, int64_t row, int64_t head) {
    const int64_t at = row * rows->row_stride + head * rows->head_stride;
    uint16_t *scales = (uint16_t *)rows->scales + row * rows->scale_row_stride + head * rows->scale_head_stride;
    switch (rows->dtype) {
    case F32: memcpy((float *)rows->data + at, x, (size_t)rows->dim * 4); break;
    case Q8_0: encode_q8(x, rows->dim, (int8_t *)rows->data + at, scales); break;
    case Q4_0: encode_q4(x, rows->dim, (uint8_t *)rows->data + at, scales); break;
    case TURBO4: encode_turbo(x, rows, (uint8_t *)rows->data + at, scales); break;
    default: encode_cast(x, (uint16_t *)rows->data + at, rows->dtype, rows->dim);
    }
}

// The inverse, to out [dim].
INLINE void decode(const octavo_rows *rows, int64_t row, int64_t head, float *out) {
    const int64_t at = row * rows->row_stride + head * rows->head_stride;
    const uint16_t *scales = (uint16_t *)rows->scales + row * rows->scale_row_stride + head * rows->scale_head_stride;
    const uint16_t *halves = (const uint16_t *)rows->data + at;
    switch (rows->dtype) {
    case F32: memcpy(out, (const float *)rows->data + at, (size_t)rows->dim * 4); break;
    case Q8_0: decode_q8((const int8_t *)rows->data + at, scales, rows->dim, out); break;
    case Q4_0: decode_q4((const uint8_t *)rows->data + at, scales, rows->dim, out); break;
    case TURBO4: decode_turbo(rows, (const uint8_t *)rows->data + at, scales, out); break;
    case F16:
        for (int64_t i = 0; i < rows->dim; i += VL) store(out + i, load_half(halves + i));
        break;
    default:
        for (int64_t i = 0; i < rows->dim; i += VL) store(out + i, load_bfloat(halves + i));
    }
}

#endif
