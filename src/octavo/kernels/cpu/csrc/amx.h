// Products of one tile of W with 16 rows of x at a time, in the tile registers of processors that have them.
#ifndef OCTAVO_AMX_H
#define OCTAVO_AMX_H

#include "activations.h"
#include "codes.h"
#include "vec.h"

#if defined(__AMX_INT8__) && VL == 16
#define AMX 1

#include <sys/syscall.h>
#include <unistd.h>

#include "products.h"

enum { AMX_SPANS = 1024 };

static _Atomic int amx_state = 0; // 0: not asked, 1: allowed, -1: not

static int amx_allowed(void) {
    if (amx_state == 0) {
        // The kernel hands out the tile registers (feature 18) only on request.
        amx_state = syscall(SYS_arch_prctl, 0x1023, 18) == 0 ? 1 : -1;
    }
    return amx_state == 1;
}

// For groups of `group` columns.
static void amx_configure(int group) {
    struct {
        uint8_t palette, start, reserved[14];
        uint16_t bytes[16];
        uint8_t rows[16];
    } config = {.palette = 1};
    for (int t = 0; t < 4; t++) config.rows[t] = BLOCK_ROWS, config.bytes[t] = 64;   // sums
    for (int t = 4; t < 6; t++) config.rows[t] = BLOCK_ROWS, config.bytes[t] = group; // x
    for (int t = 6; t < 8; t++) config.rows[t] = group / 4, config.bytes[t] = 64;    // codes
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
                vi first, second;
                load_pair(w, bits, g * group / 8 + step, 0, &first, &second);
                uint8_t *at = out + LANES * group * g + 64 * step;
                *(vi_loose *)at = first;
                *(vi_loose *)(at + 8 * group) = second;
            }
    }
}

// Sums of one group in both planes -> sums[plane][row][lane]. `high`, `low`, `rows` and `tile` are tile registers.
#define MULTIPLY_GROUP(high, low, rows, tile, x, codes, sums)                                                        \
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

// `multiply_tile` for a block of 16 rows. The sums are integers: they are the same however they are formed.
INLINE void multiply_tile_amx(const uint8_t *codes, const uint8_t *scales, int64_t bytes, const uint8_t *x,
                              int64_t spans, int group, int zero, int has_minimum, vf acc_out[BLOCK_ROWS]) {
    const int groups = SPAN / group;
    block_sums sums[2] __attribute__((aligned(64)));
    vf acc[BLOCK_ROWS];
#pragma GCC unroll 16
    for (int r = 0; r < BLOCK_ROWS; r++) acc[r] = splat(0.0f);
    // One group ahead, so that a group's products run while the sums of the one before are added.
    MULTIPLY_GROUP(0, 1, 4, 6, x, codes, sums[0]);
    for (int64_t i = 0; i < spans * groups; i++) {
        const int g = (int)(i % groups);
        if (i + 1 < spans * groups) {
            const uint8_t *next_x = x + (i + 1) / groups * BLOCK_ROWS * BYTES_PER_SPAN + (i + 1) % groups * group;
            const uint8_t *next_codes = codes + (i + 1) * group * LANES;
            if (i % 2) MULTIPLY_GROUP(0, 1, 4, 6, next_x, next_codes, sums[0]);
            else MULTIPLY_GROUP(2, 3, 5, 7, next_x, next_codes, sums[1]);
        }
        const span_view span = view_span(x, BLOCK_ROWS, i / groups, 0);
        const uint16_t *numbers = (const uint16_t *)(scales + i / groups * bytes) + LANES * g;
        vf scale = load_half(numbers), minimum = splat(0.0f);
        if (has_minimum) minimum = load_half(numbers + LANES * groups);
        const block_sums *now = &sums[i % 2];
#pragma GCC unroll 16
        for (int r = 0; r < BLOCK_ROWS; r++)
            acc[r] = add_group(acc[r], *(const vi *)(*now)[0][r], *(const vi *)(*now)[1][r], zero, scale, has_minimum,
                               minimum, span, r, groups, g);
    }
#pragma GCC unroll 16
    for (int r = 0; r < BLOCK_ROWS; r++) acc_out[r] = acc[r];
}

#endif
#endif
