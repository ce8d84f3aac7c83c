// What other kernels use of rowwise.c.
#ifndef OCTAVO_ROWWISE_H
#define OCTAVO_ROWWISE_H

#include <stdint.h>

void octavo_rms_norm(const float *x, const float *weight, int64_t rows, int64_t width, float eps, float *y);
void octavo_add_rms_norm(float *x, const float *added, const float *inner_weight, float inner_eps, const float *weight,
                         int64_t rows, int64_t width, float eps, float *y);

// How tokens are rotated: token t by row positions[t] of the tables, by row t without positions. sin carries the sign of
// its half.
typedef struct {
    const float *cos, *sin;
    const int64_t *positions;
} octavo_rotation;

void octavo_rotate(float *x, int64_t rows, int64_t stride, int64_t num_q, int64_t num_k, int64_t dim,
                   const octavo_rotation *rotation, const float *q_weight, const float *k_weight, float eps);
void octavo_gate(const float *x, int64_t rows, int64_t width, int32_t gelu, float *y);

#endif
