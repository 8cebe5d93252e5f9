/* Products of rows with matrices that were packed once.
 *
 * A matrix is cut into panels of PANEL outputs. A panel lies as [in][PANEL]: what one step along
 * `in` needs is next to each other, and a panel is read from its begin to its end. Where there are
 * instructions for bfloat16 pairs, bfloat16 lies as [in / 2][PANEL][2], in words of two numbers,
 * which AMX multiplies in its own tiles (tiles.c).
 *
 * A tile holds the sums of a few rows and one or two panels in registers. While a panel is
 * multiplied with many rows, the next one is asked for: without that, its first tile would wait for
 * the memory. Few rows read at the memory's speed anyway. Each sum is taken in the order of `in`,
 * whatever the tile: a row's result does not depend on the rows beside it.
 *
 * Vectors multiply words in pairs, with an input rounded to bfloat16, where the CPU does that as fast
 * as it multiplies floats. Elsewhere they widen words in registers, and the input stays float32. */
#define _GNU_SOURCE
#include "products.h"

#include <errno.h>
#include <time.h>

#include "int8.h"
#include "team.h"
#include "tiles.h"

/* Registers: 32 with AVX-512, 16 elsewhere. A tall tile has one panel, a wide one two. */
#define TALL (LANES == 16 ? 12 : 6)
#define WIDE (TALL / 2)
/* Depth of one pass over a panel, so that its part stays in the second-level cache. */
#define DEPTH 1024

/* Panels lie `panel_stride` elements apart, x's rows `x_stride`, and its numbers `x_step`. */
struct operands {
    const void *x, *w;
    int64_t x_stride, x_step, w_stride, panel_stride, depth;
    const char *later;  /* a panel that comes later, to be asked for; or NULL */
    const float *start; /* what the sums begin with; its rows are `start_stride` apart */
    int64_t start_stride;
    float *y;
    int64_t y_stride;
};

INLINE void tile(const struct operands o, const int rows, const int panels, const enum kind kind) {
    vf sums[12][4];
    UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int v = 0; v < 2 * panels; v++)
            sums[r][v] = load(o.start + r * o.start_stride + v * LANES);
    const float *x = o.x;
    const int64_t element = kind == HALVES ? 2 : 4;
    for (int64_t k = 0; k < o.depth; k++, x += o.x_step) {
        vf b[4];
        if (panels == 1 && o.later)
            UNROLL for (int64_t byte = 0; byte < PANEL * element; byte += 64)
                __builtin_prefetch(o.later + k * PANEL * element + byte, 0, 2);
        UNROLL for (int v = 0; v < 2 * panels; v++) {
            int64_t at = (v / 2) * o.panel_stride + k * o.w_stride + (v % 2) * LANES;
            b[v] = kind == HALVES ? load_bf16((const uint16_t *)o.w + at)
                                   : load((const float *)o.w + at); /* words: 32 bits each */
        }
        if (kind == WORDS) {
            UNROLL for (int half = 0; half < 2; half++)
                UNROLL for (int r = 0; r < rows; r++) {
                    vf a = all(x[r * o.x_stride + half]);
                    UNROLL for (int v = 0; v < 2 * panels; v++)
                        sums[r][v] += a * (half ? high_half(b[v]) : low_half(b[v]));
                }
            continue;
        }
        UNROLL for (int r = 0; r < rows; r++) {
            vf a = all(x[r * o.x_stride]);
            UNROLL for (int v = 0; v < 2 * panels; v++) {
#if PAIRS
                if (kind == PAIRED) {
                    sums[r][v] = _mm512_dpbf16_ps(sums[r][v], (__m512bh)a, (__m512bh)b[v]);
                    continue;
                }
#endif
                sums[r][v] += a * b[v];
            }
        }
    }
    UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int v = 0; v < 2 * panels; v++)
            store(o.y + r * o.y_stride + v * LANES, sums[r][v]);
}

INLINE void tall(const struct operands o, int64_t rows, const enum kind kind) {
    switch (rows) {
        case 1: tile(o, 1, 1, kind); break;
        case 2: tile(o, 2, 1, kind); break;
        case 3: tile(o, 3, 1, kind); break;
        case 4: tile(o, 4, 1, kind); break;
        case 5: tile(o, 5, 1, kind); break;
        case 6: tile(o, 6, 1, kind); break;
#if LANES == 16
        case 7: tile(o, 7, 1, kind); break;
        case 8: tile(o, 8, 1, kind); break;
        case 9: tile(o, 9, 1, kind); break;
        case 10: tile(o, 10, 1, kind); break;
        case 11: tile(o, 11, 1, kind); break;
        case 12: tile(o, 12, 1, kind); break;
#endif
    }
}

