// Memory that a thread keeps between calls: a fresh allocation of some megabytes costs more than many a product.
#ifndef OCTAVO_SCRATCH_H
#define OCTAVO_SCRATCH_H

#include <stdint.h>

enum { SCRATCH_ENCODED, SCRATCH_CODES, SCRATCH_ATTENTION, SCRATCH_TILES, SCRATCH_PARTIALS, SCRATCH_LAYER, SCRATCH_GATES,
       SCRATCH_BLOCKS, SCRATCH_KINDS };

// At least `bytes` bytes at a multiple of 64, with any content, valid until this thread asks for the same kind again.
// NULL if memory ran out.
void *octavo_scratch(int kind, int64_t bytes);

#endif
