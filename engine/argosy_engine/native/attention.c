/* Attention over the paged pool: single rows of decodes, and tiles of rows of prompts.
 *
 * The query heads of a group share one KV head, so they are rows of one product with it. Keys come
 * in tiles of KEYS; a running maximum and sum (online softmax) make one pass over them enough.
 * Scores, weights and sums are float32 whatever the pool's type is.
 *
 *   s = q · k / √d          m' = max(m, max s)       p = e^(s - m')
 *   l' = l · e^(m - m') + Σ p                        o' = o · e^(m - m') + Σ p · v
 */
#include "attention.h"

#include <math.h>

#include "products.h"

#define KEYS 64       /* keys of a tile; a multiple of PANEL */
#define TILE_ROWS 96  /* query rows of a tile of a prompt, heads of the group included */

INLINE int64_t up(int64_t value, int64_t step) { return (value + step - 1) / step * step; }

/* A tile's state. Rows are (token, head of the group), q's and o's `depth` apart. */
struct tile {
    int64_t rows, depth, dim;
    float *q, *scores, *o, *most, *total, *keys, *values;
};

static int64_t group_of(const struct model *m) { return m->heads / m->kv_heads; }

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
                        .rows = (int32_t)(rows - at < tile ? rows - at : tile),
                    };
        }
    return count;
}

int64_t attention_scratch(const struct model *m) {
    int64_t rows = group_of(m) > TILE_ROWS ? group_of(m) : TILE_ROWS;
    int64_t depth = up(m->head_dim, PANEL);
    return rows * (2 * depth + KEYS + 2) + 2 * depth * KEYS;
}