INLINE void wide(const struct operands o, int64_t rows, const enum kind kind) {
    switch (rows) {
        case 1: tile(o, 1, 2, kind); break;
        case 2: tile(o, 2, 2, kind); break;
        case 3: tile(o, 3, 2, kind); break;
#if LANES == 16
        case 4: tile(o, 4, 2, kind); break;
        case 5: tile(o, 5, 2, kind); break;
        case 6: tile(o, 6, 2, kind); break;
#endif
    }
}

/* All rows, TALL at a time and the rest evenly: 13 rows are 7 and 6. */
INLINE void tall_tiles(struct operands o, int64_t rows, const enum kind kind) {
    int64_t tiles = (rows + TALL - 1) / TALL;
    const char *x = o.x, *later = o.later;
    const float *start = o.start;
    float *y = o.y;
    for (int64_t done = 0, index = 0; index < tiles; index++) {
        int64_t next = rows * (index + 1) / tiles;
        o.x = x + done * o.x_stride * 4;
        o.start = start + done * o.start_stride;
        o.y = y + done * o.y_stride;
        o.later = index == (tiles > 1) ? later : NULL;
        tall(o, next - done, kind);
        done = next;
    }
}

/* Strides that the compiler knows need no register, of which the x86 has few. */
static void rows_of_a_panel(struct operands o, int64_t rows, const enum kind kind) {
    o.x_step = 1;
    o.w_stride = PANEL;
    if (kind == FLOATS) tall_tiles(o, rows, FLOATS);
    if (kind == HALVES) tall_tiles(o, rows, HALVES);
    if (PAIRS && kind == PAIRED) tall_tiles(o, rows, PAIRED);
    o.x_step = 2;
    if (PAIRS && kind == WORDS) tall_tiles(o, rows, WORDS);
}

static void columns_of_a_panel(struct operands o, int64_t rows, const enum kind kind) {
    o.x_stride = 1;
    o.w_stride = PANEL;
    if (kind == FLOATS) tall_tiles(o, rows, FLOATS);
    if (PAIRS && kind == PAIRED) tall_tiles(o, rows, PAIRED);
}

static void rows_in_the_pool(struct operands o, int64_t rows, const enum kind kind) {
    o.x_step = 1;
    if (kind == FLOATS) tall_tiles(o, rows, FLOATS);
    if (kind == HALVES) tall_tiles(o, rows, HALVES);
}

static void two_panels(struct operands o, int64_t rows, const enum kind kind) {
    o.x_step = 1;
    o.w_stride = PANEL;
    if (kind == FLOATS) wide(o, rows, FLOATS);
    if (kind == HALVES) wide(o, rows, HALVES);
    if (PAIRS && kind == PAIRED) wide(o, rows, PAIRED);
    o.x_step = 2;
    if (PAIRS && kind == WORDS) wide(o, rows, WORDS);
}

/* What the sums of 8-bit products are added to. */
static void begin(const struct matrix *w, int64_t rows, int64_t from, int64_t to, enum start start,
                  float *y, int64_t y_stride) {
    if (start == ADD) return;
    int64_t first = from * PANEL, last = to * PANEL < w->out ? to * PANEL : w->out;
    for (int64_t r = 0; r < rows; r++) {
        float *row = y + r * y_stride + first;
        if (w->bias) memcpy(row, w->bias + first, (size_t)(last - first) * 4);
        else memset(row, 0, (size_t)(last - first) * 4);
    }
}

