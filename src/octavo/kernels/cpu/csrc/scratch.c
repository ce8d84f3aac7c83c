#include "scratch.h"

#include <stdlib.h>

static _Thread_local struct {
    void *memory;
    int64_t bytes;
} kept[SCRATCH_KINDS];

void *octavo_scratch(int kind, int64_t bytes) {
    if (bytes > kept[kind].bytes) {
        free(kept[kind].memory);
        kept[kind].bytes = (bytes + 4095) / 4096 * 4096;
        kept[kind].memory = aligned_alloc(64, (size_t)kept[kind].bytes);
        if (kept[kind].memory == NULL) kept[kind].bytes = 0;
    }
    return kept[kind].memory;
}
