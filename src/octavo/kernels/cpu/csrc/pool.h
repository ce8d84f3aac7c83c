// A pool of threads that share the items of one job. Who computes an item never changes its result.
#ifndef OCTAVO_POOL_H
#define OCTAVO_POOL_H

#include <stdint.h>

typedef void (*octavo_task)(void *job, int64_t first, int64_t last);

// Run `task` over items [0, items), `grain` at a time, on the calling thread and the pool's. Returns when all are done.
// A caller that finds the pool busy does its job alone, so any number of threads may call.
void octavo_parallel(int64_t items, int64_t grain, octavo_task task, void *job);

// Threads that share a job, the caller's included.
int octavo_threads(void);

#endif
