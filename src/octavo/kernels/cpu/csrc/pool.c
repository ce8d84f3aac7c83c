// Workers spin for some microseconds after a job, because in a decode step the next one follows at once, then sleep.
// A job is finished when no item is left and no worker holds one: a worker that the system has put aside, or that
// has not woken up, is not waited for.

#include "pool.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stddef.h>

enum { MAX_WORKERS = 255, WORKER_SPINS = 4000, WAITS_BEFORE_YIELD = 2000 };
#define CLOSED ((int64_t)1 << 62) // value of `next` between jobs

static struct {
    octavo_task task;
    void *job;
    int64_t items, grain, parts; // `parts` 0: `grain` items at a time
} current;

static _Atomic int64_t next = CLOSED; // the first item that nobody has taken
static _Atomic int inside = 0;        // workers that may hold items of the current job
static _Atomic uint32_t jobs = 0;     // counts jobs, so that a worker sees a new one
static _Atomic int sleeping = 0;
static _Atomic int num_workers = 0;   // wanted; a worker of a higher index sits jobs out
static int started = 0;               // workers started so far
static pthread_mutex_t owner = PTHREAD_MUTEX_INITIALIZER; // held by who runs a job
static pthread_mutex_t door = PTHREAD_MUTEX_INITIALIZER;  // sleeping and waking
static pthread_cond_t bell = PTHREAD_COND_INITIALIZER;

static inline void relax(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static void take_items(void) {
    int64_t begin = atomic_load(&next);
    for (;;) {
        // `current` may be read only once this is not CLOSED: until then another job may be being written.
        if (begin >= CLOSED) return;
        const int64_t left = current.items - begin, part = current.parts ? left / current.parts : 0;
        if (left <= 0) return;
        int64_t count = part > current.grain ? part : current.grain;
        if (count > left) count = left;
        if (!atomic_compare_exchange_weak(&next, &begin, begin + count)) continue;
        current.task(current.job, begin, begin + count);
        begin = atomic_load(&next);
    }
}

static void *work(void *argument) {
    int index = (int)(intptr_t)argument;
    uint32_t seen = atomic_load(&jobs);
    for (;;) {
        int spins = 0;
        while (atomic_load_explicit(&jobs, memory_order_acquire) == seen && spins < WORKER_SPINS) {
            relax();
            spins++;
        }
        if (atomic_load(&jobs) == seen) {
            pthread_mutex_lock(&door);
            atomic_fetch_add(&sleeping, 1);
            while (atomic_load(&jobs) == seen) pthread_cond_wait(&bell, &door);
            atomic_fetch_sub(&sleeping, 1);
            pthread_mutex_unlock(&door);
        }
        seen = atomic_load(&jobs);
        if (index >= atomic_load(&num_workers)) continue;
        atomic_fetch_add(&inside, 1);
        take_items();
        atomic_fetch_sub(&inside, 1);
    }
    return NULL;
}

static void share(int64_t items, int64_t grain, int64_t parts, octavo_task task, void *job) {
    if (items <= 0) return;
    if (items <= grain || atomic_load(&num_workers) == 0 || pthread_mutex_trylock(&owner) != 0) {
        task(job, 0, items);
        return;
    }
    current.task = task;
    current.job = job;
    current.items = items;
    current.grain = grain;
    current.parts = parts;
    atomic_store(&next, 0);
    atomic_fetch_add(&jobs, 1);
    if (atomic_load(&sleeping) > 0) {
        pthread_mutex_lock(&door);
        pthread_cond_broadcast(&bell);
        pthread_mutex_unlock(&door);
    }
    take_items();
    // From here no worker can take an item; those inside still finish theirs.
    atomic_store(&next, CLOSED);
    // In one order with what was just stored: a worker that it does not see yet finds CLOSED.
    for (int waits = 0; atomic_load(&inside) > 0; waits++) {
        relax();
        if (waits > WAITS_BEFORE_YIELD) sched_yield();
    }
    pthread_mutex_unlock(&owner);
}

void octavo_parallel(int64_t items, int64_t grain, octavo_task task, void *job) {
    share(items, grain, octavo_threads(), task, job);
}

void octavo_parallel_each(int64_t items, octavo_task task, void *job) { share(items, 1, 0, task, job); }

// A child process has none of its parent's threads.
static void after_fork(void) {
    started = 0;
    atomic_store(&num_workers, 0);
    atomic_store(&inside, 0);
    atomic_store(&sleeping, 0);
    atomic_store(&next, CLOSED);
    pthread_mutex_init(&owner, NULL);
    pthread_mutex_init(&door, NULL);
    pthread_cond_init(&bell, NULL);
}

int octavo_threads(void) { return atomic_load(&num_workers) + 1; }

// Threads that share a job from now on, the caller's included. Returns how many there are.
int octavo_set_threads(int threads) {
    static int prepared = 0;
    pthread_mutex_lock(&owner);
    if (!prepared) {
        pthread_atfork(NULL, NULL, after_fork);
        prepared = 1;
    }
    int workers = threads < 1 ? 0 : threads - 1;
    if (workers > MAX_WORKERS) workers = MAX_WORKERS;
    while (started < workers) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, work, (void *)(intptr_t)started) != 0) break;
        pthread_detach(thread);
        started++;
    }
    if (workers > started) workers = started;
    atomic_store(&num_workers, workers);
    pthread_mutex_unlock(&owner);
    return workers + 1;
}

// What this library was compiled for.
const char *octavo_instructions(void) {
#if defined(__AMX_INT8__) && defined(__AVX512VNNI__)
    return "avx512-vnni + amx-int8";
#elif defined(__AVX512VNNI__)
    return "avx512-vnni";
#elif defined(__AVX512F__)
    return "avx512";
#elif defined(__AVXVNNI__)
    return "avx2 + avx-vnni";
#elif defined(__AVX2__)
    return "avx2";
#elif defined(__ARM_NEON)
    return "neon";
#else
    return "portable";
#endif
}