/* The last panel may have fewer columns than PANEL: its sums go through a buffer. */
static void ragged_panel(struct operands o, int64_t rows, int64_t columns, enum kind kind) {
    float buffer[TALL * PANEL];
    struct operands part = o;
    part.start = part.y = buffer;
    part.start_stride = part.y_stride = PANEL;
    for (int64_t done = 0; done < rows; done += TALL) {
        int64_t count = rows - done < TALL ? rows - done : TALL;
        memset(buffer, 0, sizeof buffer);
        for (int64_t r = 0; r < count; r++)
            memcpy(buffer + r * PANEL, o.start + (done + r) * o.start_stride, (size_t)columns * 4);
        part.x = (const char *)o.x + done * o.x_stride * 4;
        rows_of_a_panel(part, count, kind);
        for (int64_t r = 0; r < count; r++)
            memcpy(o.y + (done + r) * o.y_stride, buffer + r * PANEL, (size_t)columns * 4);
    }
}

#if TILES
/* A panel, of which `left` columns are the matrix's, in the registers of AMX. */
static void in_tiles(const struct operands *o, int64_t rows, int64_t left, int64_t *set) {
    const struct tiled t = {
        .x = o->x,
        .x_stride = o->x_stride * 4,
        .w = o->w,
        .later = o->later,
        .steps = o->depth / (PADDING / 2),
        .columns = left < PANEL ? left : PANEL,
        .start = o->start,
        .start_stride = o->start_stride,
        .y = o->y,
        .y_stride = o->y_stride,
    };
    pairs_in_tiles(&t, rows, set);
}
#endif

static const float zeros[2 * PANEL]; /* of a wide tile */

void product(const struct matrix *w, const struct rows *rows, int64_t from, int64_t to,
             int64_t then, enum start start, float *y, int64_t y_stride) {
    if (w->type == INT8) {
        begin(w, rows->count, from, to, start, y, y_stride);
        int8_product(w, rows, from, to, then, y, y_stride);
        return;
    }
    int pairs = reads_pairs(w), words = has_words(w->type);
    enum kind kind = pairs ? PAIRED : words ? WORDS : w->type == BF16 ? HALVES : FLOATS;
    int64_t depth = words ? padded(w->in) / 2 : w->in; /* elements of a column of a panel */
    int64_t element = kind == HALVES ? 2 : 4, x_element = kind == WORDS ? 8 : 4;
    const char *x = pairs ? (const char *)rows->narrow : (const char *)rows->x;
    const int tiled = TILES && pairs;
#if TILES
    int64_t set = 0;
#endif
    for (int64_t panel = from; panel < to;) {
        int64_t left = w->out - panel * PANEL;
        int both = !tiled && rows->count <= WIDE && to - panel >= 2 && left >= 2 * PANEL;
        int64_t next = panel + 1 + both, later = next < to ? next : then;
        for (int64_t k = 0; k < depth; k += DEPTH) {
            struct operands o = {
                .x = x + k * x_element,
                .x_stride = pairs ? rows->narrow_stride / 2 : rows->stride,
                .w = (const char *)w->packed + (panel * depth + k) * PANEL * element,
                .panel_stride = depth * PANEL,
                .later = later < panels_of(w->out)
                             ? (const char *)w->packed + (later * depth + k) * PANEL * element
                             : NULL,
                .depth = depth - k < DEPTH ? depth - k : DEPTH,
                .start = y + panel * PANEL,
                .start_stride = y_stride,
                .y = y + panel * PANEL,
                .y_stride = y_stride,
            };
            if (start == BIAS && k == 0) {
                o.start = w->bias ? w->bias + panel * PANEL : zeros;
                o.start_stride = 0;
            }
#if TILES
            if (tiled) {
                in_tiles(&o, rows->count, left, &set);
                continue;
            }
#endif
            if (both) two_panels(o, rows->count, kind);
            else if (left < PANEL) ragged_panel(o, rows->count, left, kind);
            else rows_of_a_panel(o, rows->count, kind);
        }
        panel = next;
    }
#if TILES
    release_tiles(&set);
#endif
}

/* --- pairs or floats -------------------------------------------------------------------------- */

int multiplies_pairs = PAIRS;

#if PAIRS
/* Seconds of a few tiles whose operands lie in the first cache. The compiler must not make a copy of
 * the loops for these sizes: it would measure other code than products run. */
static double tiles_s(const struct operands *o, enum kind kind) {
    volatile int64_t rows = TALL;
    volatile enum kind as = kind;
    struct timespec begin, end;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    for (int repeat = 0; repeat < 16; repeat++) rows_of_a_panel(*o, rows, as);
    clock_gettime(CLOCK_MONOTONIC, &end);
    return (double)(end.tv_sec - begin.tv_sec) + 1e-9 * (double)(end.tv_nsec - begin.tv_nsec);
}

