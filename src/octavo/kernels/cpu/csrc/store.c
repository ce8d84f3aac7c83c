// New keys and values into the rows of their positions.

#include "codecs.h"
#include "positions.h"

// x [tokens, heads, dim], tokens `stride` apart.
void octavo_store(const float *x, int64_t stride, int64_t num_heads, const octavo_rows *rows,
                  const octavo_sequence *sequences, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        const octavo_sequence *s = sequences + i;
        for (int64_t t = 0; t < s->num_tokens; t++) {
            int64_t row = run_of(s, s->start + t).row;
            for (int64_t h = 0; h < num_heads; h++)
                encode(x + (s->first_token + t) * stride + h * rows->dim, rows, row, h);
        }
    }
}
