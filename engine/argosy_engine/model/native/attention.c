/* Attention over the paged pool: single rows of decodes, and tiles of rows of prompts.
 *
 * The query heads of a group share one KV head, so they are rows of one product with it. Keys come
 * in tiles of KEYS; a running maximum and sum (online softmax) make one pass over them enough.
 *
 *   s = q · k · log2(e) / √d    m' = max(m, max s)    p = 2^(s - m')
 *   l' = l · 2^(m - m') + Σ p                         o' = o · 2^(m - m') + Σ p · v
 *
 * Scores, sums and the running state are float32. Where bfloat16 of the pool is multiplied in pairs,
 * q is rounded to it for its product with keys, and p for that with values: in decodes where the CPU
 * has an instruction for pairs, in prompts where it is fast (`argosy_pairs`).
 *
 * A prompt's tile has its query rows in the lanes: of keys and values one number at a time is
 * needed for all lanes, so neither is transposed, and maxima and sums need no step across lanes. A
 * decode has too few rows for that: the numbers of a head are its lanes, and with pairs the keys,
 * which are transposed once for all heads of a group. */
#include "attention.h"

#include <math.h>

#include "products.h"

#define KEYS 128      /* keys of a tile; a multiple of PANEL */
#define TILE_ROWS 96  /* query rows of a tile of a prompt, heads of the group included */
#define LOG2_E 1.44269504088896341f

/* A tile's state. Rows are (token, head of the group). `words` are the 32-bit words of a head. */
struct tile {
    const struct model *m;
    const int32_t *table;
    int64_t layer, head; /* KV head */
    int64_t rows, dim, words, window;
    int pairs;
    float *q;      /* of a prompt: [panel][words][PANEL], else [rows][words] */
    float *o;      /* of a prompt: [panel][dim][PANEL], else [rows][dim] */
    float *scores; /* of a prompt, one panel's: [KEYS][PANEL], else [rows][KEYS] */
    float *most, *total; /* [rows] */
    int32_t *positions;  /* [rows] */
    float *keys;         /* of a prompt: [KEYS][words]; of a decode in pairs [words][PANEL] */
    float *values;       /* of a prompt: [KEYS][dim], or of pairs [KEYS / 2][dim] */
};

static int64_t group_of(const struct model *m) { return m->heads / m->kv_heads; }

INLINE int64_t up(int64_t value, int64_t step) { return (value + step - 1) / step * step; }
INLINE int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
INLINE int64_t most_of(int64_t a, int64_t b) { return a > b ? a : b; }

static int64_t tokens_of_a_tile(const struct model *m) {
    int64_t tokens = TILE_ROWS / group_of(m);
    return tokens > 0 ? tokens : 1;
}

int64_t tasks_at_most(const struct model *m, const struct batch *b) {
    return m->kv_heads * (b->sequences + b->tokens / tokens_of_a_tile(m));
}

int64_t make_tasks(const struct model *m, const struct batch *b, struct task *tasks) {
    int64_t count = 0, tile = tokens_of_a_tile(m);
    for (int singles = 0; singles < 2; singles++)
        for (int32_t s = 0; s < b->sequences; s++) {
            int32_t first = b->first[s], rows = b->first[s + 1] - first;
            if ((rows == 1) != singles) continue;
            /* The last rows of a prompt see the most keys. */
            for (int64_t at = (rows - 1) / tile * tile; at >= 0; at -= tile)
                for (int32_t head = 0; head < m->kv_heads; head++)
                    tasks[count++] = (struct task){
                        .sequence = s,
                        .kv_head = head,
                        .row = first + (int32_t)at,
                        .rows = (int32_t)least(rows - at, tile),
                    };
        }
    return count;
}

int64_t attention_scratch(const struct model *m) {
    int64_t rows = up(most_of(group_of(m), TILE_ROWS), PANEL);
    return rows * (2 * m->head_dim + 3) + KEYS * most_of(rows, PANEL) + 2 * KEYS * m->head_dim;
}

