// Where sequences keep their keys and values. See attention.c and store.c.
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

// Stored rows: the elements (for 4 bits, pairs of them) of head h of row r begin at r * row_stride + h * head_stride.
// Encoded rows have float16 scales beside them, laid out alike. Of turbo4, `scaled` elements are rotated together and
// share a scale, and `tables` are those of octavo.storage.codecs.turbo4.
typedef struct {
    void *data;
    int64_t row_stride, head_stride;
    int32_t dtype; // 0 float32, 1 float16, 2 bfloat16, 3 q8_0, 4 q4_0, 5 turbo4
    int32_t dim;
    void *scales;
    int64_t scale_row_stride, scale_head_stride, scaled;
    const float *tables;
} octavo_rows;

typedef struct {
    int64_t num_q_heads, num_kv_heads, window; // window 0: none
    float scale, softcap;                      // softcap 0: none
} octavo_heads;

void octavo_store(const float *x, int64_t stride, int64_t num_heads, const octavo_rows *rows,
                  const octavo_sequence *sequences, int64_t count);
int32_t octavo_attend(const float *q, int64_t q_stride, const octavo_rows *k, const octavo_rows *v,
                      const octavo_sequence *sequences, int64_t count, const octavo_heads *heads, const float *sinks,
                      float *out);

#endif
