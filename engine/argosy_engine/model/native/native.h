/* What Python and the C files agree on: the structures of `library.py`, field by field.
 *
 * Every library is built from the same sources for one instruction set; `compile.py` lists them.
 * All sizes are in elements, all activations float32. Types of weights and KV: see `enum type`. */
#ifndef ARGOSY_NATIVE_H
#define ARGOSY_NATIVE_H

#include <stddef.h>
#include <stdint.h>

#define API __attribute__((visibility("default")))

enum type { F32 = 0, BF16 = 1, INT8 = 2 }; /* INT8: matrices only */

/* A matrix [out, in] in the order of `argosy_pack`. */
struct matrix {
    int64_t out, in, type;
    const void *packed;
    const float *bias; /* [out], or NULL */
};

struct layer {
    const float *attention_norm; /* [hidden] */
    const float *q_norm;         /* [head_dim], or NULL */
    const float *k_norm;         /* [head_dim], or NULL */
    const float *mlp_norm;       /* [hidden] */
    int64_t window;              /* newest tokens that a token sees, itself included; 0: all */
    struct matrix qkv, out, gate_up, down;
};

struct model {
    int64_t layers, hidden, inner, heads, kv_heads, head_dim, vocab;
    int64_t block_size;
    int64_t type;            /* of the embedding and of the pool */
    double eps;              /* of the norms */
    const void *embedding;   /* [vocab, hidden] */
    const float *norm;       /* [hidden] */
    const float *rotations;  /* [positions, head_dim]: cosine and sine of each pair */
    const struct layer *layer;
    struct matrix head;
    void *pool;              /* [block][layer][K, V][kv head][offset][head dim] */
};

/* One step: N tokens of B sequences, of which S rows are sampled. */
struct batch {
    int64_t tokens, sequences, samples;
    const int32_t *ids, *positions; /* [N] */
    const int64_t *slots;           /* [N] block * block_size + offset */
    const int32_t *first;           /* [B + 1] each sequence's first token among the N, and N */
    const int32_t *lengths;         /* [B] KV length after this step */
    const int32_t *tables;          /* block ids of all sequences, one after the other */
    const int32_t *table_at;        /* [B] where each sequence's begin in `tables` */
    const int32_t *sampled;         /* [S] index among the N tokens */
    float *logits;                  /* [S, vocab], written */
};

/* How the token of a row is drawn; see `core.sampling.SamplingParams`. */
struct draw {
    double point; /* in [0, 1): where in the cumulative distribution */
    float temperature, top_p, min_p; /* temperature 0: the largest logit */
    int32_t top_k;                   /* 0: off */
};

struct team;

/* --- the ABI; every function but the constructors returns 0, or an errno --------------------- */

/* Sizes of matrix, layer, model, batch and draw, so that a library of another release is noticed. */
API void argosy_sizes(int64_t sizes[5]);
/* Ask the kernel for the registers that the library needs and a process does not have at first. */
API int argosy_permit(void);
/* Whether vectors multiply bfloat16 of weights and of a prompt's attention in pairs (1), or widen it
 * to float32 (0): always 0 where they have no instruction for pairs. AMX multiplies weights in tiles
 * in any case. `pairs` -1: what is faster on this CPU, measured at the first such call. Returns what
 * holds from now on; no step may run meanwhile. */
API int argosy_pairs(int pairs);
/* A team of `threads`, the caller included; its threads spin that often before they sleep. */
API struct team *argosy_team(int64_t threads, int64_t spins);
API void argosy_team_close(struct team *team);
API int64_t argosy_packed_bytes(int64_t out, int64_t in, int64_t type);
/* Put `weight` [out, in] of that type into the order in which products read it. For INT8 `weight`
 * is float32, and is rounded. */
API int argosy_pack(void *packed, const void *weight, int64_t out, int64_t in, int64_t type);
/* y = x · weightᵀ + bias for `rows` rows. */
API int argosy_product(struct team *team, const struct matrix *w, const float *x, int64_t rows,
                       float *y);
/* The logits of one step; writes K and V of its tokens into the pool. */
API int argosy_step(struct team *team, const struct model *model, const struct batch *batch);
/* One id for each row of `logits` [rows, vocab], -1 where no token can follow: a logit is NaN, the
 * largest is infinite, or all are excluded. `draws` [rows], or NULL: the largest logit of each. */
API int argosy_draw(struct team *team, const float *logits, int64_t rows, int64_t vocab,
                    const struct draw *draws, int32_t *ids);

#endif