static struct tile tile_in(const struct model *m, float *scratch, int64_t rows, int pairs) {
    struct tile t = {.m = m, .rows = rows, .dim = m->head_dim, .pairs = pairs && m->type == BF16};
    int64_t all_rows = up(rows, PANEL);
    t.words = t.pairs ? t.dim / 2 : t.dim;
    t.q = scratch;
    t.o = t.q + all_rows * t.dim;
    t.scores = t.o + all_rows * t.dim;
    t.keys = t.scores + all_rows * KEYS;
    t.values = t.keys + t.dim * KEYS;
    t.most = t.values + t.dim * KEYS;
    t.total = t.most + all_rows;
    t.positions = (int32_t *)(t.total + all_rows);
    return t;
}

/* Where K (`part` 0) or V (1) of a block's head begin, counted in elements of the pool. */
INLINE int64_t pool_at(const struct model *m, int64_t block, int64_t layer, int part,
                       int64_t head) {
    int64_t plane = m->block_size * m->head_dim;
    return (((block * m->layers + layer) * 2 + part) * m->kv_heads + head) * plane;
}

void write_kv(const struct model *m, int64_t layer, int64_t slot, const float *qkv) {
    int64_t dim = m->head_dim, offset = slot % m->block_size * dim;
    for (int part = 0; part < 2; part++)
        for (int64_t head = 0; head < m->kv_heads; head++) {
            const float *from = qkv + (m->heads + part * m->kv_heads + head) * dim;
            int64_t to = pool_at(m, slot / m->block_size, layer, part, head) + offset;
            if (m->type == F32)
                memcpy((float *)m->pool + to, from, (size_t)dim * 4);
            else
                for (int64_t d = 0; d < dim; d++) ((uint16_t *)m->pool + to)[d] = narrow(from[d]);
        }
}

/* A run of keys that lie in one block, from key `from` of the sequence on; at most `count`. */
struct run {
    int64_t keys;
    const char *k, *v;
};

static struct run run_at(const struct tile *t, int64_t from, int64_t count) {
    int64_t size = t->m->block_size, offset = from % size, element = t->m->type == F32 ? 4 : 2;
    int64_t block = t->table[from / size];
    const char *pool = t->m->pool;
    return (struct run){
        .keys = least(size - offset, count),
        .k = pool + (pool_at(t->m, block, t->layer, 0, t->head) + offset * t->dim) * element,
        .v = pool + (pool_at(t->m, block, t->layer, 1, t->head) + offset * t->dim) * element,
    };
}

/* --- prompts: query rows are the lanes -------------------------------------------------------- */

/* Row `r` into the lanes; numbers are rounded to bfloat16 if products take pairs. */
static void put_query(struct tile *t, int64_t r, const float *q, float scale) {
    float *to = t->q + r / PANEL * t->words * PANEL + r % PANEL;
    for (int64_t w = 0; w < t->words; w++) {
        uint32_t word;
        float one = t->pairs ? 0 : q[w] * scale;
        if (t->pairs) {
            word = narrow(q[2 * w] * scale) | (uint32_t)narrow(q[2 * w + 1] * scale) << 16;
            memcpy(&one, &word, 4);
        }
        memcpy(to + w * PANEL, &one, 4);
    }
}

static void gather_floats(struct tile *t, int64_t from, int64_t count) {
    for (int64_t key = 0; key < count;) {
        struct run run = run_at(t, from + key, count - key);
        float *keys = t->keys + key * t->dim, *values = t->values + key * t->dim;
        int64_t numbers = run.keys * t->dim;
        if (t->m->type == F32) {
            memcpy(keys, run.k, (size_t)numbers * 4);
            memcpy(values, run.v, (size_t)numbers * 4);
        } else {
            for (int64_t n = 0; n < numbers; n++) keys[n] = widen(((const uint16_t *)run.k)[n]);
            for (int64_t n = 0; n < numbers; n++) values[n] = widen(((const uint16_t *)run.v)[n]);
        }
        key += run.keys;
    }
}

/* Keys as they are; values of two keys in a word, the one behind the last key 0. */
static void gather_pairs(struct tile *t, int64_t from, int64_t count) {
    uint32_t *words = (uint32_t *)t->values;
    int64_t dim = t->dim;
    for (int64_t key = 0; key < count;) {
        struct run run = run_at(t, from + key, count - key);
        const uint16_t *v = (const uint16_t *)run.v;
        memcpy(t->keys + key * t->words, run.k, (size_t)(run.keys * dim) * 2);
        for (int64_t end = key + run.keys; key < end; v += dim) {
            uint32_t *to = words + key / 2 * dim;
            if (key % 2) {
                for (int64_t d = 0; d < dim; d++) to[d] |= (uint32_t)v[d] << 16;
                key++;
            } else if (key + 1 == end) {
                for (int64_t d = 0; d < dim; d++) to[d] = v[d];
                key++;
            } else {
                for (int64_t d = 0; d < dim; d++) to[d] = v[d] | (uint32_t)v[dim + d] << 16;
                v += dim;
                key += 2;
            }
        }
    }
}

