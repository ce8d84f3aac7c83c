// Products with weights of 4, 5, 6 or 8 bits. See linear.c.
#ifndef OCTAVO_LINEAR_H
#define OCTAVO_LINEAR_H

#include <stdint.h>

// Rows [0, rows) of a matrix as `pack` laid them out. A weight is (code - zero) * scale + minimum.
typedef struct {
    const uint8_t *data;
    int64_t rows;
    int32_t bits;        // 4, 5, 6 or 8 per code
    int32_t group;       // consecutive columns that share a scale: 16 or 32
    int32_t zero;        // what a code of no value is
    int32_t has_minimum; // 0: there are none
    float unit;          // scales and minima are stored divided by this power of two (6 and 8 bits)
} octavo_weight;

// x [rows, columns] float32 -> y [rows, sum of the parts' rows] float32. Strides in elements. Returns 0, or 1 if
// memory ran out.
int32_t octavo_linear(const octavo_weight *parts, int32_t num_parts, int64_t columns, const float *x, int64_t x_stride,
                      int64_t rows, float *y, int64_t y_stride);

// Of each of at most 64 rows of such a y, which is not written, the first place of the largest value; -1 where that is not
// finite or there is a NaN. Returns as above.
int32_t octavo_linear_greedy(const octavo_weight *parts, int32_t num_parts, int64_t columns, const float *x,
                             int64_t x_stride, int64_t rows, int64_t *index);

// y = activation(gates) * values [rows, width] of such a product with 2 * width rows of W, gates before values; SiLU, or
// GELU in its tanh form. Returns as above.
int32_t octavo_gated_linear(const octavo_weight *parts, int32_t num_parts, int64_t columns, const float *x,
                            int64_t rows, int64_t width, int32_t gelu, float *y);

int64_t octavo_packed_bytes(int64_t rows, int64_t columns, int32_t bits, int32_t group, int32_t has_minimum);

#endif
