// The largest result of each row of a product, found where its tiles are computed, so that none of them is written.
#ifndef OCTAVO_BEST_ROWS_H
#define OCTAVO_BEST_ROWS_H

#include <math.h>
#include <pthread.h>

#include "vec.h"

enum { BEST_MOST_ROWS = 64 };

// Of one row, what a thread has found in tiles that it went through in order: in each lane the largest value, the tile's
// first column where it came first, and whether there was a NaN.
typedef struct {
    vf value[NV];
    vi column[NV], bad[NV];
} best_lanes;

// Of each row, what all threads have found: the first of the largest.
typedef struct {
    pthread_mutex_t lock;
    float value[BEST_MOST_ROWS];
    int64_t column[BEST_MOST_ROWS];
    int bad[BEST_MOST_ROWS];
} best_rows;

INLINE void begin_best(best_lanes *best, int64_t rows) {
    for (int64_t row = 0; row < rows; row++)
        for (int v = 0; v < NV; v++) {
            best[row].value[v] = splat(-INFINITY);
            best[row].column[v] = best[row].bad[v] = splat_i(0);
        }
}

// Take the first `count` of a tile's results acc * unit, the first of which is that of `column`.
INLINE void keep_best(best_lanes *best, const vf *acc, float unit, int64_t count, int64_t column) {
    for (int v = 0; v < NV; v++) {
        vf value = acc[v] * splat(unit);
        if (count < LANES)
            for (int i = 0; i < VL; i++)
                if (v * VL + i >= count) value[i] = -INFINITY;
        const vi more = value > best->value[v];
        best->value[v] = select_v(more, value, best->value[v]);
        best->column[v] = (more & splat_i((int32_t)column)) | (~more & best->column[v]);
        best->bad[v] |= value != value;
    }
}

static void merge_best(best_rows *rows_of_all, const best_lanes *best, int64_t rows) {
    pthread_mutex_lock(&rows_of_all->lock);
    for (int64_t row = 0; row < rows; row++) {
        float largest = rows_of_all->value[row];
        int64_t first = rows_of_all->column[row];
        for (int lane = 0; lane < LANES; lane++) {
            const float value = best[row].value[lane / VL][lane % VL];
            const int64_t column = best[row].column[lane / VL][lane % VL] + lane;
            if (value > largest || (value == largest && column < first)) largest = value, first = column;
            if (best[row].bad[lane / VL][lane % VL]) rows_of_all->bad[row] = 1;
        }
        rows_of_all->value[row] = largest;
        rows_of_all->column[row] = first;
    }
    pthread_mutex_unlock(&rows_of_all->lock);
}

static void open_best(best_rows *best, int64_t rows) {
    pthread_mutex_init(&best->lock, NULL);
    for (int64_t row = 0; row < rows; row++) {
        best->value[row] = -INFINITY;
        best->column[row] = 0;
        best->bad[row] = 0;
    }
}

// The first column of the largest value of each row, -1 where that is not finite or there is a NaN.
static void close_best(best_rows *best, int64_t rows, int64_t *index) {
    pthread_mutex_destroy(&best->lock);
    for (int64_t row = 0; row < rows; row++)
        index[row] = best->bad[row] || !isfinite(best->value[row]) ? -1 : best->column[row];
}

#endif