/* Scores of keys that a row does not see become -∞; `from` is the first key's position. */
static void hide(struct tile *t, const int32_t *positions, int64_t from, int64_t begin,
                 int64_t count) {
    int64_t first = positions[0], last = positions[PANEL - 1];
    for (int64_t key = begin; key < count; key++) {
        int64_t at = from + key;
        int sees_all = at <= first && (!t->window || at > last - t->window);
        for (int64_t lane = 0; lane < PANEL && !sees_all; lane++) {
            int seen = at <= positions[lane] && (!t->window || at > positions[lane] - t->window);
            if (!seen) t->scores[key * PANEL + lane] = -INFINITY;
        }
    }
}

/* Scores [begin, count) of a panel to weights, of pairs two in a word; rescales its sums. */
static void weigh_panel(struct tile *t, int64_t panel, int64_t begin, int64_t count) {
    float *s = t->scores, *o = t->o + panel * t->dim * PANEL;
    vf base[2], sums[2] = {all(0), all(0)};
    vf shrink[2];
    for (int v = 0; v < 2; v++) {
        float *most = t->most + panel * PANEL + v * LANES;
        vf before = load(most), top = before, other = before;
        for (int64_t key = begin; key < count - 1; key += 2) {
            top = larger(top, load(s + key * PANEL + v * LANES));
            other = larger(other, load(s + (key + 1) * PANEL + v * LANES));
        }
        top = larger(top, load(s + (count - 1) * PANEL + v * LANES));
        top = larger(top, other);
        store(most, top);
        base[v] = larger(top, all(-3e38f)); /* nothing seen yet: -∞ - -∞ is no number */
        shrink[v] = power_of_two(before - base[v]);
    }
    for (int64_t d = 0; d < t->dim; d++)
        for (int v = 0; v < 2; v++) {
            float *at = o + d * PANEL + v * LANES;
            store(at, load(at) * shrink[v]);
        }
    for (int64_t key = begin; key < count; key += 1 + t->pairs) {
        vf p[2][2] = {{all(0), all(0)}, {all(0), all(0)}};
        for (int two = 0; two < 1 + t->pairs && key + two < count; two++)
            for (int v = 0; v < 2; v++) {
                p[two][v] = power_of_two(load(s + (key + two) * PANEL + v * LANES) - base[v]);
                sums[v] += p[two][v];
            }
#if PAIRS
        if (t->pairs) {
            for (int v = 0; v < 2; v++)
                store(s + key / 2 * PANEL + v * LANES, zip_narrow(p[0][v], p[1][v]));
            continue;
        }
#endif
        for (int v = 0; v < 2; v++) store(s + key * PANEL + v * LANES, p[0][v]);
    }
    for (int v = 0; v < 2; v++) {
        float *total = t->total + panel * PANEL + v * LANES;
        store(total, load(total) * shrink[v] + sums[v]);
    }
}

/* Keys [from, from + count) for all rows that see some of them. */
static void tile_of_keys(struct tile *t, int64_t from, int64_t count) {
    enum kind kind = t->pairs ? PAIRED : FLOATS;
    if (t->pairs) gather_pairs(t, from, count);
    else gather_floats(t, from, count);
    for (int64_t panel = 0; panel * PANEL < t->rows; panel++) {
        const int32_t *positions = t->positions + panel * PANEL;
        int64_t end = least(count, positions[PANEL - 1] + 1 - from);
        int64_t begin = t->window ? most_of(positions[0] + 1 - t->window - from, 0) / 2 * 2 : 0;
        if (begin >= end) continue;
        score(end - begin, t->words, t->keys + begin * t->words, t->words,
              t->q + panel * t->words * PANEL, kind, t->scores + begin * PANEL, PANEL);
        hide(t, positions, from, begin, end);
        weigh_panel(t, panel, begin, end);
        int64_t step = 1 + t->pairs; /* keys of a word */
        add_columns(t->dim, (end - begin + step - 1) / step, t->values + begin / step * t->dim,
                    t->dim, t->scores + begin / step * PANEL, kind,
                    t->o + panel * t->dim * PANEL);
    }
}

