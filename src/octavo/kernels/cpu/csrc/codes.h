// How the codes of a weight lie in memory, and how they are read.
//
// Packed: tiles of 16 rows of W; a tile is a run of records, one per 32 columns:
//   codes     8 bits: for every 4 columns 64 bytes, 4 per row. Fewer: the low 4 bits so, columns c and c + group/2
//             sharing a byte (low, high); then for each further bit a plane of 64 bytes, whose word i holds that bit of
//             the 64 codes that make vector i / 2 of the low bits, first or second half
//   scales    16 float16 for each group in the record
//   minima    16 float16 for each group in the record, if there are any
// For 4 and 5 bits fixed.h says what the numbers are, and what a tile has beside its records.
#ifndef OCTAVO_CODES_H
#define OCTAVO_CODES_H

#include "linear.h"
#include "vec.h"

// A form of weights as one number, for switches.
#define FORM(bits, group, minimum) ((bits) * 1000 + (group) * 10 + (minimum))

enum { SPAN = 32, BYTES_AHEAD = 4096 };

INLINE int64_t code_bytes(int bits) { return LANES * SPAN * bits / 8; }

INLINE int64_t record_bytes(int bits, int group, int has_minimum) {
    return code_bytes(bits) + (SPAN / group) * LANES * 2 * (has_minimum ? 2 : 1);
}

// Begin to load what lies some records after one of `bytes` bytes: the processor by itself does not look so far ahead.
INLINE void load_ahead(const uint8_t *record, int64_t bytes) {
    for (int64_t at = 0; at < bytes; at += 64) __builtin_prefetch(record + BYTES_AHEAD + at);
}

INLINE vi load_codes(const uint8_t *p) { return *(const vi_loose *)p; }

// `codes` with the bits above the lowest four, from the planes at `planes`: vector part `v` of word `word`.
INLINE vi add_high_bits(vi codes, const uint8_t *planes, int bits, int word, int v) {
    for (int plane = 0; plane < bits - 4; plane++) {
        uint64_t mask;
        memcpy(&mask, planes + 64 * plane + 8 * word, 8);
#if VL == 16 && defined(__AVX512BW__)
        (void)v;
        codes = (vi)_mm512_mask_add_epi8((__m512i)codes, mask, (__m512i)codes, _mm512_set1_epi8((char)(16 << plane)));
#else
        vi four; // the bits of each lane's four codes
        for (int lane = 0; lane < VL; lane++) four[lane] = (int32_t)(mask >> (4 * (v * VL + lane))) & 15;
        codes |= ((four & 1) | (four & 2) << 7 | (four & 4) << 14 | (four & 8) << 21) << (4 + plane);
#endif
    }
    return codes;
}

// Vector `index` of a record's low bits, part `v`: the codes of 4 columns, and of 4 more half a group on.
INLINE void load_pair(const uint8_t *record, int bits, int index, int v, vi *first, vi *second) {
    const vi both = load_codes(record + 64 * index + 4 * VL * v);
    const uint8_t *planes = record + code_bytes(4);
    *first = add_high_bits(both & 0x0f0f0f0f, planes, bits, 2 * index, v);
    *second = add_high_bits((both >> 4) & 0x0f0f0f0f, planes, bits, 2 * index + 1, v);
}

#endif
