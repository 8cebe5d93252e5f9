/* Products in the tile registers of AMX: up to 32 rows and one panel at a time.
 *
 * A tile is 16 rows of 64 bytes. Of the eight, four hold the sums of a block: its upper and lower
 * 16 rows, and the left and right half of the panel. One instruction multiplies 64 bytes of each of
 * 16 rows, 32 bfloat16 or a group of codes, with what 16 outputs have for these, and adds that to
 * the sums. In a panel, what 16 outputs have is 16 rows of a tile, 128 bytes apart.
 *
 * A row is computed with tiles however few the rows are, so that its sums are the same bits alone
 * and beside others. What CPUID says about tiles is not read: some virtual machines leave it empty,
 * and palette 1 works there. */
#define _GNU_SOURCE
#include "tiles.h"

#include <errno.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined(__AMX_TILE__)
#define REQUEST_PERMISSION 0x1023 /* ARCH_REQ_XCOMP_PERM, since Linux 5.16 */
#define TILE_DATA 18              /* its number among the states of XSAVE */

int argosy_permit(void) {
    return syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) ? errno : 0;
}
#else
int argosy_permit(void) { return 0; }
#endif

#if TILES
#define TALL 16   /* rows of a tile */
#define BLOCK 32  /* rows of a block */
#define DEEP 64   /* bytes of a row that one instruction multiplies */
#define APART 128 /* bytes from a tile's row to the next one in a panel */
#define STEP_BYTES (TALL * APART)

/* Names of the registers. Intrinsics want them to be literal. */
#define UPPER_LEFT 0
#define UPPER_RIGHT 1
#define LOWER_LEFT 2
#define LOWER_RIGHT 3
#define UPPER_X 4
#define LOWER_X 5
#define LEFT_W 6
#define RIGHT_W 7

/* GCC does not know that its tile instructions read memory: what was stored must be there. */
#define STORED() atomic_signal_fence(memory_order_seq_cst)

struct configuration {
    uint8_t palette, first_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};

/* Give the registers the sizes for a block of `rows`. */
static void set_tiles(int64_t rows, int64_t *set) {
    if (*set == rows) return;
    int64_t upper = rows < TALL ? rows : TALL, lower = rows - upper;
    const int64_t sizes[8] = {upper, upper, lower, lower, upper, lower, TALL, TALL};
    struct configuration c = {.palette = 1};
    for (int tile = 0; tile < 8; tile++) {
        c.rows[tile] = (uint8_t)sizes[tile];
        c.row_bytes[tile] = sizes[tile] ? DEEP : 0; /* a register without rows is not used */
    }
    STORED();
    _tile_loadconfig(&c);
    *set = rows;
}

void release_tiles(int64_t *set) {
    if (*set) _tile_release();
    *set = 0;
}

INLINE void ask_for(const char *later, int64_t bytes) {
    if (later)
        for (int64_t byte = 0; byte < bytes; byte += 64) __builtin_prefetch(later + byte, 0, 2);
}

/* Strides of `start` and `y` are in numbers. */
INLINE void block_of_pairs(const struct tiled *t, const int both) {
    const char *x = t->x, *w = t->w;
    int64_t below = t->start_stride * TALL, stride = t->start_stride * 4;
    _tile_loadd(UPPER_LEFT, t->start, stride);
    _tile_loadd(UPPER_RIGHT, t->start + TALL, stride);
    if (both) {
        _tile_loadd(LOWER_LEFT, t->start + below, stride);
        _tile_loadd(LOWER_RIGHT, t->start + below + TALL, stride);
    }
    for (int64_t step = 0; step < t->steps; step++, x += DEEP, w += STEP_BYTES) {
        ask_for(t->later ? t->later + step * STEP_BYTES : NULL, STEP_BYTES);
        _tile_loadd(UPPER_X, x, t->x_stride);
        _tile_loadd(LEFT_W, w, APART);
        _tile_loadd(RIGHT_W, w + DEEP, APART);
        _tile_dpbf16ps(UPPER_LEFT, UPPER_X, LEFT_W);
        _tile_dpbf16ps(UPPER_RIGHT, UPPER_X, RIGHT_W);
        if (both) {
            _tile_loadd(LOWER_X, x + TALL * t->x_stride, t->x_stride);
            _tile_dpbf16ps(LOWER_LEFT, LOWER_X, LEFT_W);
            _tile_dpbf16ps(LOWER_RIGHT, LOWER_X, RIGHT_W);
        }
    }
    below = t->y_stride * TALL, stride = t->y_stride * 4;
    _tile_stored(UPPER_LEFT, t->y, stride);
    _tile_stored(UPPER_RIGHT, t->y + TALL, stride);
    if (both) {
        _tile_stored(LOWER_LEFT, t->y + below, stride);
        _tile_stored(LOWER_RIGHT, t->y + below + TALL, stride);
    }
}

