/* Attention over the paged pool; see attention.c. */
#ifndef ARGOSY_ATTENTION_H
#define ARGOSY_ATTENTION_H

#include "native.h"

/* Rows of one sequence that attend to one KV head: what one thread computes at a time. */
struct task {
    int32_t sequence, kv_head;
    int32_t row, rows; /* among the step's N tokens */
};

/* How many tasks a batch has at most, and the tasks, costly ones first; returns their count. */
int64_t tasks_at_most(const struct model *model, const struct batch *batch);
int64_t make_tasks(const struct model *model, const struct batch *batch, struct task *tasks);

/* float32 numbers that a thread needs while it attends. */
int64_t attention_scratch(const struct model *model);

/* Store K and V of token `row` in the pool; `qkv` is its row of the fused product. */
void write_kv(const struct model *model, int64_t layer, int64_t slot, const float *qkv);

/* softmax(q · Kᵀ / √d) · V for the rows of a task. `qkv` [N, qkv_stride], `out` [N, out_stride].
 * `later` is the task that this thread is likely to take next, or NULL: its keys are asked for. */
void attend(const struct model *model, const struct batch *batch, int64_t layer,
            const struct task *task, const struct task *later, const float *qkv,
            int64_t qkv_stride, float *out, int64_t out_stride, float *scratch);

#endif
