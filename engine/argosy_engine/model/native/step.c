/* One step of the decoder: every phase of every layer in one parallel region.
 *
 * The residual stream stays in float32, also where weights and KV are bfloat16. Phases, with a
 * barrier behind each: norm of rows · q, k, v · norm of heads, rotation, KV write · attention ·
 * output product, added · norm · gate and up · SiLU · down product, added. At last the norm and the
 * head of the sampled rows. */
#include <errno.h>
#include <math.h>

#include "attention.h"
#include "products.h"
#include "team.h"

struct step {
    const struct model *m;
    const struct batch *b;
    float *hidden;         /* [N, hidden] */
    float *x;              /* [N, x_stride] input of the next product */
    uint16_t *narrow;      /* [N, x_stride] the same, where the product reads another form */
    struct group *groups;  /* [N, groups] of that, for INT8 */
    float *fused;          /* [N, fused_stride] q, k, v, or gate and up */
    int64_t x_stride, fused_stride, group_stride;
    struct task *tasks;
    int64_t task_count;
    float *scratch;        /* [threads, scratch_size] */
    int64_t scratch_size;
};

static int64_t qkv_width(const struct model *m) {
    return (m->heads + 2 * m->kv_heads) * m->head_dim;
}

static int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

/* y = x / √(mean x² + eps) · weight, as Llama's RMSNorm. */
static void norm(float *y, const float *x, const float *weight, int64_t size, double eps) {
    vf squares = all(0);
    int64_t k = 0;
    for (; k + LANES <= size; k += LANES) squares += load(x + k) * load(x + k);
    float total = sum(squares);
    for (; k < size; k++) total += x[k] * x[k];
    float scale = (float)(1.0 / sqrt((double)total / (double)size + eps));
    for (k = 0; k < size; k++) y[k] = x[k] * scale * weight[k];
}

/* A row of `x` is complete: give products that read another form theirs. */
static void finish_row(const struct step *s, int64_t row, const struct matrix *next) {
    if (reads_narrow(next))
        narrow_row(s->narrow + row * s->x_stride, s->groups + row * s->group_stride,
                   s->x + row * s->x_stride, next->in, next->type);
}

static void embed(const struct step *s, int64_t row) {
    const struct model *m = s->m;
    int64_t at = s->b->ids[row] * m->hidden;
    float *to = s->hidden + row * m->hidden;
    if (m->type == F32)
        memcpy(to, (const float *)m->embedding + at, (size_t)m->hidden * 4);
    else
        for (int64_t k = 0; k < m->hidden; k++)
            to[k] = widen(((const uint16_t *)m->embedding)[at + k]);
}

static void turn(float *head, const float *rotation, int64_t dim) {
    for (int64_t d = 0; d < dim; d += 2) {
        float x = head[d], y = head[d + 1], c = rotation[d], i = rotation[d + 1];
        head[d] = x * c - y * i;
        head[d + 1] = x * i + y * c;
    }
}

static void turn_and_write(const struct step *s, const struct layer *l, int64_t layer,
                           int64_t row) {
    const struct model *m = s->m;
    float *qkv = s->fused + row * s->fused_stride;
    const float *rotation = m->rotations + s->b->positions[row] * m->head_dim;
    for (int64_t head = 0; head < m->heads + m->kv_heads; head++) {
        float *at = qkv + head * m->head_dim;
        const float *weight = head < m->heads ? l->q_norm : l->k_norm;
        if (weight) norm(at, at, weight, m->head_dim, m->eps);
        turn(at, rotation, m->head_dim);
    }
    write_kv(m, layer, s->b->slots[row], qkv);
}

