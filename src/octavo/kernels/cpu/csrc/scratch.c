#include "scratch.h"

#include <pthread.h>
#include <stdlib.h>

typedef struct {
    void *memory[SCRATCH_KINDS];
    int64_t bytes[SCRATCH_KINDS];
} scratch;

static _Thread_local scratch *mine = NULL;
static pthread_key_t key; // has `mine` released when the thread ends
static pthread_once_t key_once = PTHREAD_ONCE_INIT;
static int key_failed = 0;

static void release(void *ended) {
    scratch *kept = ended;
    for (int kind = 0; kind < SCRATCH_KINDS; kind++) free(kept->memory[kind]);
    free(kept);
}

static void create_key(void) { key_failed = pthread_key_create(&key, release); }

static scratch *create_mine(void) {
    pthread_once(&key_once, create_key);
    scratch *fresh = key_failed ? NULL : calloc(1, sizeof *fresh);
    if (fresh != NULL && pthread_setspecific(key, fresh) != 0) {
        free(fresh);
        return NULL;
    }
    return fresh;
}

void *octavo_scratch(int kind, int64_t bytes) {
    if (mine == NULL && (mine = create_mine()) == NULL) return NULL;
    if (bytes > mine->bytes[kind]) {
        free(mine->memory[kind]);
        mine->bytes[kind] = (bytes + 4095) / 4096 * 4096;
        mine->memory[kind] = aligned_alloc(64, (size_t)mine->bytes[kind]);
        if (mine->memory[kind] == NULL) mine->bytes[kind] = 0;
    }
    return mine->memory[kind];
}