/* --- decodes: numbers of a head are the lanes, or keys ---------------------------------------- */

/* Ask for K (`part` 0) or V (1) of a tile before it is used: blocks lie anywhere in the pool, and the
 * hardware foresees only the rest of each. */
static void ask_for(const struct tile *t, int part, int64_t from, int64_t count) {
    int64_t element = t->m->type == F32 ? 4 : 2;
    for (int64_t key = 0; key < count;) {
        struct run run = run_at(t, from + key, count - key);
        const char *at = part ? run.v : run.k;
        for (int64_t byte = 0; byte < run.keys * t->dim * element; byte += 64)
            __builtin_prefetch(at + byte, 0, 2);
        key += run.keys;
    }
}

INLINE float dot(const float *q, const char *key, int64_t dim, int64_t type) {
    vf a = all(0), b = all(0);
    for (int64_t d = 0; d < dim; d += PANEL) {
        vf low = type == F32 ? load((const float *)key + d) : load_bf16((const uint16_t *)key + d);
        vf high = type == F32 ? load((const float *)key + d + LANES)
                              : load_bf16((const uint16_t *)key + d + LANES);
        a += load(q + d) * low;
        b += load(q + d + LANES) * high;
    }
    return sum(a + b);
}

static void score_floats(struct tile *t, int64_t from, int64_t count) {
    int64_t type = t->m->type, element = type == F32 ? 4 : 2;
    for (int64_t key = 0; key < count;) {
        struct run run = run_at(t, from + key, count - key);
        for (const char *k = run.k; run.keys > 0; run.keys--, key++, k += t->dim * element)
            for (int64_t r = 0; r < t->rows; r++) {
                const float *q = t->q + r * t->dim;
                t->scores[r * KEYS + key] =
                    type == F32 ? dot(q, k, t->dim, F32) : dot(q, k, t->dim, BF16);
            }
    }
}

#if PAIRS
/* Where K and V of each key begin. Behind the last key stands the first again, up to a panel. */
struct places {
    const char *k[KEYS], *v[KEYS];
};

static void find(struct places *p, const struct tile *t, int64_t from, int64_t count) {
    for (int64_t key = 0; key < count;) {
        struct run run = run_at(t, from + key, count - key);
        for (int64_t i = 0; i < run.keys; i++, key++) {
            p->k[key] = run.k + i * t->dim * 2;
            p->v[key] = run.v + i * t->dim * 2;
        }
    }
    for (int64_t key = count; key < up(count, PANEL); key++) {
        p->k[key] = p->k[0];
        p->v[key] = p->v[0];
    }
}

/* Panels of keys, each transposed once for all rows. */
static void score_pairs(struct tile *t, const char *const *rows, int64_t count) {
    uint32_t *columns = (uint32_t *)t->keys;
    for (int64_t key = 0; key < count; key += PANEL) {
        for (int64_t half = 0; half < least(PANEL, up(count - key, LANES)); half += LANES)
            for (int64_t w = 0; w < t->words; w += LANES)
                transpose(rows + key + half, w, columns + w * PANEL + half, PANEL);
        score(t->rows, t->words, t->q, t->words, t->keys, PAIRED, t->scores + key, KEYS);
    }
}

