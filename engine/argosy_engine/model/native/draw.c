/* Logits to token ids: the largest of greedy rows, a draw of the others, each in O(vocabulary).
 *
 * A draw takes the token at a point of the cumulative distribution, as `runtime/torch/sampler.py`
 * does: without top-k and top-p in the order of ids, with them from the likeliest token down, equal
 * ones by id. Nothing is sorted. Weights e^x are at most 1, so their bits order them: the row is
 * counted into buckets of leading bits, and only the bucket where a cut or the point falls is
 * counted again by the next bits, until it has one value. Masses are added in double.
 *
 * A row is one thread's, so that its draw depends on no other row and on no number of threads. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>

#include "team.h"
#include "vectors.h"

#define BLOCK 256          /* tokens whose weights are one sum */
#define ONE_BITS 0x3f800000 /* of 1.0f, the largest weight */
#define LEVELS 3

static const int SHIFT[LEVELS] = {17, 8, 0};
static const int WIDTH[LEVELS] = {(ONE_BITS >> 17) + 1, 1 << 9, 1 << 8};

struct bucket {
    double mass;
    int64_t count;
};

/* One thread's memory for a row. */
struct row {
    float *weights;         /* [padded vocabulary]; those behind the vocabulary are 0 */
    double *blocks;         /* [blocks] sums of the weights */
    float *largest;         /* [blocks] the largest weight of each */
    int32_t *inside;        /* [padded vocabulary + 1] ids of one bucket */
    struct bucket *buckets; /* [WIDTH[0]] of the whole row */
    struct bucket *parts;   /* [WIDTH[1]] of one of its buckets */
    int64_t padded;
};

/* A place in the order from the heaviest token down. */
struct place {
    int32_t id;
    float weight;
    double through; /* the mass up to it, its own included */
};

/* What is looked for: the first place that has `count` tokens, or a mass, or more than a mass. */
struct goal {
    enum { COUNT, AT_LEAST, MORE_THAN } by;
    int64_t count;
    double mass;
};

struct job {
    const float *logits;
    int64_t rows, vocab;
    const struct draw *draws;
    int32_t *ids;
    char *memory;
    int64_t each; /* bytes of a thread */
};

/* A vector of a row that has `count` more logits; what lies behind them is -inf. */
INLINE vf load_end(const float *at, int64_t count) {
    if (count >= LANES) return load(at);
    vf value = all(-INFINITY);
    if (count > 0) memcpy(&value, at, (size_t)count * sizeof *at);
    return value;
}

INLINE float largest_lane(vf value) {
    float most = value[0];
    for (int lane = 1; lane < LANES; lane++)
        if (value[lane] > most) most = value[lane];
    return most;
}

/* Whether a lane of a comparison holds. */
INLINE int any(vi lanes) {
    int64_t parts[LANES / 2], found = 0;
    memcpy(parts, &lanes, sizeof parts);
    for (int part = 0; part < LANES / 2; part++) found |= parts[part];
    return found != 0;
}

/* The first of the largest, in `id`; 0 if a logit is NaN, or the largest is infinite. */
static int find_largest(const float *logits, int64_t vocab, int64_t *id) {
    vi odd = {0};
    float most = -INFINITY;
    int64_t block = 0;
    for (int64_t from = 0; from < vocab; from += BLOCK) {
        int64_t to = from + BLOCK < vocab ? from + BLOCK : vocab;
        vf larger_here = all(-INFINITY);
        for (int64_t at = from; at < to; at += LANES) {
            vf x = load_end(logits + at, to - at);
            odd |= x != x;
            larger_here = larger(x, larger_here);
        }
        float here = largest_lane(larger_here);
        if (here > most) {
            most = here;
            block = from;
        }
    }
    if (any(odd) || !isfinite(most)) return 0;
    while (logits[block] != most) block++;
    *id = block;
    return 1;
}

/* Weights e^((x - largest) / temperature), and the sum and the largest of each block; returns the
 * sum of all. */
static double weigh(struct row *row, const float *logits, int64_t vocab, float largest,
                    const struct draw *draw) {
    const vf top = all(largest), temperature = all(draw->temperature);
    /* Below -87 e^x is no normal number. */
    const vf least = all(fmaxf(-87.0f, logf(draw->min_p)));
    double total = 0.0;
    for (int64_t from = 0; from < row->padded; from += BLOCK) {
        vf mass = all(0), most = all(0);
        for (int64_t at = from; at < from + BLOCK; at += LANES) {
            vf x = (load_end(logits + at, vocab - at) - top) / temperature;
            vf weight = (vf)((vi)exponential(x) & (x >= least));
            store(row->weights + at, weight);
            mass += weight;
            most = larger(weight, most);
        }
        row->blocks[from / BLOCK] = (double)sum(mass);
        row->largest[from / BLOCK] = largest_lane(most);
        total += (double)sum(mass);
    }
    return total;
}

