// A pool of threads that share the items of one job. Who computes an item never changes its result.
#ifndef OCTAVO_POOL_H
#define OCTAVO_POOL_H

#include <stdint.h>

typedef void (*octavo_task)(void *job, int64_t first, int64_t last);

// Run `task` over items [0, items), of which each takes about as long, on the calling thread and the pool's. Whoever comes
// for more gets one of as many parts as there are threads of what is left, and `grain` at least: so each reads memory
// from one end to the other for long, and all end at about the same time. Returns when all are done.
// A caller that finds the pool busy does its job alone, so any number of threads may call.
void octavo_parallel(int64_t items, int64_t grain, octavo_task task, void *job);

// Likewise, an item at a time, where some take longer than others.
void octavo_parallel_each(int64_t items, octavo_task task, void *job);

// Threads that share a job, the caller's included.
int octavo_threads(void);

#endif