/* PANEL numbers of the sums of `rows` rows; a word of `weights` has those of two keys. */
INLINE void add_pairs(const struct tile *t, const int rows, const float *weights,
                      const char *const *values, int64_t count, float *o) {
    const short low[32] = {0, 32, 1, 33, 2,  34, 3,  35, 4,  36, 5,  37, 6,  38, 7,  39,
                           8, 40, 9, 41, 10, 42, 11, 43, 12, 44, 13, 45, 14, 46, 15, 47};
    __m512i first = _mm512_loadu_si512(low);
    __m512i second = _mm512_add_epi16(first, _mm512_set1_epi16(16));
    vf sums[4][2];
    UNROLL for (int r = 0; r < rows; r++)
        for (int v = 0; v < 2; v++) sums[r][v] = load(o + r * t->dim + v * LANES);
    for (int64_t key = 0; key < count; key += 2) {
        __m512i a = _mm512_loadu_si512(values[key]), b = _mm512_loadu_si512(values[key + 1]);
        __m512bh words[2] = {(__m512bh)_mm512_permutex2var_epi16(a, first, b),
                             (__m512bh)_mm512_permutex2var_epi16(a, second, b)};
        UNROLL for (int r = 0; r < rows; r++) {
            __m512bh weight = (__m512bh)all(weights[r * KEYS + key / 2]);
            for (int v = 0; v < 2; v++)
                sums[r][v] = (vf)_mm512_dpbf16_ps((__m512)sums[r][v], weight, words[v]);
        }
    }
    UNROLL for (int r = 0; r < rows; r++)
        for (int v = 0; v < 2; v++) store(o + r * t->dim + v * LANES, sums[r][v]);
}

/* o += p · v. The weight behind the last key of an odd number is 0. */
static void add_values(struct tile *t, struct places *at, int64_t count) {
    for (int64_t r = 0; r < t->rows; r++) {
        float *weights = t->scores + r * KEYS;
        if (count % 2) weights[count] = 0;
        for (int64_t key = 0; key < count; key += 2 * LANES) {
            __m512bh both = _mm512_cvtne2ps_pbh((__m512)load(weights + key + LANES),
                                                (__m512)load(weights + key));
            memcpy(weights + key / 2, &both, sizeof both);
        }
    }
    for (int64_t d = 0; d < t->dim; d += PANEL) {
        for (int64_t r = 0; r < t->rows; r += 4) {
            const float *weights = t->scores + r * KEYS;
            float *o = t->o + r * t->dim + d;
            switch (least(t->rows - r, 4)) {
                case 1: add_pairs(t, 1, weights, at->v, count, o); break;
                case 2: add_pairs(t, 2, weights, at->v, count, o); break;
                case 3: add_pairs(t, 3, weights, at->v, count, o); break;
                case 4: add_pairs(t, 4, weights, at->v, count, o); break;
            }
        }
        for (int64_t key = 0; key < up(count, 2); key++) at->v[key] += PANEL * 2;
    }
}
#endif

/* The `count` scores of one row to weights. */
static void weigh(struct tile *t, int64_t row, int64_t count) {
    float *s = t->scores + row * KEYS, *o = t->o + row * t->dim;
    int64_t width = up(count, LANES);
    for (int64_t k = count; k < width; k++) s[k] = -INFINITY;
    vf top = load(s);
    for (int64_t k = LANES; k < width; k += LANES) top = larger(top, load(s + k));
    float most = top[0];
    for (int lane = 1; lane < LANES; lane++) most = top[lane] > most ? top[lane] : most;
    if (most > t->most[row]) {
        float shrink = exp2f(t->most[row] - most);
        t->most[row] = most;
        t->total[row] *= shrink;
        for (int64_t d = 0; d < t->dim; d += LANES) store(o + d, load(o + d) * shrink);
    }
    vf sums = all(0), base = all(t->most[row]);
    for (int64_t k = 0; k < width; k += LANES) {
        vf p = power_of_two(load(s + k) - base);
        store(s + k, p);
        sums += p;
    }
    t->total[row] += sum(sums);
}

/* Keys [from, from + count) for one token, straight from the pool. */
static void tile_of_a_decode(struct tile *t, int64_t from, int64_t count) {
    int64_t element = t->m->type == F32 ? 4 : 2;
#if PAIRS
    if (t->pairs) {
        struct places places;
        find(&places, t, from, count);
        score_pairs(t, places.k, count);
        for (int64_t r = 0; r < t->rows; r++) weigh(t, r, count);
        add_values(t, &places, count);
        return;
    }
#endif
    score_floats(t, from, count);
    for (int64_t r = 0; r < t->rows; r++) weigh(t, r, count);
    for (int64_t key = 0; key < count;) {
        struct run run = run_at(t, from + key, count - key);
        for (int64_t d = 0; d < t->dim; d += PANEL)
            add_rows(t->rows, run.keys, t->scores + key, KEYS, run.v + d * element, t->dim,
                     t->m->type == F32 ? FLOATS : HALVES, t->o + d, t->dim);
        key += run.keys;
    }
}

