/* A team of threads that runs one function together; see team.c. */
#ifndef ARGOSY_TEAM_H
#define ARGOSY_TEAM_H

#include "native.h"

typedef void (*work)(struct team *team, int thread, void *job);

/* Run `work(team, thread, job)` in every thread; returns when all have returned. */
void team_run(struct team *team, work work, void *job);
int team_threads(const struct team *team);
/* The team's own memory, at least that large and aligned to a cache line; NULL if there is none.
 * What a call wrote there is lost at the next call. */
void *team_memory(struct team *team, int64_t bytes);
/* Wait until every thread of the team has arrived. Writes before it are seen after it. */
void team_barrier(struct team *team);
/* Take the next `grain` of `total` pieces of work, as [*from, *to); 0 when none is left. The
 * counter starts over after `team_barrier`, so one loop of pieces lies between two barriers. */
int team_next(struct team *team, int64_t total, int64_t grain, int64_t *from, int64_t *to);

#endif