/* In the order of ids: the first token whose mass, with all before it, exceeds `target`. */
static int32_t in_order(const struct row *row, double target) {
    int64_t block = 0, last = -1;
    double before = 0.0;
    for (int64_t at = 0; at < row->padded / BLOCK; at++) {
        if (row->blocks[at] <= 0.0) continue;
        if (last >= 0) before += row->blocks[last];
        block = last = at;
        if (before + row->blocks[at] > target) break;
    }
    int64_t found = 0;
    for (int64_t at = block * BLOCK; at < (block + 1) * BLOCK; at++) {
        if (row->weights[at] <= 0.0f) continue;
        found = at;
        before += row->weights[at];
        if (before > target) break;
    }
    return (int32_t)found;
}

/* Of weights in [0, 1]: the larger the weight, the smaller the key. */
INLINE vi keys_of(const float *weights) {
    vi key = ONE_BITS - (vi)load(weights);
    return key & (key > 0); /* a rounded exponential may be above 1 */
}

INLINE int32_t key_of(float weight) {
    int32_t bits;
    memcpy(&bits, &weight, sizeof bits);
    return bits < ONE_BITS ? ONE_BITS - bits : 0;
}

/* Count the weights by their leading bits; blocks and vectors in which all are as light as `least`
 * may be left out. */
static void count(struct row *row, float least) {
    memset(row->buckets, 0, (size_t)WIDTH[0] * sizeof *row->buckets);
    for (int64_t from = 0; from < row->padded; from += BLOCK) {
        if (row->largest[from / BLOCK] <= least) continue;
        for (int64_t at = from; at < from + BLOCK; at += LANES) {
            if (!any(load(row->weights + at) > all(least))) continue;
            vi place = keys_of(row->weights + at) >> SHIFT[0];
            UNROLL
            for (int lane = 0; lane < LANES; lane++) {
                struct bucket *bucket = &row->buckets[place[lane]];
                bucket->mass += (double)row->weights[at + lane];
                bucket->count++;
            }
        }
    }
}

static int reaches(const struct goal *goal, int64_t count, double mass) {
    if (goal->by == COUNT) return count >= goal->count;
    return goal->by == AT_LEAST ? mass >= goal->mass : mass > goal->mass;
}

/* The bucket in which `goal` is reached, else the last one; `count` and `mass` grow by those before
 * it. */
static int choose(const struct bucket *buckets, int width, const struct goal *goal, int64_t *count,
                  double *mass) {
    int last = -1;
    for (int at = 0; at < width; at++) {
        if (!buckets[at].count) continue;
        if (last >= 0) {
            *count += buckets[last].count;
            *mass += buckets[last].mass;
        }
        last = at;
        if (reaches(goal, *count + buckets[at].count, *mass + buckets[at].mass)) break;
    }
    return last;
}

/* The ids, in `inside`, of the tokens whose key begins with `bits`; returns how many. */
static int64_t gather(struct row *row, int32_t bits) {
    int64_t found = 0;
    for (int64_t at = 0; at < row->padded; at += LANES) {
        vi match = keys_of(row->weights + at) >> SHIFT[0] == bits;
        if (!any(match)) continue;
        for (int lane = 0; lane < LANES; lane++) {
            row->inside[found] = (int32_t)(at + lane);
            found -= match[lane];
        }
    }
    return found;
}

/* The same of the first `count` of those ids. */
static int64_t narrow_down(struct row *row, int64_t count, int32_t bits, int shift) {
    int64_t kept = 0;
    for (int64_t at = 0; at < count; at++) {
        int32_t id = row->inside[at];
        row->inside[kept] = id;
        kept += key_of(row->weights[id]) >> shift == bits;
    }
    return kept;
}

/* The first place that reaches `goal`; the last one if none does. */
static struct place find(struct row *row, const struct goal *goal) {
    int64_t before = 0;
    double mass = 0.0;
    /* The last bucket has weights of 0, which are never drawn. */
    int32_t bits = choose(row->buckets, WIDTH[0] - 1, goal, &before, &mass);
    int64_t count = gather(row, bits);
    for (int level = 1; level < LEVELS; level++) {
        memset(row->parts, 0, (size_t)WIDTH[level] * sizeof *row->parts);
        for (int64_t at = 0; at < count; at++) {
            float weight = row->weights[row->inside[at]];
            int32_t place = key_of(weight) >> SHIFT[level] & (WIDTH[level] - 1);
            row->parts[place].mass += (double)weight;
            row->parts[place].count++;
        }
        int32_t part = choose(row->parts, WIDTH[level], goal, &before, &mass);
        bits = bits << (SHIFT[level - 1] - SHIFT[level]) | part;
        count = narrow_down(row, count, bits, SHIFT[level]);
    }
    int64_t rank = 0; /* those inside are equal now, and in the order of their ids */
    float weight = row->weights[row->inside[0]];
    for (mass += weight; rank < count - 1 && !reaches(goal, before + rank + 1, mass); rank++)
        mass += weight;
    return (struct place){.id = row->inside[rank], .weight = weight, .through = mass};
}