static int64_t first_key(const struct tile *t, int64_t position) {
    return t->window ? most_of(position + 1 - t->window, 0) : 0;
}

static void decode(struct tile *t, const float *q, float scale, int64_t position, float *out) {
    for (int64_t at = 0; at < t->rows * t->dim; at++)
        if (t->pairs) ((uint16_t *)t->q)[at] = narrow(q[at] * scale);
        else t->q[at] = q[at] * scale;
    for (int64_t r = 0; r < t->rows; r++) {
        t->most[r] = -INFINITY;
        t->total[r] = 0;
    }
    memset(t->o, 0, (size_t)(t->rows * t->dim) * 4);
    for (int64_t from = first_key(t, position); from <= position; from += KEYS) {
        int64_t count = least(position + 1 - from, KEYS), left = position + 1 - from - count;
        ask_for(t, 1, from, count);
        ask_for(t, 0, from + count, least(left, KEYS));
        tile_of_a_decode(t, from, count);
    }
    for (int64_t r = 0; r < t->rows; r++) {
        float share = 1.0f / t->total[r];
        for (int64_t d = 0; d < t->dim; d++)
            out[r * t->dim + d] = t->o[r * t->dim + d] * share;
    }
}

static void prompt(struct tile *t, const struct batch *b, const struct task *task,
                   const float *qkv, int64_t qkv_stride, float scale, float *out,
                   int64_t out_stride) {
    int64_t group = group_of(t->m), lanes = up(t->rows, PANEL);
    memset(t->q, 0, (size_t)(lanes * t->words) * 4);
    memset(t->o, 0, (size_t)(lanes * t->dim) * 4);
    for (int64_t r = 0; r < lanes; r++) {
        int64_t token = task->row + least(r, t->rows - 1) / group;
        t->positions[r] = b->positions[token];
        t->most[r] = -INFINITY;
        t->total[r] = 0;
        if (r < t->rows) put_query(t, r, qkv + token * qkv_stride + r % group * t->dim, scale);
    }
    int64_t last = t->positions[lanes - 1];
    int64_t begin = t->window ? most_of(t->positions[0] + 1 - t->window, 0) : 0;
    for (int64_t from = begin; from <= last; from += KEYS)
        tile_of_keys(t, from, least(last + 1 - from, KEYS));
    for (int64_t r = 0; r < t->rows; r++) {
        const float *o = t->o + r / PANEL * t->dim * PANEL + r % PANEL;
        float *to = out + (task->row + r / group) * out_stride + r % group * t->dim;
        float share = 1.0f / t->total[r];
        for (int64_t d = 0; d < t->dim; d++) to[d] = o[d * PANEL] * share;
    }
}

/* The first keys of a task that comes later. */
static void ask_for_task(struct tile t, const struct batch *b, const struct task *task) {
    int64_t position = b->positions[task->row];
    t.head = task->kv_head;
    t.table = b->tables + b->table_at[task->sequence];
    int64_t from = first_key(&t, position);
    ask_for(&t, 0, from, least(position + 1 - from, KEYS));
}

void attend(const struct model *m, const struct batch *b, int64_t layer, const struct task *task,
            const struct task *later, const float *qkv, int64_t qkv_stride, float *out,
            int64_t out_stride, float *scratch) {
    int64_t first_head = task->kv_head * group_of(m) * m->head_dim;
    int single = task->rows == 1 && m->head_dim % PANEL == 0;
    /* A decode waits for the memory, so the speed of the instruction does not count, and pairs spare
     * the widening. */
    struct tile t = tile_in(m, scratch, task->rows * group_of(m), single ? PAIRS : multiplies_pairs);
    t.layer = layer;
    t.head = task->kv_head;
    t.table = b->tables + b->table_at[task->sequence];
    t.window = m->layer[layer].window;
    float scale = LOG2_E / sqrtf((float)t.dim);
    if (later && later->rows == 1) ask_for_task(t, b, later);
    if (single)
        decode(&t, qkv + task->row * qkv_stride + first_head, scale, b->positions[task->row],
               out + task->row * out_stride + first_head);
    else
        prompt(&t, b, task, qkv + first_head, qkv_stride, scale, out + first_head, out_stride);
}
