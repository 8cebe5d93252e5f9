/* Products of rows with packed matrices; see products.c. */
#ifndef ARGOSY_PRODUCTS_H
#define ARGOSY_PRODUCTS_H

#include "native.h"
#include "vectors.h"

/* Columns of a panel: two vectors. */
#define PANEL (2 * LANES)

enum start { BIAS, ADD }; /* what a product is added to: the bias, if there is one, or y itself */
/* How a product reads its panels: float32; bfloat16, widened; words of two bfloat16, widened; or
 * such words as they are, as its input is (the last two only where `PAIRS`). */
enum kind { FLOATS, HALVES, WORDS, PAIRED };

INLINE int64_t panels_of(int64_t columns) { return (columns + PANEL - 1) / PANEL; }
/* Inputs are padded to a multiple of this, so that pairs, or tiles, never read past a row. */
#define PADDING (TILES ? 32 : 2)
INLINE int64_t padded(int64_t in) { return (in + PADDING - 1) / PADDING * PADDING; }

/* Inputs whose 8-bit codes share a scale. */
#define GROUP 64
INLINE int64_t groups_of(int64_t in) { return (in + GROUP - 1) / GROUP; }

/* Of a group of a row's codes: what they are multiples of, and what their sums begin with. */
struct group {
    float scale;
    int32_t begin;
};

/* Whether vectors multiply bfloat16 weights, and bfloat16 of a prompt's attention, in pairs; see
 * `argosy_pairs`. */
extern int multiplies_pairs;

/* Whether matrices of this type lie in words of two bfloat16. */
INLINE int has_words(int64_t type) { return (PAIRS || TILES) && type == BF16; }
/* Whether products with this matrix read their input as bfloat16 pairs. They do where its size is
 * odd: pairs are padded with zero, and behind a row of floats may lie anything. */
INLINE int reads_pairs(const struct matrix *w) {
    return has_words(w->type) && (TILES || multiplies_pairs || w->in % 2);
}
/* Whether they read another form of it than float32. */
INLINE int reads_narrow(const struct matrix *w) { return w->type == INT8 || reads_pairs(w); }

/* Input rows of a product: float32, and the same rows narrowed where `reads_narrow`. */
struct rows {
    const float *x;
    const uint16_t *narrow;       /* bfloat16, or INT8's codes, which take at most as much */
    const struct group *groups;   /* of the codes */
    int64_t count, stride;        /* of x */
    int64_t narrow_stride, group_stride;
};

/* Narrow one row of `count` numbers into `to`, padded with zero, as products of `type` read it. */
void narrow_row(uint16_t *to, struct group *groups, const float *from, int64_t count,
                int64_t type);

/* Columns of panels [from, to) of y = start + rows · wᵀ; y's rows are `y_stride` apart. `then` is the
 * panel that this thread takes next, as far as it is known. */
void product(const struct matrix *w, const struct rows *rows, int64_t from, int64_t to,
             int64_t then, enum start start, float *y, int64_t y_stride);

/* Attention's products, each with PANEL columns of w and of y. x, w and y are float32, or x and w
 * words of 32 bits that hold two bfloat16; strides count them.
 *
 * y[r][c] = Σ_k x[r][k] · w[k][c] */
void score(int64_t rows, int64_t depth, const float *x, int64_t x_stride, const float *w,
           enum kind kind, float *y, int64_t y_stride);
/* y[r][c] += Σ_k x[k][r] · w[k][c]; rows of x are `x_step` apart, those of y PANEL. */
void add_columns(int64_t columns, int64_t depth, const float *x, int64_t x_step, const float *w,
                 enum kind kind, float *y);
/* y[r][c] += Σ_k x[r][k] · w[k][c]; rows of w are `w_stride` elements apart. */
void add_rows(int64_t rows, int64_t depth, const float *x, int64_t x_stride, const void *w,
              int64_t w_stride, enum kind kind, float *y, int64_t y_stride);

#endif