static struct tile tile_in(const struct model *m, float *scratch, int64_t rows) {
    struct tile t = {.rows = rows, .dim = m->head_dim, .depth = up(m->head_dim, PANEL)};
    t.q = scratch;
    t.o = t.q + rows * t.depth;
    t.scores = t.o + rows * t.depth;
    t.keys = t.scores + rows * KEYS;
    t.values = t.keys + t.depth * KEYS;
    t.most = t.values + t.depth * KEYS;
    t.total = t.most + rows;
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

/* Scores to weights: those from `first` to `seen` of a row's `count` scores, the rest becomes 0. */
static void weigh(struct tile *t, int64_t row, int64_t first, int64_t seen, int64_t count,
                  float scale) {
    float *s = t->scores + row * KEYS, *o = t->o + row * t->depth;
    if (seen <= 0 || first >= seen) {
        memset(s, 0, (size_t)count * 4);
        return;
    }
    for (int64_t k = 0; k < first; k++) s[k] = -INFINITY;
    int64_t width = up(seen, LANES);
    for (int64_t k = seen; k < width; k++) s[k] = -INFINITY;
    vf top = load(s);
    for (int64_t k = LANES; k < width; k += LANES) top = larger(top, load(s + k));
    float most = top[0];
    for (int lane = 1; lane < LANES; lane++) most = top[lane] > most ? top[lane] : most;
    most *= scale;
    if (most > t->most[row]) {
        float shrink = expf(t->most[row] - most);
        t->most[row] = most;
        t->total[row] *= shrink;
        for (int64_t d = 0; d < t->depth; d += LANES) store(o + d, load(o + d) * shrink);
    }
    vf sums = all(0), base = all(t->most[row]);
    for (int64_t k = 0; k < width; k += LANES) {
        vf p = exponential(load(s + k) * scale - base);
        store(s + k, p);
        sums += p;
    }
    t->total[row] += sum(sums);
    for (int64_t k = seen; k < count; k++) s[k] = 0;
}

/* Keys [from, from + count) of the sequence, transposed to [dim][KEYS], and values [KEYS][depth]. */
static void gather(const struct model *m, const int32_t *table, int64_t layer, int64_t head,
                   int64_t from, int64_t count, struct tile *t) {
    int64_t dim = m->head_dim, size = m->block_size;
    for (int64_t key = 0; key < count; key++) {
        int64_t block = table[(from + key) / size], offset = (from + key) % size * dim;
        int64_t k = pool_at(m, block, layer, 0, head) + offset;
        int64_t v = pool_at(m, block, layer, 1, head) + offset;
        float *value = t->values + key * t->depth;
        if (m->type == F32) {
            const float *pool = m->pool;
            for (int64_t d = 0; d < dim; d++) t->keys[d * KEYS + key] = pool[k + d];
            memcpy(value, pool + v, (size_t)dim * 4);
        } else {
            const uint16_t *pool = m->pool;
            for (int64_t d = 0; d < dim; d++) t->keys[d * KEYS + key] = widen(pool[k + d]);
            for (int64_t d = 0; d < dim; d++) value[d] = widen(pool[v + d]);
        }
        for (int64_t d = dim; d < t->depth; d++) value[d] = 0;
    }
}

static void tile_of_keys(struct tile *t, int64_t count) {
    memset(t->scores, 0, (size_t)(t->rows * KEYS) * 4);
    for (int64_t key = 0; key < count; key += PANEL)
        small_product(t->rows, t->dim, t->q, t->depth, t->keys + key, KEYS, F32, t->scores + key,
                      KEYS);
}

INLINE float dot(const float *q, const void *pool, int64_t at, int64_t dim, int64_t type) {
    vf a = all(0), b = all(0);
    for (int64_t d = 0; d < dim; d += PANEL) {
        vf low = type == F32 ? load((const float *)pool + at + d)
                             : load_bf16((const uint16_t *)pool + at + d);
        vf high = type == F32 ? load((const float *)pool + at + d + LANES)
                              : load_bf16((const uint16_t *)pool + at + d + LANES);
        a += load(q + d) * low;
        b += load(q + d + LANES) * high;
    }
    return sum(a + b);
}

/* One row's tile, straight from the pool; `dim` is a multiple of PANEL. */
static void single_row(const struct model *m, const int32_t *table, int64_t layer, int64_t head,
                       int64_t from, int64_t count, struct tile *t, float scale) {
    int64_t size = m->block_size, dim = t->dim, element = m->type == F32 ? 4 : 2;
    for (int64_t key = 0; key < count; key++) {
        int64_t at = pool_at(m, table[(from + key) / size], layer, 0, head);
        at += (from + key) % size * dim;
        for (int64_t r = 0; r < t->rows; r++) {
            const float *q = t->q + r * dim;
            t->scores[r * KEYS + key] = m->type == F32 ? dot(q, m->pool, at, dim, F32)
                                                       : dot(q, m->pool, at, dim, BF16);
        }
    }
    for (int64_t r = 0; r < t->rows; r++) weigh(t, r, 0, count, count, scale);
    for (int64_t key = 0; key < count;) {
        int64_t offset = (from + key) % size;
        int64_t run = size - offset < count - key ? size - offset : count - key;
        int64_t at = pool_at(m, table[(from + key) / size], layer, 1, head) + offset * dim;
        const char *v = (const char *)m->pool + at * element;
        for (int64_t d = 0; d < dim; d += PANEL)
            small_product(t->rows, run, t->scores + key, KEYS, v + d * element, dim, m->type,
                          t->o + d, dim);
        key += run;
    }
}

void attend(const struct model *m, const struct batch *b, int64_t layer, const struct task *task,
            const float *qkv, int64_t qkv_stride, float *out, int64_t out_stride, float *scratch) {
    int64_t group = group_of(m), dim = m->head_dim;
    struct tile t = tile_in(m, scratch, task->rows * group);
    const int32_t *table = b->tables + b->table_at[task->sequence];
    float scale = 1.0f / sqrtf((float)dim);
    for (int64_t r = 0; r < t.rows; r++) {
        const float *q = qkv + (task->row + r / group) * qkv_stride;
        memcpy(t.q + r * t.depth, q + (task->kv_head * group + r % group) * dim, (size_t)dim * 4);
        t.most[r] = -INFINITY;
        t.total[r] = 0;
    }
    memset(t.o, 0, (size_t)(t.rows * t.depth) * 4);
    int64_t last = b->positions[task->row + task->rows - 1], window = m->layer[layer].window;
    int64_t begin = window ? b->positions[task->row] - window + 1 : 0; /* of the first row */
    int direct = task->rows == 1 && dim % PANEL == 0;
    for (int64_t from = begin > 0 ? begin : 0; from <= last; from += KEYS) {
        int64_t count = last + 1 - from < KEYS ? last + 1 - from : KEYS;
        if (direct) {
            single_row(m, table, layer, task->kv_head, from, count, &t, scale);
            continue;
        }
        gather(m, table, layer, task->kv_head, from, count, &t);
        tile_of_keys(&t, count);
        for (int64_t r = 0; r < t.rows; r++) {
            int64_t seen = b->positions[task->row + r / group] + 1 - from;
            int64_t first = window ? seen - window : 0;
            weigh(&t, r, first, seen < count ? seen : count, count, scale);
        }
        for (int64_t d = 0; d < t.depth; d += PANEL)
            small_product(t.rows, count, t.scores, KEYS, t.values + d, t.depth, F32, t.o + d,
                          t.depth);
    }
    for (int64_t r = 0; r < t.rows; r++) {
        float *to = out + (task->row + r / group) * out_stride +
                    (task->kv_head * group + r % group) * dim;
        float share = 1.0f / t.total[r];
        for (int64_t d = 0; d < dim; d++) to[d] = t.o[r * t.depth + d] * share;
    }
}
