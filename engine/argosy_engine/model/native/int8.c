/* Products of rows with matrices of 8-bit integers.
 *
 * Inputs come in groups of GROUP. A group of a row, of weights as of activations, is stored as
 * codes from -127 to 127 and the float32 that they are multiples of. Codes of a group are multiplied
 * and added as integers, which is exact; the sums of the groups are scaled and added in float32, in
 * the order of the groups: a row's result does not depend on the rows beside it.
 *
 * A panel lies group by group: PANEL scales, then the codes as [step][PANEL][inputs of a step]. A
 * step is 32 bits of a row's codes: four bytes where the CPU multiplies bytes (VNNI), else two
 * 16-bit numbers. VNNI multiplies unsigned by signed bytes, so weights are stored 128 higher there,
 * and a row's sum starts at -128 times the sum of its codes. AMX multiplies signed bytes, in tiles
 * that are a group deep (tiles.c). */
#include "int8.h"

#include "tiles.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#if TILES
#define STEP 4 /* inputs of a step */
#define HIGHER 0
typedef int8_t code;
#elif defined(__AVX512VNNI__)
#define STEP 4
#define HIGHER 128
typedef int8_t code;
#else
#define STEP 2
#define HIGHER 0
typedef int16_t code;
#endif

/* Sums of integers and of floats share the registers: half as many rows as elsewhere. */
#define TALL (LANES == 16 ? 6 : 3)
#define WIDE (TALL / 2)

typedef int8_t bytes __attribute__((vector_size(LANES)));
typedef int8_t half_bytes __attribute__((vector_size(LANES * 2)));
typedef int16_t shorts __attribute__((vector_size(LANES * 4)));

INLINE int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* Steps of a group of `inputs`; tiles multiply whole groups. */
INLINE int64_t steps_of(int64_t inputs) {
    int64_t whole = TILES ? GROUP : STEP;
    return (inputs + whole - 1) / whole * (whole / STEP);
}

static int64_t panel_bytes(int64_t in) {
    return groups_of(in) * PANEL * 4 + steps_of(in) * STEP * PANEL;
}

#if TILES
void int8_product(const struct matrix *w, const struct rows *rows, int64_t from, int64_t to,
                  int64_t then, float *y, int64_t y_stride) {
    int64_t bytes_of_one = panel_bytes(w->in), set = 0;
    for (int64_t panel = from; panel < to; panel++) {
        int64_t later = panel + 1 < to ? panel + 1 : then;
        const char *packed = w->packed;
        const struct tiled t = {
            .x = rows->narrow,
            .x_stride = rows->narrow_stride * 2,
            .groups = rows->groups,
            .group_stride = rows->group_stride,
            .w = packed + panel * bytes_of_one,
            .later = later < panels_of(w->out) ? packed + later * bytes_of_one : NULL,
            .steps = groups_of(w->in),
            .columns = least(w->out - panel * PANEL, PANEL),
            .y = y + panel * PANEL,
            .y_stride = y_stride,
        };
        codes_in_tiles(&t, rows->count, &set);
    }
    release_tiles(&set);
}
#else

/* `STEP` inputs of LANES outputs, as `add_products` reads them. */
INLINE vi load_weights(const char *at) {
    vi value;
#if STEP == 4
    memcpy(&value, at, sizeof value);
#else
    half_bytes narrow_ones;
    memcpy(&narrow_ones, at, sizeof narrow_ones);
    value = (vi)__builtin_convertvector(narrow_ones, shorts);
#endif
    return value;
}

INLINE vi add_products(vi sums, vi weights, vi codes) {
#if STEP == 4
    return (vi)_mm512_dpbusd_epi32((__m512i)sums, (__m512i)weights, (__m512i)codes);
#elif defined(__AVX512BW__)
    return sums + (vi)_mm512_madd_epi16((__m512i)weights, (__m512i)codes);
#elif defined(__AVX2__)
    return sums + (vi)_mm256_madd_epi16((__m256i)weights, (__m256i)codes);
#elif defined(__x86_64__)
    return sums + (vi)_mm_madd_epi16((__m128i)weights, (__m128i)codes);
#else
    return sums + (weights >> 16) * (codes >> 16) +
           ((vi)((vu)weights << 16) >> 16) * ((vi)((vu)codes << 16) >> 16);
#endif
}

