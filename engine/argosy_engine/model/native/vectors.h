/* Vectors of float32 as wide as the instruction set has, by the extension of GCC and Clang.
 *
 * The same source becomes AVX-512, AVX2 or, without a flag, whatever the platform's base has. */
#ifndef ARGOSY_VECTORS_H
#define ARGOSY_VECTORS_H

#include <stdint.h>
#include <string.h>

/* Tests compile the loops of tiles.c with a header of theirs, in which the instructions are C. */
#if (defined(__AMX_BF16__) && defined(__AMX_INT8__)) || defined(TILE_INSTRUCTIONS)
#define TILES 1 /* bfloat16 pairs and codes are multiplied in tile registers */
#else
#define TILES 0
#endif

#if defined(__AVX512F__) || TILES
#define LANES 16
#elif defined(__AVX2__)
#define LANES 8
#else
#define LANES 4
#endif

#if defined(__x86_64__)
#include <immintrin.h>
#endif
#if defined(TILE_INSTRUCTIONS)
#include TILE_INSTRUCTIONS
#endif

#if defined(__AVX512BF16__)
#define PAIRS 1 /* bfloat16 is multiplied in pairs, without being widened */
#else
#define PAIRS 0
#endif

#define INLINE static inline __attribute__((always_inline))
#ifdef __clang__
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

typedef float vf __attribute__((vector_size(LANES * 4)));
typedef int32_t vi __attribute__((vector_size(LANES * 4)));
typedef uint32_t vu __attribute__((vector_size(LANES * 4)));
typedef uint16_t vh __attribute__((vector_size(LANES * 2)));

INLINE vf all(float value) { return value - (vf){0}; }

INLINE vf load(const float *at) {
    vf value;
    memcpy(&value, at, sizeof value);
    return value;
}

INLINE void store(float *at, vf value) { memcpy(at, &value, sizeof value); }

INLINE vf load_bf16(const uint16_t *at) {
    vh half;
    memcpy(&half, at, sizeof half);
    return (vf)(__builtin_convertvector(half, vu) << 16);
}

/* Of words of two bfloat16, the first ones and the second ones. */
INLINE vf low_half(vf words) { return (vf)((vu)words << 16); }
INLINE vf high_half(vf words) { return (vf)((vu)words & 0xffff0000u); }

INLINE float widen(uint16_t value) {
    uint32_t bits = (uint32_t)value << 16;
    float wide;
    memcpy(&wide, &bits, sizeof wide);
    return wide;
}