/* CPUs differ by a factor of two (designs/0023). The least of many readings counts, because other
 * work on a core only makes one slower. Pairs are half of the input's bytes, so they are taken where
 * both take the same time. */
static int pairs_are_fast(void) {
    enum { IN_WORDS = 32, READINGS = 200 };
    static float x[TALL * 2 * IN_WORDS], y[TALL * PANEL], w[IN_WORDS * PANEL];
    struct operands words = {.x = x, .x_stride = 2 * IN_WORDS, .w = w, .depth = IN_WORDS,
                             .start = zeros, .y = y, .y_stride = PANEL};
    double widened_s = 1, pairs_s = 1;
    for (int reading = 0; reading < READINGS; reading++) {
        double widened = tiles_s(&words, WORDS), pairs = tiles_s(&words, PAIRED);
        if (widened < widened_s) widened_s = widened;
        if (pairs < pairs_s) pairs_s = pairs;
    }
    return pairs_s < 1.05 * widened_s;
}
#endif

int argosy_pairs(int pairs) {
#if PAIRS
    static int measured = -1;
    if (pairs < 0 && measured < 0) measured = pairs_are_fast();
    multiplies_pairs = pairs < 0 ? measured : pairs;
#else
    (void)pairs;
#endif
    return multiplies_pairs;
}

/* --- attention -------------------------------------------------------------------------------- */

void score(int64_t rows, int64_t depth, const float *x, int64_t x_stride, const float *w,
           enum kind kind, float *y, int64_t y_stride) {
    struct operands o = {.x = x, .x_stride = x_stride, .w = w, .depth = depth,
                         .start = zeros, .y = y, .y_stride = y_stride};
    rows_of_a_panel(o, rows, kind);
}

void add_columns(int64_t columns, int64_t depth, const float *x, int64_t x_step, const float *w,
                 enum kind kind, float *y) {
    struct operands o = {.x = x, .x_step = x_step, .w = w, .depth = depth, .start = y,
                         .start_stride = PANEL, .y = y, .y_stride = PANEL};
    columns_of_a_panel(o, columns, kind);
}

void add_rows(int64_t rows, int64_t depth, const float *x, int64_t x_stride, const void *w,
              int64_t w_stride, enum kind kind, float *y, int64_t y_stride) {
    struct operands o = {.x = x, .x_stride = x_stride, .w = w, .w_stride = w_stride,
                         .depth = depth, .start = y, .start_stride = y_stride, .y = y,
                         .y_stride = y_stride};
    rows_in_the_pool(o, rows, kind);
}

void narrow_row(uint16_t *to, struct group *groups, const float *from, int64_t count,
                int64_t type) {
    if (type == INT8) {
        int8_row(to, groups, from, count);
        return;
    }
    for (int64_t k = 0; k < count; k++) to[k] = narrow(from[k]);
    for (int64_t k = count; k < padded(count); k++) to[k] = 0;
}

int64_t argosy_packed_bytes(int64_t out, int64_t in, int64_t type) {
    if (type == INT8) return int8_packed_bytes(out, in);
    int64_t depth = has_words(type) ? padded(in) : in;
    return panels_of(out) * PANEL * depth * (type == BF16 ? 2 : 4);
}

int argosy_pack(void *packed, const void *weight, int64_t out, int64_t in, int64_t type) {
    if (type == INT8) {
        int8_pack(packed, weight, out, in);
        return 0;
    }
    if (type != F32 && type != BF16) return EINVAL;
    int group = has_words(type) ? 2 : 1; /* inputs that lie together */
    int64_t depth = group == 2 ? padded(in) : in;
    for (int64_t panel = 0; panel < panels_of(out); panel++)
        for (int64_t c = 0; c < PANEL; c++) {
            int64_t row = panel * PANEL + c;
            for (int64_t k = 0; k < depth; k++) {
                int64_t to = panel * PANEL * depth + (k / group * PANEL + c) * group + k % group;
                int inside = row < out && k < in;
                if (type == F32)
                    ((float *)packed)[to] = inside ? ((const float *)weight)[row * in + k] : 0;
                else
                    ((uint16_t *)packed)[to] =
                        inside ? ((const uint16_t *)weight)[row * in + k] : 0;
            }
        }
    return 0;
}
