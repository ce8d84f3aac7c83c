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

typedef uint32_t vu __attribute__((vector_size(4 * VL)));
typedef uint32_t vu_loose __attribute__((vector_size(4 * VL), aligned(4), may_alias));

static _Atomic int amx_state = 0; // 0: not asked, 1: allowed, -1: not

static int amx_allowed(void) {
    if (amx_state == 0) {
        // The kernel hands out the tile registers (feature 18) only on request.
        amx_state = syscall(SYS_arch_prctl, 0x1023, 18) == 0 ? 1 : -1;
    }
    return amx_state == 1;
}

// Some compilers do not see that instructions of tiles read memory: what is written before this is there when they do.
INLINE void finish_writes(void) { __asm__ volatile("" ::: "memory"); }

// For groups of `group` columns.
static void amx_configure(int group) {
    struct {
        uint8_t palette, start, reserved[14];
        uint16_t bytes[16];
        uint8_t rows[16];
    } config = {.palette = 1};
    for (int t = 0; t < 4; t++) config.rows[t] = BLOCK_ROWS, config.bytes[t] = 64;              // sums
    for (int t = 4; t < 6; t++) config.rows[t] = BLOCK_ROWS, config.bytes[t] = (uint16_t)group; // x
    for (int t = 6; t < 8; t++) config.rows[t] = (uint8_t)(group / 4), config.bytes[t] = 64;    // codes
    finish_writes();
    _tile_loadconfig(&config);
}

// The codes of group `g` of a record, one byte each: [group / 4][64].
INLINE void unpack_group(const uint8_t *record, int bits, int group, int g, uint8_t *out) {
#pragma GCC unroll 4
    for (int step = 0; step < group / 8; step++) {
        vi first, second;
        load_pair(record, bits, g * group / 8 + step, 0, &first, &second);
        *(vi *)(out + 64 * step) = first;
        *(vi *)(out + 64 * step + 8 * group) = second;
    }
}

// Sums of one group, into tile register `first`: of 8 rows of x in both planes, which lie one after another, or of 16 in
// the high one and into `second` of those in the low one. `tile_x` and `tile_w` are others.
#define MULTIPLY_GROUP(first, second, tile_x, tile_w, x, rows, codes)                                                \
    do {                                                                                                            \
        _tile_loadd(tile_w, codes, 64);                                                                             \
        _tile_loadd(tile_x, x, SPAN);                                                                               \
        _tile_zero(first);                                                                                          \
        _tile_dpbsud(first, tile_x, tile_w);                                                                        \
        if ((rows) < BLOCK_ROWS) break;                                                                             \
        _tile_loadd(tile_x, x + (rows) * SPAN, SPAN);                                                               \
        _tile_zero(second);                                                                                         \
        _tile_dpbsud(second, tile_x, tile_w);                                                                       \
    } while (0)

#define STORE_GROUP(first, second, rows, sums)                                                                       \
    do {                                                                                                            \
        _tile_stored(first, sums[0], 64);                                                                           \
        if ((rows) == BLOCK_ROWS) _tile_stored(second, sums[rows], 64);                                             \
    } while (0)

// Of one group of a block's rows: [plane, row][lane].
typedef int32_t group_sums[2 * BLOCK_ROWS][LANES];

// `multiply_tile` for a block of `rows` rows, 8 or 16. The sums are integers: the same however they are formed.
//
// Codes of fewer than 8 bits are read from `codes` [columns / 4][64]. With `unpack`, which says that the tile is seen for
// the first time, they are first put there.
INLINE void multiply_tile_amx(const uint8_t *w, int64_t bytes, uint8_t *codes, int unpack, const uint8_t *x,
                              int64_t spans, int rows, int bits, int group, int zero, int has_minimum,
                              vf acc_out[BLOCK_ROWS]) {
    const int groups = SPAN / group;
    const int64_t count = spans * groups;
    group_sums sums[2] __attribute__((aligned(64)));
    int32_t zeros[BLOCK_ROWS] __attribute__((aligned(64)));
    float scaled[BLOCK_ROWS] __attribute__((aligned(64)));
    vf acc[BLOCK_ROWS];
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++) acc[r] = splat(0.0f);
    // In turn i the codes of group i + 3 are unpacked, the sums of i + 1 stored, the products of i + 2 begun, and the
    // sums of i added up, so that nothing waits for what was begun just before it.
    for (int64_t i = -3; i < count; i++) {
        if (unpack && i >= 0 && i % groups == 0) load_ahead(w + i / groups * bytes, bytes);
        if (bits != 8 && unpack && i + 3 < count) {
            const int64_t ahead = i + 3;
            unpack_group(w + ahead / groups * bytes, bits, group, (int)(ahead % groups), codes + ahead * group * LANES);
        }
        finish_writes();
        if (i >= -1 && i + 1 < count) {
            if (i % 2) STORE_GROUP(0, 1, rows, sums[0]);
            else STORE_GROUP(2, 3, rows, sums[1]);
        }
        if (i >= -2 && i + 2 < count) {
            const int64_t span = (i + 2) / groups, g = (i + 2) % groups;
            const uint8_t *next_x = x + span * rows * BYTES_PER_SPAN + g * group;
            const uint8_t *from = bits == 8 ? w + span * bytes + g * group * LANES : codes + (i + 2) * group * LANES;
            if (i % 2) MULTIPLY_GROUP(2, 3, 5, 7, next_x, rows, from);
            else MULTIPLY_GROUP(0, 1, 4, 6, next_x, rows, from);
        }
        if (i < 0) continue;
        const int g = (int)(i % groups);
        const span_view span = view_span(x, rows, i / groups, 0);
        const uint16_t *numbers = (const uint16_t *)(w + i / groups * bytes + code_bytes(bits)) + LANES * g;
        const group_sums *now = &sums[i % 2];
        vf scale = load_half(numbers), minimum = splat(0.0f);
        if (has_minimum) minimum = load_half(numbers + LANES * groups);
        if (zero || (has_minimum && groups > 1)) { // of all rows at once; lanes after the last row have anything
            vu sum = *(const vu_loose *)span.sum;
            if (groups > 1) {
                const vu front = *(const vu_loose *)span.first;
                sum = g == 0 ? front : sum - front;
            }
            *(vu *)zeros = sum * (uint32_t)zero;
            if (has_minimum && groups > 1) *(vf *)scaled = load(span.scale) * to_float((vi)sum);
        }
#pragma GCC unroll 16
        for (int r = 0; r < rows; r++) {
            vi total = (*(const vi *)(*now)[r] << 7) + *(const vi *)(*now)[rows + r];
            if (zero) total -= splat_i(zeros[r]);
            acc[r] = fma_v(to_float(total), scale * splat(span.scale[r]), acc[r]);
            if (has_minimum) acc[r] = fma_v(minimum, splat(groups == 1 ? span.scaled_sum[r] : scaled[r]), acc[r]);
        }
    }
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++) acc_out[r] = acc[r];
}

#endif
#endif
