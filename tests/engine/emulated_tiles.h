/* The tile instructions of AMX in plain C, for tests on CPUs without them.
 *
 * The engine's own loops are compiled with these (`TILE_INSTRUCTIONS` in vectors.h). They compute
 * what the processor's manual says, and abort where an instruction would trap: a register without
 * rows, or registers whose sizes do not fit. */
#ifndef EMULATED_TILES_H
#define EMULATED_TILES_H

#include <float.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

struct emulated_configuration {
    uint8_t palette, first_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};

static _Thread_local struct emulated_configuration emulated;
static _Thread_local uint8_t emulated_tile[8][16][64];

/* Threads whose registers are in use; tests read it. */
__attribute__((weak, visibility("default"))) atomic_int tiles_in_use;

static inline void emulated_need(int so) {
    if (!so) abort();
}

static inline void emulated_release(void) {
    emulated_need(emulated.palette);
    memset(&emulated, 0, sizeof emulated);
    tiles_in_use--;
}

static inline void emulated_loadconfig(const void *at) {
    if (!emulated.palette) tiles_in_use++;
    memcpy(&emulated, at, sizeof emulated);
    emulated_need(emulated.palette == 1 && !emulated.first_row);
    for (int i = 0; i < 14; i++) emulated_need(!emulated.reserved[i]);
    for (int i = 0; i < 16; i++) {
        emulated_need(emulated.rows[i] <= 16 && emulated.row_bytes[i] <= 64);
        emulated_need(!emulated.rows[i] == !emulated.row_bytes[i]);
        emulated_need(i < 8 || !emulated.rows[i]);
    }
    memset(emulated_tile, 0, sizeof emulated_tile);
}

static inline void emulated_use(int tile) { emulated_need(emulated.rows[tile] > 0); }

static inline void emulated_zero(int tile) {
    emulated_use(tile);
    memset(emulated_tile[tile], 0, sizeof emulated_tile[tile]);
}

static inline void emulated_loadd(int tile, const void *from, int64_t stride) {
    emulated_use(tile);
    memset(emulated_tile[tile], 0, sizeof emulated_tile[tile]);
    for (int r = 0; r < emulated.rows[tile]; r++)
        memcpy(emulated_tile[tile][r], (const char *)from + r * stride, emulated.row_bytes[tile]);
}

static inline void emulated_stored(int tile, void *to, int64_t stride) {
    emulated_use(tile);
    for (int r = 0; r < emulated.rows[tile]; r++)
        memcpy((char *)to + r * stride, emulated_tile[tile][r], emulated.row_bytes[tile]);
}

/* c [m, n] of 32 bits += a [m, k] · b [k, n], where k counts 32 bits of a row. */
static inline void emulated_fit(int c, int a, int b) {
    emulated_use(c), emulated_use(a), emulated_use(b);
    emulated_need(c != a && c != b && a != b);
    emulated_need(emulated.rows[c] == emulated.rows[a]);
    emulated_need(emulated.row_bytes[c] == emulated.row_bytes[b]);
    emulated_need(emulated.row_bytes[a] == 4 * emulated.rows[b]);
}

/* Numbers smaller than the least normal one count as zero. */
static inline float emulated_flush(float value) {
    return value > -FLT_MIN && value < FLT_MIN ? 0 : value;
}

static inline float emulated_bf16(const uint8_t *at) {
    uint16_t half;
    memcpy(&half, at, 2);
    uint32_t bits = (uint32_t)half << 16;
    float wide;
    memcpy(&wide, &bits, 4);
    return emulated_flush(wide);
}

static inline void emulated_dpbf16ps(int c, int a, int b) {
    emulated_fit(c, a, b);
    for (int m = 0; m < emulated.rows[c]; m++)
        for (int n = 0; n < emulated.row_bytes[c] / 4; n++) {
            float sums[2] = {0, 0}, value; /* of the even inputs, and of the odd ones */
            for (int k = 0; k < emulated.rows[b]; k++)
                for (int odd = 0; odd < 2; odd++)
                    sums[odd] = emulated_flush(
                        sums[odd] + emulated_bf16(&emulated_tile[a][m][4 * k + 2 * odd]) *
                                        emulated_bf16(&emulated_tile[b][k][4 * n + 2 * odd]));
            memcpy(&value, &emulated_tile[c][m][4 * n], 4);
            value = emulated_flush(emulated_flush(value) + emulated_flush(sums[0] + sums[1]));
            memcpy(&emulated_tile[c][m][4 * n], &value, 4);
        }
}

static inline void emulated_dpbssd(int c, int a, int b) {
    emulated_fit(c, a, b);
    for (int m = 0; m < emulated.rows[c]; m++)
        for (int n = 0; n < emulated.row_bytes[c] / 4; n++) {
            int32_t value;
            memcpy(&value, &emulated_tile[c][m][4 * n], 4);
            for (int k = 0; k < emulated.rows[b]; k++)
                for (int i = 0; i < 4; i++)
                    value += (int8_t)emulated_tile[a][m][4 * k + i] *
                             (int8_t)emulated_tile[b][k][4 * n + i];
            memcpy(&emulated_tile[c][m][4 * n], &value, 4);
        }
}

#undef _tile_loadconfig
#define _tile_loadconfig emulated_loadconfig
#undef _tile_release
#define _tile_release emulated_release
#undef _tile_zero
#define _tile_zero emulated_zero
#undef _tile_loadd
#define _tile_loadd emulated_loadd
#undef _tile_stored
#define _tile_stored emulated_stored
#undef _tile_dpbf16ps
#define _tile_dpbf16ps emulated_dpbf16ps
#undef _tile_dpbssd
#define _tile_dpbssd emulated_dpbssd

#endif