/* x = gate / (1 + e^-gate) · up; e^-|gate| keeps the exponential's argument negative. */
static void gated(const struct step *s, const struct layer *l, int64_t row) {
    int64_t inner = s->m->inner, k = 0;
    const float *gate = s->fused + row * s->fused_stride, *up = gate + inner;
    float *x = s->x + row * s->x_stride;
    for (; k + LANES <= inner; k += LANES) {
        vf g = load(gate + k), e = exponential(larger(g, -g) * -1.0f);
        vi positive = g > all(0);
        vf top = (vf)(((vi)all(1) & positive) | ((vi)e & ~positive));
        store(x + k, g * (top / (e + 1.0f)) * load(up + k));
    }
    for (; k < inner; k++) x[k] = gate[k] / (1.0f + expf(-gate[k])) * up[k];
    finish_row(s, row, &l->down);
}

/* --- phases: each ends at a barrier ---------------------------------------------------------- */

#define EACH_ROW(team, count, row, body)                                                \
    do {                                                                                \
        int64_t grain_ = most(1, (count) / (4 * team_threads(team))), from_, to_;       \
        while (team_next(team, count, grain_, &from_, &to_))                            \
            for (int64_t row = from_; row < to_; row++) { body; }                       \
        team_barrier(team);                                                             \
    } while (0)

static void multiply(struct team *team, const struct step *s, const struct matrix *w, int64_t rows,
                     enum start start, float *y, int64_t y_stride) {
    struct rows input = {
        .x = s->x,
        .narrow = s->narrow,
        .groups = s->groups,
        .count = rows,
        .stride = s->x_stride,
        .narrow_stride = s->x_stride,
        .group_stride = s->group_stride,
    };
    int64_t panels = panels_of(w->out), from, to;
    /* Two panels at least where few rows leave room for two in a tile. */
    int64_t grain = most(rows <= 6 ? 2 : 1, panels / (8 * team_threads(team)) / 2 * 2);
    int64_t of_others = grain * (team_threads(team) - 1);
    while (team_next(team, panels, grain, &from, &to))
        product(w, &input, from, to, to + of_others, start, y, y_stride);
    team_barrier(team);
}

static void norm_row(const struct step *s, int64_t row, int64_t of, const float *weight,
                     const struct matrix *next) {
    const struct model *m = s->m;
    norm(s->x + row * s->x_stride, s->hidden + of * m->hidden, weight, m->hidden, m->eps);
    finish_row(s, row, next);
}

static void attention_phase(struct team *team, int thread, const struct step *s, int64_t layer) {
    int64_t from, to;
    while (team_next(team, s->task_count, 1, &from, &to)) {
        int64_t later = from + team_threads(team);
        attend(s->m, s->b, layer, &s->tasks[from],
               later < s->task_count ? &s->tasks[later] : NULL, s->fused, s->fused_stride, s->x,
               s->x_stride, s->scratch + thread * s->scratch_size);
    }
    team_barrier(team);
}

static void run_layer(struct team *team, int thread, const struct step *s, int64_t index) {
    const struct model *m = s->m;
    const struct layer *l = &m->layer[index];
    int64_t tokens = s->b->tokens;
    EACH_ROW(team, tokens, row, {
        if (index == 0) embed(s, row);
        norm_row(s, row, row, l->attention_norm, &l->qkv);
    });
    multiply(team, s, &l->qkv, tokens, BIAS, s->fused, s->fused_stride);
    EACH_ROW(team, tokens, row, turn_and_write(s, l, index, row));
    attention_phase(team, thread, s, index);
    if (reads_narrow(&l->out)) EACH_ROW(team, tokens, row, finish_row(s, row, &l->out));
    multiply(team, s, &l->out, tokens, ADD, s->hidden, m->hidden);
    EACH_ROW(team, tokens, row, norm_row(s, row, row, l->mlp_norm, &l->gate_up));
    multiply(team, s, &l->gate_up, tokens, BIAS, s->fused, s->fused_stride);
    EACH_ROW(team, tokens, row, gated(s, l, row));
    multiply(team, s, &l->down, tokens, ADD, s->hidden, m->hidden);
}