static int is_before(struct place a, struct place b) {
    return a.weight > b.weight || (a.weight == b.weight && a.id < b.id);
}

static int descending(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return (x < y) - (x > y);
}

/* A weight below the `top_k` largest ones: so many blocks have a token that is heavier. */
static float below_top_k(struct row *row, int64_t top_k) {
    int64_t blocks = row->padded / BLOCK;
    if (top_k > blocks) return 0.0f;
    float *sorted = (float *)row->inside;
    memcpy(sorted, row->largest, (size_t)blocks * sizeof *sorted);
    qsort(sorted, (size_t)blocks, sizeof *sorted, descending);
    return nextafterf(sorted[top_k - 1], 0.0f);
}

/* As vLLM orders the filters: temperature and min-p are in the weights; top-k, then top-p. */
static int32_t in_descent(struct row *row, int64_t vocab, double total, const struct draw *draw) {
    int limited = draw->top_k > 0 && draw->top_k < vocab, narrowed = draw->top_p < 1.0f;
    /* All tokens as light as that hold less than top_p leaves out: the cut is above them. */
    float light = (float)((1.0 - (double)draw->top_p) * total / (double)vocab / 2.0);
    count(row, limited ? below_top_k(row, draw->top_k) : light);
    struct place last = {0};
    if (limited) {
        last = find(row, &(struct goal){.by = COUNT, .count = draw->top_k});
        total = last.through;
    }
    if (narrowed) {
        struct goal enough = {.by = AT_LEAST, .mass = total * (double)draw->top_p};
        struct place cut = find(row, &enough);
        if (!limited || is_before(cut, last)) last = cut;
    }
    struct goal point = {.by = MORE_THAN, .mass = draw->point * last.through};
    struct place drawn = find(row, &point);
    return is_before(drawn, last) ? drawn.id : last.id; /* a rounded sum may pass the cut */
}

static int32_t draw_row(const struct job *job, struct row *row, int64_t index) {
    const float *logits = job->logits + index * job->vocab;
    const struct draw *draw = job->draws ? &job->draws[index] : NULL;
    int64_t vocab = job->vocab, largest;
    if (!find_largest(logits, vocab, &largest)) return -1;
    if (!draw || draw->temperature <= 0.0f) return (int32_t)largest;
    double total = weigh(row, logits, vocab, logits[largest], draw);
    if (draw->top_p >= 1.0f && (draw->top_k <= 0 || draw->top_k >= vocab))
        return in_order(row, draw->point * total);
    return in_descent(row, vocab, total, draw);
}

/* --- memory and threads ----------------------------------------------------------------------- */

/* Cuts a thread's memory; with `memory` NULL it only adds up. */
static int64_t lay_out(struct row *row, char *memory, int64_t vocab) {
    int64_t blocks = (vocab + BLOCK - 1) / BLOCK, used = 0;
    row->padded = blocks * BLOCK;
    void **parts[] = {(void **)&row->weights, (void **)&row->inside,  (void **)&row->blocks,
                      (void **)&row->largest, (void **)&row->buckets, (void **)&row->parts};
    int64_t sizes[] = {row->padded * 4, (row->padded + 1) * 4, blocks * 8, blocks * 4,
                       WIDTH[0] * (int64_t)sizeof(struct bucket),
                       WIDTH[1] * (int64_t)sizeof(struct bucket)};
    for (int part = 0; part < 6; part++) {
        *parts[part] = memory ? memory + used : NULL;
        used += (sizes[part] + 63) / 64 * 64;
    }
    return used;
}

static void run(struct team *team, int thread, void *shared) {
    const struct job *job = shared;
    struct row row;
    lay_out(&row, job->memory ? job->memory + thread * job->each : NULL, job->vocab);
    int64_t from, to;
    while (team_next(team, job->rows, 1, &from, &to))
        for (int64_t index = from; index < to; index++)
            job->ids[index] = draw_row(job, &row, index);
}

int argosy_draw(struct team *team, const float *logits, int64_t rows, int64_t vocab,
                const struct draw *draws, int32_t *ids) {
    struct row row;
    struct job job = {.logits = logits, .rows = rows, .vocab = vocab, .draws = draws, .ids = ids};
    job.each = lay_out(&row, NULL, vocab);
    if (draws && !(job.memory = team_memory(team, job.each * team_threads(team)))) return ENOMEM;
    team_run(team, run, &job);
    return 0;
}
