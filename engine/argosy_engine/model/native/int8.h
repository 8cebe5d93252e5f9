/* Products with matrices of 8-bit integers; see int8.c. */
#ifndef ARGOSY_INT8_H
#define ARGOSY_INT8_H

#include "products.h"

/* As the functions without `int8_` in products.h; a row is put into codes once for all panels. */
void int8_product(const struct matrix *w, const struct rows *rows, int64_t from, int64_t to,
                  int64_t then, float *y, int64_t y_stride);
void int8_row(uint16_t *to, struct group *groups, const float *from, int64_t count);

int64_t int8_packed_bytes(int64_t out, int64_t in);
/* `weight` [out, in] is float32. */
void int8_pack(void *packed, const float *weight, int64_t out, int64_t in);

#endif
