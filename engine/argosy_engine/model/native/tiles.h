/* Products in the tile registers of AMX; see tiles.c. Only where `TILES`. */
#ifndef ARGOSY_TILES_H
#define ARGOSY_TILES_H

#include "products.h"

/* Rows, and the columns of one panel. Rows of `x` are `x_stride` bytes apart. */
struct tiled {
    const void *x; /* bfloat16, or codes */
    int64_t x_stride;
    const struct group *groups; /* of codes */
    int64_t group_stride;
    const char *w;     /* the panel, from `x`'s first input on */
    const char *later; /* a panel that comes later, to be asked for; or NULL */
    int64_t steps;     /* of 32 bfloat16, or groups of codes */
    int64_t columns;   /* of y; the last panel of a matrix may have fewer than PANEL */
    const float *start; /* what sums of bfloat16 begin with; those of codes begin with y */
    int64_t start_stride;
    float *y;
    int64_t y_stride;
};

/* `set` is 0 before a thread's first product, and belongs to its tile registers until
 * `release_tiles`: registers in use would be saved at each switch to another thread. */
void pairs_in_tiles(const struct tiled *t, int64_t rows, int64_t *set);
void codes_in_tiles(const struct tiled *t, int64_t rows, int64_t *set);
void release_tiles(int64_t *set);

#endif