/* To the nearest, ties to even; NaN stays NaN. */
INLINE uint16_t narrow(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if ((bits & 0x7fffffff) > 0x7f800000) return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* `b` where either one is NaN. */
INLINE vf larger(vf a, vf b) {
#if defined(__AVX512F__)
    return (vf)_mm512_max_ps((__m512)a, (__m512)b);
#elif LANES == 8
    return (vf)_mm256_max_ps((__m256)a, (__m256)b);
#else
    vi take = a > b;
    return (vf)(((vi)a & take) | ((vi)b & ~take));
#endif
}

#if PAIRS
/* Pairs of bfloat16: lane i of `first` in the low half of a word, of `second` in the high one. */
INLINE vf zip_narrow(vf first, vf second) {
    const short order[32] = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                             8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
    __m512i both = (__m512i)_mm512_cvtne2ps_pbh((__m512)second, (__m512)first);
    return (vf)_mm512_permutexvar_epi16(_mm512_loadu_si512(order), both);
}
#endif

#if PAIRS
/* 16 words, from `at` on, of 16 rows: word w of row r goes to to[w * stride + r]. */
INLINE void transpose(const char *const *rows, int64_t at, uint32_t *to, int64_t stride) {
    __m512i a[16], b[16];
    UNROLL for (int i = 0; i < 16; i++) a[i] = _mm512_loadu_si512(rows[i] + at * 4);
    UNROLL for (int i = 0; i < 8; i++) {
        b[2 * i] = _mm512_unpacklo_epi32(a[2 * i], a[2 * i + 1]);
        b[2 * i + 1] = _mm512_unpackhi_epi32(a[2 * i], a[2 * i + 1]);
    }
    UNROLL for (int i = 0; i < 16; i += 4)
        for (int half = 0; half < 2; half++) {
            a[i + 2 * half] = _mm512_unpacklo_epi64(b[i + half], b[i + half + 2]);
            a[i + 2 * half + 1] = _mm512_unpackhi_epi64(b[i + half], b[i + half + 2]);
        }
    UNROLL for (int i = 0; i < 4; i++)
        for (int half = 0; half < 16; half += 8) {
            b[i + half] = _mm512_shuffle_i32x4(a[i + half], a[i + half + 4], 0x88);
            b[i + half + 4] = _mm512_shuffle_i32x4(a[i + half], a[i + half + 4], 0xdd);
        }
    UNROLL for (int i = 0; i < 8; i++) {
        _mm512_storeu_si512(to + i * stride, _mm512_shuffle_i32x4(b[i], b[i + 8], 0x88));
        _mm512_storeu_si512(to + (i + 8) * stride, _mm512_shuffle_i32x4(b[i], b[i + 8], 0xdd));
    }
}
#endif

INLINE float sum(vf value) {
#if LANES == 16
    typedef float half __attribute__((vector_size(32)));
    half low, high;
    memcpy(&low, &value, 32);
    memcpy(&high, (char *)&value + 32, 32);
    low += high;
#elif LANES == 8
    vf low = value;
#endif
#if LANES >= 8
    typedef float quarter __attribute__((vector_size(16)));
    quarter a, b;
    memcpy(&a, &low, 16);
    memcpy(&b, (char *)&low + 16, 16);
    a += b;
#else
    vf a = value;
#endif
    return (a[0] + a[2]) + (a[1] + a[3]);
}

/* 2^x for x <= 0, within 2 units of the last place; 2^-126 below that, NaN for NaN.
 * x = n + f with |f| <= 1/2; Cephes' polynomial gives 2^f, and n is added to the exponent. */
INLINE vf power_of_two(vf x) {
    x = larger(all(-126.0f), x);
    const vf shift = all(12582912.0f); /* 1.5 · 2^23: adding it rounds to an integer */
    vf n = x + shift, f = x - (n - shift);
    vf p = all(1.535336188319500e-4f);
    p = p * f + 1.339887440266574e-3f;
    p = p * f + 9.618437357674640e-3f;
    p = p * f + 5.550332471162809e-2f;
    p = p * f + 2.402264791363012e-1f;
    p = p * f + 6.931472028550421e-1f;
    p = p * f + 1.0f;
    return (vf)((vi)p + ((vi)n << 23));
}

/* e^x for x <= 0, within 2 units of the last place; 0 below -87.
 * x = n·ln 2 + f with |f| <= ln 2 / 2; Cephes' polynomial gives e^f, the exponent bits give 2^n. */
INLINE vf exponential(vf x) {
    x = larger(x, all(-87.3f));
    const vf shift = all(12582912.0f); /* 1.5 · 2^23: adding it rounds to an integer */
    vf n = x * 1.44269504088896341f + shift;
    vi exponent = (vi)n - (vi)shift;
    n -= shift;
    vf f = x - n * 0.693359375f;
    f -= n * -2.12194440e-4f;
    vf p = all(1.9875691500e-4f);
    p = p * f + 1.3981999507e-3f;
    p = p * f + 8.3334519073e-3f;
    p = p * f + 4.1665795894e-2f;
    p = p * f + 1.6666665459e-1f;
    p = p * f + 5.0000001201e-1f;
    p = p * (f * f) + f + 1.0f;
    return p * (vf)((exponent + 127) << 23);
}

#endif