static void run(struct team *team, int thread, void *job) {
    const struct step *s = job;
    const struct model *m = s->m;
    for (int64_t layer = 0; layer < m->layers; layer++) run_layer(team, thread, s, layer);
    EACH_ROW(team, s->b->samples, row, norm_row(s, row, s->b->sampled[row], m->norm, &m->head));
    multiply(team, s, &m->head, s->b->samples, BIAS, s->b->logits, m->vocab);
}

/* --- the ABI ---------------------------------------------------------------------------------- */

void argosy_sizes(int64_t sizes[5]) {
    sizes[0] = sizeof(struct matrix);
    sizes[1] = sizeof(struct layer);
    sizes[2] = sizeof(struct model);
    sizes[3] = sizeof(struct batch);
    sizes[4] = sizeof(struct draw);
}

/* Cuts a piece of memory into aligned parts; with `at` NULL it only adds up. */
static void *cut(char *base, int64_t *used, int64_t bytes) {
    void *part = base ? base + *used : NULL;
    *used += (bytes + 63) / 64 * 64;
    return part;
}

static int64_t lay_out(struct step *s, char *base, int threads) {
    const struct model *m = s->m;
    int64_t tokens = s->b->tokens, used = 0;
    int64_t rows = most(tokens, s->b->samples);
    s->x_stride = padded(most(m->hidden, most(m->heads * m->head_dim, m->inner)));
    s->group_stride = groups_of(s->x_stride);
    s->fused_stride = most(qkv_width(m), 2 * m->inner);
    s->scratch_size = (attention_scratch(m) + 15) / 16 * 16;
    s->hidden = cut(base, &used, tokens * m->hidden * 4);
    s->x = cut(base, &used, rows * s->x_stride * 4);
    s->narrow = cut(base, &used, rows * s->x_stride * 2);
    s->groups = cut(base, &used, rows * s->group_stride * (int64_t)sizeof *s->groups);
    s->fused = cut(base, &used, tokens * s->fused_stride * 4);
    s->scratch = cut(base, &used, threads * s->scratch_size * 4);
    s->tasks = cut(base, &used, tasks_at_most(m, s->b) * (int64_t)sizeof *s->tasks);
    return used;
}

int argosy_step(struct team *team, const struct model *model, const struct batch *batch) {
    struct step step = {.m = model, .b = batch};
    char *memory = team_memory(team, lay_out(&step, NULL, team_threads(team)));
    if (!memory) return ENOMEM;
    lay_out(&step, memory, team_threads(team));
    step.task_count = make_tasks(model, batch, step.tasks);
    team_run(team, run, &step);
    return 0;
}

struct one_product {
    struct step s;
    const struct matrix *w;
    int64_t rows;
    float *y;
};

static void run_product(struct team *team, int thread, void *job) {
    (void)thread;
    const struct one_product *p = job;
    EACH_ROW(team, p->rows, row, finish_row(&p->s, row, p->w));
    multiply(team, &p->s, p->w, p->rows, BIAS, p->y, p->w->out);
}

int argosy_product(struct team *team, const struct matrix *w, const float *x, int64_t rows,
                   float *y) {
    int64_t stride = padded(w->in), used = 0;
    int64_t groups = groups_of(stride);
    char *memory = team_memory(team, rows * (stride * 6 + groups * 8) + 192);
    if (!memory) return ENOMEM;
    struct one_product job = {.w = w, .rows = rows, .y = y};
    job.s.x_stride = stride;
    job.s.group_stride = groups;
    job.s.x = cut(memory, &used, rows * stride * 4);
    job.s.narrow = cut(memory, &used, rows * stride * 2);
    job.s.groups = cut(memory, &used, rows * groups * (int64_t)sizeof *job.s.groups);
    for (int64_t row = 0; row < rows; row++)
        memcpy(job.s.x + row * stride, x + row * w->in, (size_t)w->in * 4);
    team_run(team, run_product, &job);
    return 0;
}