/* Rows' codes are `stride` bytes apart, panels `panel_bytes`. */
struct operands {
    const char *codes, *w;
    const struct group *groups;
    int64_t stride, group_stride, panel_bytes, in;
    int64_t later; /* bytes from `w` to a panel that comes later, to be asked for; or 0 */
    float *y;
    int64_t y_stride;
};

INLINE void tile(const struct operands o, const int rows, const int panels) {
    vf sums[6][4];
    const char *w = o.w;
    UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int v = 0; v < 2 * panels; v++)
            sums[r][v] = load(o.y + r * o.y_stride + v * LANES);
    for (int64_t done = 0, g = 0; done < o.in; done += GROUP, g++) {
        int64_t steps = steps_of(least(GROUP, o.in - done));
        const char *x = o.codes + done * (int64_t)sizeof(code), *at = w + PANEL * 4;
        vi part[6][4];
        UNROLL for (int r = 0; r < rows; r++)
            UNROLL for (int v = 0; v < 2 * panels; v++)
                part[r][v] = o.groups[r * o.group_stride + g].begin - (vi){0};
        for (int64_t k = 0; k < steps; k++) {
            vi b[4];
            if (panels == 1 && o.later)
                UNROLL for (int64_t byte = 0; byte < PANEL * STEP; byte += 64)
                    __builtin_prefetch(at + o.later + k * PANEL * STEP + byte, 0, 2);
            UNROLL for (int v = 0; v < 2 * panels; v++)
                b[v] = load_weights(at + (v / 2) * o.panel_bytes +
                                    (k * PANEL + (v % 2) * LANES) * STEP);
            UNROLL for (int r = 0; r < rows; r++) {
                int32_t bits;
                memcpy(&bits, x + r * o.stride + k * 4, 4);
                UNROLL for (int v = 0; v < 2 * panels; v++)
                    part[r][v] = add_products(part[r][v], b[v], bits - (vi){0});
            }
        }
        UNROLL for (int v = 0; v < 2 * panels; v++) {
            vf scale = load((const float *)(w + (v / 2) * o.panel_bytes) + (v % 2) * LANES);
            UNROLL for (int r = 0; r < rows; r++)
                sums[r][v] += __builtin_convertvector(part[r][v], vf) *
                              (scale * o.groups[r * o.group_stride + g].scale);
        }
        w = at + steps * PANEL * STEP;
    }
    UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int v = 0; v < 2 * panels; v++)
            store(o.y + r * o.y_stride + v * LANES, sums[r][v]);
}

static void tall(const struct operands o, int64_t rows) {
    switch (rows) {
        case 1: tile(o, 1, 1); break;
        case 2: tile(o, 2, 1); break;
        case 3: tile(o, 3, 1); break;
#if LANES == 16
        case 4: tile(o, 4, 1); break;
        case 5: tile(o, 5, 1); break;
        case 6: tile(o, 6, 1); break;
#endif
    }
}

static void wide(const struct operands o, int64_t rows) {
    switch (rows) {
        case 1: tile(o, 1, 2); break;
#if LANES == 16
        case 2: tile(o, 2, 2); break;
        case 3: tile(o, 3, 2); break;
#endif
    }
}

/* `columns` of one panel, for all rows; a ragged panel's sums go through a buffer. */
static void one_panel(struct operands o, int64_t rows, int64_t columns) {
    float buffer[6 * PANEL] = {0}, *y = o.y;
    const char *codes = o.codes;
    const struct group *groups = o.groups;
    int64_t y_stride = o.y_stride, later = o.later, tiles = (rows + TALL - 1) / TALL;
    for (int64_t done = 0, index = 0; index < tiles; index++) {
        int64_t next = rows * (index + 1) / tiles;
        o.codes = codes + done * o.stride;
        o.groups = groups + done * o.group_stride;
        o.y = y + done * y_stride;
        o.later = index == (tiles > 1) ? later : 0;
        if (columns == PANEL) {
            tall(o, next - done);
        } else {
            for (int64_t r = 0; r < next - done; r++)
                memcpy(buffer + r * PANEL, o.y + r * y_stride, (size_t)columns * 4);
            o.y = buffer;
            o.y_stride = PANEL;
            tall(o, next - done);
            for (int64_t r = 0; r < next - done; r++)
                memcpy(y + (done + r) * y_stride, buffer + r * PANEL, (size_t)columns * 4);
        }
        done = next;
    }
}

