// Where sequences keep their keys and values. See attention.c.
#ifndef OCTAVO_ATTENTION_H
#define OCTAVO_ATTENTION_H

#include <stdint.h>

// One sequence's part of a step: packed tokens [first_token, first_token + num_tokens) at positions start, start + 1, …
// Position p lies in stored row blocks[p / block_size] * block_size + p % block_size; where there are no blocks, in
// base + p % ring, or base + p where there is no ring either. From position `keep` on, p counts `skip` more in the
// blocks: those rows held tokens that a context shift has dropped.
typedef struct {
    int64_t first_token, num_tokens, start;
    const int64_t *blocks;
    int64_t block_size, base, ring, keep, skip;
} octavo_sequence;

// Stored rows: element d of head h of row r is at r * row_stride + h * head_stride + d.
typedef struct {
    void *data;
    int64_t row_stride, head_stride;
    int32_t dtype; // 0 float32, 1 float16, 2 bfloat16
    int32_t dim;
} octavo_rows;

typedef struct {
    int64_t num_q_heads, num_kv_heads, window; // window 0: none
    float scale, softcap;                      // softcap 0: none
} octavo_heads;

#endif
