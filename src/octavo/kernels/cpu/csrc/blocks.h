// Encoded blocks of GGUF files: the codes and numbers of each, as ggml's `block_q*` structs lay them out.
#ifndef OCTAVO_BLOCKS_H
#define OCTAVO_BLOCKS_H

#include "codes.h"
#include "vec.h"

enum { Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K, NUM_ENCODINGS };
enum { MOST_SPANS = 8, MOST_GROUPS = 16 }; // in a block

// A block has `spans` spans of 32 columns. The rest is as in octavo_weight.
typedef struct {
    int64_t bytes;
    int spans, bits, group, zero, has_minimum;
} block_form;

static const block_form FORMS[NUM_ENCODINGS] = {
    [Q4_0] = {18, 1, 4, 32, 8, 0},  [Q4_1] = {20, 1, 4, 32, 0, 1},  [Q5_0] = {22, 1, 5, 32, 16, 0},
    [Q5_1] = {24, 1, 5, 32, 0, 1},  [Q8_0] = {34, 1, 8, 32, 128, 0}, [Q4_K] = {144, 8, 4, 32, 0, 1},
    [Q5_K] = {176, 8, 5, 32, 0, 1}, [Q6_K] = {210, 8, 6, 16, 32, 0},
};

INLINE float half_at(const uint8_t *p) {
    uint16_t bits;
    memcpy(&bits, p, 2);
#if defined(__F16C__)
    return _cvtsh_ss(bits);
#else
    uint16_t padded[VL] = {bits};
    return load_half(padded)[0];
#endif
}

// Scales, and minima if there are any, of the groups of a block in column order.
INLINE void block_numbers(int encoding, const uint8_t *block, float *scales, float *minima) {
    switch (encoding) {
    case Q4_0: case Q5_0: case Q8_0: scales[0] = half_at(block); return;
    case Q4_1: case Q5_1:
        scales[0] = half_at(block);
        minima[0] = half_at(block + 2);
        return;
    case Q4_K: case Q5_K: {
        // Twelve bytes hold eight 6-bit scales and eight 6-bit minima: those of groups 0 to 3 in the low bits of bytes
        // 0 to 7, whose two top bits, over the nibbles of bytes 8 to 11 (low: scale), make those of groups 4 to 7.
        const float scale = half_at(block), minimum = half_at(block + 2);
        const uint8_t *p = block + 4;
        for (int i = 0; i < 4; i++) {
            scales[i] = scale * (float)(p[i] & 63);
            minima[i] = -(minimum * (float)(p[4 + i] & 63));
            scales[4 + i] = scale * (float)((p[8 + i] & 15) | (p[i] >> 6) << 4);
            minima[4 + i] = -(minimum * (float)(p[8 + i] >> 4 | (p[4 + i] >> 6) << 4));
        }
        return;
    }
    default: {
        const float scale = half_at(block + 208);
        for (int i = 0; i < 16; i++) scales[i] = scale * (float)(int8_t)block[192 + i];
    }
    }
}

// 0 or 1 in each byte: the bits of `byte`, from the lowest.
INLINE uint64_t spread_bits(uint64_t byte) {
    const uint64_t own = byte * 0x0101010101010101u & 0x8040201008040201u; // byte i keeps its bit i
    return (own + 0x00406070787c7e7fu) >> 7 & 0x0101010101010101u;         // and carries it into its top bit
}

INLINE void add_fifth_bits(const uint8_t *bits, uint8_t *codes) {
    for (int i = 0; i < 4; i++) {
        uint64_t eight;
        memcpy(&eight, codes + 8 * i, 8);
        eight |= spread_bits(bits[i]) << 4;
        memcpy(codes + 8 * i, &eight, 8);
    }
}

// The low four bits of 32 codes: low nibbles of 16 bytes, then the high ones.
INLINE void split_nibbles(const uint8_t *bytes, uint8_t *codes) {
    for (int i = 0; i < 16; i++) codes[i] = bytes[i] & 15, codes[16 + i] = bytes[i] >> 4;
}

// The 32 codes of span `s` of a block.
INLINE void block_codes(int encoding, const uint8_t *block, int s, uint8_t *codes) {
    switch (encoding) {
    case Q4_0: split_nibbles(block + 2, codes); return;
    case Q4_1: split_nibbles(block + 4, codes); return;
    case Q5_0:
        split_nibbles(block + 6, codes);
        add_fifth_bits(block + 2, codes);
        return;
    case Q5_1:
        split_nibbles(block + 8, codes);
        add_fifth_bits(block + 4, codes);
        return;
    case Q8_0: // from two's complement to an offset of 128
        for (int i = 0; i < SPAN; i++) codes[i] = block[2 + i] ^ 128;
        return;
    case Q4_K: case Q5_K: {
        const uint8_t *low = block + (encoding == Q4_K ? 16 : 48) + s / 2 * 32;
        for (int i = 0; i < SPAN; i++) codes[i] = low[i] >> (s % 2 * 4) & 15;
        if (encoding == Q5_K) // bit s of byte i of the high plane belongs to code i of span s
            for (int i = 0; i < SPAN; i++) codes[i] |= (block[16 + i] >> s & 1) << 4;
        return;
    }
    default: {
        // Each half of the block: 64 bytes of low nibbles, 32 bytes whose bit pairs top up four runs of 32 codes.
        const uint8_t *low = block + s / 4 * 64 + s % 2 * 32, *high = block + 128 + s / 4 * 32;
        for (int i = 0; i < SPAN; i++)
            codes[i] = (low[i] >> (s / 2 % 2 * 4) & 15) | (high[i] >> (s % 4 * 2) & 3) << 4;
    }
    }
}

#endif