void int8_product(const struct matrix *w, const struct rows *rows, int64_t from, int64_t to,
                  int64_t then, float *y, int64_t y_stride) {
    int64_t bytes_of_one = panel_bytes(w->in);
    for (int64_t panel = from; panel < to;) {
        int64_t left = w->out - panel * PANEL;
        int both = rows->count <= WIDE && to - panel >= 2 && left >= 2 * PANEL;
        int64_t next = panel + 1 + both, later = next < to ? next : then;
        struct operands o = {
            .codes = (const char *)rows->narrow,
            .w = (const char *)w->packed + panel * bytes_of_one,
            .groups = rows->groups,
            .stride = rows->narrow_stride * 2,
            .group_stride = rows->group_stride,
            .panel_bytes = bytes_of_one,
            .in = w->in,
            .later = later < panels_of(w->out) ? (later - panel) * bytes_of_one : 0,
            .y = y + panel * PANEL,
            .y_stride = y_stride,
        };
        if (both) wide(o, rows->count);
        else one_panel(o, rows->count, least(left, PANEL));
        panel = next;
    }
}
#endif

/* Codes of `count` numbers, at most GROUP, and what they are multiples of. It is NaN if one of the
 * numbers is not finite. */
static float encode(int8_t *codes, const float *from, int64_t count) {
    const vf shift = all(12582912.0f); /* 1.5 · 2^23: adding it rounds to an integer */
    _Alignas(64) float x[GROUP] = {0};
    memcpy(x, from, (size_t)count * 4);
    vi most = {0}; /* absolute values are ordered as their bits are, NaN last */
    for (int64_t k = 0; k < GROUP; k += LANES) {
        vi bits = (vi)load(x + k) & 0x7fffffff, more = bits > most;
        most = (bits & more) | (most & ~more);
    }
    int32_t top = 0;
    for (int lane = 0; lane < LANES; lane++) top = most[lane] > top ? most[lane] : top;
    float largest;
    memcpy(&largest, &top, 4);
    /* Numbers too small for the quotient count as zero; those that are none have no codes. */
    int some = largest > 1e-30f && top < 0x7f800000;
    float times = some ? 127.0f / largest : 0;
    for (int64_t k = 0; k < GROUP; k += LANES) {
        vi rounded = some ? (vi)(load(x + k) * times + shift) - (vi)shift : (vi){0};
        bytes low = __builtin_convertvector(rounded, bytes);
        memcpy(codes + k, &low, sizeof low);
    }
    if (top >= 0x7f800000) return largest - largest;
    return some ? largest / 127.0f : 0;
}

void int8_row(uint16_t *to, struct group *groups, const float *from, int64_t count) {
    code *row = (code *)to;
    for (int64_t done = 0, g = 0; done < count; done += GROUP, g++) {
        int64_t inputs = least(GROUP, count - done), sum = 0;
        _Alignas(64) int8_t codes[GROUP];
        groups[g].scale = encode(codes, from + done, inputs);
        for (int64_t k = 0; k < steps_of(inputs) * STEP; k++) {
            row[done + k] = codes[k];
            sum += codes[k];
        }
        groups[g].begin = (int32_t)(-HIGHER * sum);
    }
}

int64_t int8_packed_bytes(int64_t out, int64_t in) { return panels_of(out) * panel_bytes(in); }

void int8_pack(void *packed, const float *weight, int64_t out, int64_t in) {
    memset(packed, HIGHER, (size_t)int8_packed_bytes(out, in));
    for (int64_t row = 0; row < panels_of(out) * PANEL; row++) {
        char *group = (char *)packed + row / PANEL * panel_bytes(in);
        for (int64_t done = 0; done < in; done += GROUP) {
            int64_t inputs = least(GROUP, in - done), column = row % PANEL;
            _Alignas(64) int8_t codes[GROUP];
            float scale = 0;
            if (row < out) {
                scale = encode(codes, weight + row * in + done, inputs);
                char *at = group + PANEL * 4;
                for (int64_t k = 0; k < inputs; k++)
                    at[(k / STEP * PANEL + column) * STEP + k % STEP] = (char)(codes[k] + HIGHER);
            }
            memcpy(group + column * 4, &scale, 4);
            group += PANEL * 4 + steps_of(inputs) * STEP * PANEL;
        }
    }
}
