// Vectors of float and int32 in the machine's own width, as the compiler's vector types; intrinsics only where C has
// no word for an instruction. Every kernel works on 16 lanes: LANES / VL vectors.
#ifndef OCTAVO_VEC_H
#define OCTAVO_VEC_H

#include <stdint.h>
#include <string.h>

#if defined(__AVX512F__) || defined(__AVX2__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
#define VL 16
#elif defined(__AVX2__)
#define VL 8
#else
#define VL 4
#endif
#define LANES 16
#define NV (LANES / VL)
#define INLINE static inline __attribute__((always_inline))

typedef float vf __attribute__((vector_size(4 * VL)));
typedef int32_t vi __attribute__((vector_size(4 * VL)));
typedef float vf_loose __attribute__((vector_size(4 * VL), aligned(4), may_alias));
typedef int32_t vi_loose __attribute__((vector_size(4 * VL), aligned(4), may_alias));

INLINE vf load(const float *p) { return *(const vf_loose *)p; }
INLINE void store(float *p, vf v) { *(vf_loose *)p = v; }

// Past the caches, where the machine can and `p` is aligned; `finish_streams` before others read it.
INLINE void stream(float *p, vf v) {
#if VL == 16
    if (((uintptr_t)p & 63) == 0) {
        _mm512_stream_ps(p, (__m512)v);
        return;
    }
#endif
    store(p, v);
}
INLINE void finish_streams(void) {
#if VL == 16
    _mm_sfence();
#endif
}

INLINE vf splat(float x) { return x - (vf){0}; }
INLINE vi splat_i(int32_t x) { return x - (vi){0}; }
INLINE vf to_float(vi v) { return __builtin_convertvector(v, vf); }

// a * b + c, rounded once where the machine can. One function for every use, so that every use rounds alike.
INLINE vf fma_v(vf a, vf b, vf c) {
#if defined(__AVX512F__)
    return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__AVX2__) && defined(__FMA__)
    return (vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
    return a * b + c;
#endif
}

INLINE vf select_v(vi mask, vf yes, vf no) { return (vf)((mask & (vi)yes) | (~mask & (vi)no)); }
INLINE vf max_v(vf a, vf b) { return select_v(a > b, a, b); }

INLINE int any_lane(vi mask) {
    int32_t any = 0;
    for (int i = 0; i < VL; i++) any |= mask[i];
    return any != 0;
}

// Whether there is an instruction that adds up two products of bytes, and none that does four.
#if VL == 16 && defined(__AVX512BW__) && !defined(__AVX512VNNI__)
#define PAIRS_OF_BYTES 1
INLINE vi pairs_of_bytes(vi a, vi b) { return (vi)_mm512_maddubs_epi16((__m512i)a, (__m512i)b); }
INLINE vi add_words(vi a, vi b) { return (vi)_mm512_add_epi16((__m512i)a, (__m512i)b); }
#elif VL == 8 && !defined(__AVXVNNI__)
#define PAIRS_OF_BYTES 1
INLINE vi pairs_of_bytes(vi a, vi b) { return (vi)_mm256_maddubs_epi16((__m256i)a, (__m256i)b); }
INLINE vi add_words(vi a, vi b) { return (vi)_mm256_add_epi16((__m256i)a, (__m256i)b); }
#else
#define PAIRS_OF_BYTES 0
#endif

// Of whole numbers, where no order of adding matters.
INLINE int32_t sum_lanes_i(vi v) {
#if defined(__AVX512F__)
    return _mm512_reduce_add_epi32((__m512i)v);
#else
    int32_t sum = 0;
    for (int i = 0; i < VL; i++) sum += v[i];
    return sum;
#endif
}

INLINE int32_t max_lanes_i(vi v) {
#if defined(__AVX512F__)
    return _mm512_reduce_max_epi32((__m512i)v);
#else
    int32_t most = v[0];
    for (int i = 1; i < VL; i++) most = v[i] > most ? v[i] : most;
    return most;
#endif
}

INLINE vi max_i(vi a, vi b) {
#if VL == 16
    return (vi)_mm512_max_epi32((__m512i)a, (__m512i)b);
#else
    const vi more = a > b;
    return (more & a) | (~more & b);
#endif
}