/* Each group's integers are exact; they are scaled and added to y in the order of the groups. */
INLINE void block_of_codes(const struct tiled *t, int64_t rows, const int both) {
    _Alignas(64) int32_t part[BLOCK][PANEL];
    const char *x = t->x, *w = t->w;
    for (int64_t group = 0; group < t->steps; group++, x += DEEP) {
        const float *scales = (const float *)w;
        ask_for(t->later ? t->later + (w - t->w) : NULL, PANEL * 4 + STEP_BYTES);
        w += PANEL * 4;
        _tile_zero(UPPER_LEFT);
        _tile_zero(UPPER_RIGHT);
        _tile_loadd(UPPER_X, x, t->x_stride);
        _tile_loadd(LEFT_W, w, APART);
        _tile_loadd(RIGHT_W, w + DEEP, APART);
        _tile_dpbssd(UPPER_LEFT, UPPER_X, LEFT_W);
        _tile_dpbssd(UPPER_RIGHT, UPPER_X, RIGHT_W);
        _tile_stored(UPPER_LEFT, part[0], sizeof part[0]);
        _tile_stored(UPPER_RIGHT, part[0] + TALL, sizeof part[0]);
        if (both) {
            _tile_zero(LOWER_LEFT);
            _tile_zero(LOWER_RIGHT);
            _tile_loadd(LOWER_X, x + TALL * t->x_stride, t->x_stride);
            _tile_dpbssd(LOWER_LEFT, LOWER_X, LEFT_W);
            _tile_dpbssd(LOWER_RIGHT, LOWER_X, RIGHT_W);
            _tile_stored(LOWER_LEFT, part[TALL], sizeof part[0]);
            _tile_stored(LOWER_RIGHT, part[TALL] + TALL, sizeof part[0]);
        }
        w += STEP_BYTES;
        vf left = load(scales), right = load(scales + LANES);
        for (int64_t r = 0; r < rows; r++) {
            float scale = t->groups[r * t->group_stride + group].scale, *y = t->y + r * t->y_stride;
            vi sums[2];
            memcpy(sums, part[r], sizeof sums);
            store(y, load(y) + __builtin_convertvector(sums[0], vf) * (left * scale));
            store(y + LANES,
                  load(y + LANES) + __builtin_convertvector(sums[1], vf) * (right * scale));
        }
    }
}

INLINE void block(const struct tiled *t, int64_t rows, const int codes) {
    if (codes) {
        if (rows > TALL) block_of_codes(t, rows, 1);
        else block_of_codes(t, rows, 0);
    } else {
        if (rows > TALL) block_of_pairs(t, 1);
        else block_of_pairs(t, 0);
    }
}

/* Blocks of 32 rows and a last one of the rest: sizes of registers change once a panel. Sums of a
 * panel with fewer columns than PANEL go through a buffer. */
INLINE void blocks(struct tiled t, int64_t rows, int64_t *set, const int codes) {
    float buffer[BLOCK][PANEL] = {0}, *y = t.y;
    const char *x = t.x, *later = t.later;
    const float *start = codes ? t.y : t.start;
    const struct group *groups = t.groups;
    int64_t y_stride = t.y_stride, start_stride = codes ? t.y_stride : t.start_stride;
    for (int64_t done = 0; done < rows; done += BLOCK) {
        int64_t count = rows - done < BLOCK ? rows - done : BLOCK;
        t.x = x + done * t.x_stride;
        if (codes) t.groups = groups + done * t.group_stride;
        t.start = start + done * start_stride;
        t.y = y + done * y_stride;
        t.later = done == (rows > BLOCK ? BLOCK : 0) ? later : NULL;
        if (t.columns < PANEL) {
            for (int64_t r = 0; r < count; r++)
                memcpy(buffer[r], t.start + r * start_stride, (size_t)t.columns * 4);
            t.start = t.y = buffer[0];
            t.start_stride = t.y_stride = PANEL;
        }
        set_tiles(count, set);
        STORED();
        block(&t, count, codes);
        if (t.columns < PANEL)
            for (int64_t r = 0; r < count; r++)
                memcpy(y + (done + r) * y_stride, buffer[r], (size_t)t.columns * 4);
    }
}

void pairs_in_tiles(const struct tiled *t, int64_t rows, int64_t *set) { blocks(*t, rows, set, 0); }

void codes_in_tiles(const struct tiled *t, int64_t rows, int64_t *set) { blocks(*t, rows, set, 1); }
#endif
