// Where a sequence's positions are stored, and which of them a token sees.
#ifndef OCTAVO_POSITIONS_H
#define OCTAVO_POSITIONS_H

#include "attention.h"
#include "vec.h"

// The row of a position, and how many positions from it on lie in rows one after another.
typedef struct {
    int64_t row, count;
} row_run;

INLINE row_run run_of(const octavo_sequence *s, int64_t position) {
    if (s->blocks) {
        int64_t most = s->block_size;
        if (position >= s->keep) position += s->skip;
        else if (s->keep - position < most) most = s->keep - position;
        const int64_t offset = position % s->block_size, left = s->block_size - offset;
        return (row_run){s->blocks[position / s->block_size] * s->block_size + offset, left < most ? left : most};
    }
    if (!s->ring) return (row_run){s->base + position, INT64_MAX};
    return (row_run){s->base + position % s->ring, s->ring - position % s->ring};
}

// rows[i] = the row of position first + i, for positions [first, last).
INLINE void find_rows(const octavo_sequence *s, int64_t first, int64_t last, int64_t *rows) {
    row_run run = {0, 0};
    for (int64_t position = first; position < last; position++, run.row++, run.count--) {
        if (run.count == 0) run = run_of(s, position);
        rows[position - first] = run.row;
    }
}

INLINE int64_t first_visible(const octavo_heads *heads, int64_t position) {
    return heads->window && position >= heads->window ? position - heads->window + 1 : 0;
}

#endif