// Sum and largest of the lanes, always by the same tree.
INLINE float sum_lanes(const vf *v) {
    float x[LANES];
    for (int i = 0; i < NV; i++) store(x + i * VL, v[i]);
    for (int width = LANES / 2; width; width /= 2)
        for (int i = 0; i < width; i++) x[i] += x[i + width];
    return x[0];
}

INLINE float max_lanes(const vf *v) {
    float x[LANES];
    for (int i = 0; i < NV; i++) store(x + i * VL, v[i]);
    for (int width = LANES / 2; width; width /= 2)
        for (int i = 0; i < width; i++) x[i] = x[i] > x[i + width] ? x[i] : x[i + width];
    return x[0];
}

// VL float16 values as float.
INLINE vf load_half(const uint16_t *p) {
#if defined(__AVX512F__)
    return (vf)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
#elif defined(__AVX2__) && defined(__F16C__)
    return (vf)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
#else
    vf out;
    for (int i = 0; i < VL; i++) {
        uint32_t h = p[i], sign = (h & 0x8000u) << 16, exponent = (h >> 10) & 31, mantissa = h & 0x3ffu;
        float value;
        if (exponent == 0) {
            value = (float)mantissa * 0x1p-24f;
        } else {
            uint32_t bits = ((exponent == 31 ? 255 : exponent + 112) << 23) | (mantissa << 13);
            memcpy(&value, &bits, 4);
        }
        out[i] = sign ? -value : value;
    }
    return out;
#endif
}

// VL unsigned 16-bit numbers.
INLINE vi load_words(const void *p) {
#if VL == 16
    return (vi)_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p));
#elif VL == 8
    return (vi)_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p));
#else
    uint16_t words[VL];
    vi out;
    memcpy(words, p, sizeof words);
    for (int i = 0; i < VL; i++) out[i] = words[i];
    return out;
#endif
}

INLINE vf load_bfloat(const uint16_t *p) {
    vf out;
    uint32_t bits[VL];
    for (int i = 0; i < VL; i++) bits[i] = (uint32_t)p[i] << 16;
    memcpy(&out, bits, sizeof out);
    return out;
}

INLINE uint16_t to_half(float x) {
#if defined(__F16C__)
    return (uint16_t)_cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT);
#else
    uint32_t bits;
    memcpy(&bits, &x, 4);
    uint32_t sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return (uint16_t)(sign | 0x7e00u);
    if (magnitude >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u);
    if (magnitude < 0x38800000u) { // below the normal numbers: add so that the mantissa lands in the low bits
        float value;
        memcpy(&value, &magnitude, 4);
        value += 0.5f;
        memcpy(&magnitude, &value, 4);
        return (uint16_t)(sign | (magnitude - 0x3f000000u));
    }
    return (uint16_t)(sign | ((magnitude - 0x38000000u + 0xfffu + (magnitude >> 13 & 1)) >> 13));
#endif
}

INLINE uint16_t to_bfloat(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return (uint16_t)(bits >> 16 | 0x40u);
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}

// exp to about 1 ulp, for x up to 88 or NaN; exactly 1 at 0, 0 below -87.
INLINE vf exp_to_88(vf x) {
    const vf shifter = splat(12582912.0f); // 1.5 * 2^23: adding it rounds to a whole number
    vi tiny = x < splat(-87.0f);
    x = select_v(tiny, splat(-87.0f), x);
    vf n = (x * splat(1.44269504f) + shifter) - shifter;
    vf r = fma_v(n, splat(-0.693359375f), x);
    r = fma_v(n, splat(2.12194440e-4f), r);
    vf p = splat(1.9875691500e-4f);
    p = fma_v(p, r, splat(1.3981999507e-3f));
    p = fma_v(p, r, splat(8.3334519073e-3f));
    p = fma_v(p, r, splat(4.1665795894e-2f));
    p = fma_v(p, r, splat(1.6666665459e-1f));
    p = fma_v(p, r, splat(5.0000001201e-1f));
    p = fma_v(p, r * r, r) + splat(1.0f);
    vi exponent = __builtin_convertvector(n, vi) << 23;
    return select_v(tiny, splat(0.0f), (vf)((vi)p + exponent));
}

// Above 88 what it is there, which is finite.
INLINE vf exp_v(vf x) { return exp_to_88(select_v(x > splat(88.0f), splat(88.0f), x)); }

#endif
