/* The threads that compute a step: they spin between its phases, and sleep when none comes.
 *
 * OpenMP opens a parallel region for each operator; here one region lasts a whole step, and a phase
 * ends at a barrier. Pieces of work are taken from a counter, so that a thread whose core another
 * process has taken does less. */
#define _GNU_SOURCE
#include "team.h"

#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined(__x86_64__)
#define PAUSE() __builtin_ia32_pause()
#else
#define PAUSE() __asm__ volatile("" ::: "memory")
#endif

/* Counts up; threads wait until it leaves the value that they saw. Each on a cache line of its own,
 * because other threads write beside it while one spins on it. */
struct signal_count {
    _Alignas(64) atomic_uint value;
    atomic_uint sleepers;
};

struct team {
    struct signal_count jobs;    /* one up for each call of `team_run` */
    struct signal_count phases;  /* one up for each barrier that all have reached */
    _Alignas(64) atomic_uint arrived;
    _Alignas(64) atomic_llong taken;
    int threads, closing;
    int64_t spins;
    work work;
    void *job;
    pthread_t *ids;
    atomic_int numbers;
    void *memory;
    int64_t memory_bytes;
};

static void await_change(struct signal_count *count, unsigned seen, int64_t spins) {
    for (int64_t spin = 0; spin < spins; spin++) {
        if (atomic_load_explicit(&count->value, memory_order_acquire) != seen) return;
        PAUSE();
    }
    atomic_fetch_add(&count->sleepers, 1);
    while (atomic_load(&count->value) == seen)
        syscall(SYS_futex, &count->value, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
    atomic_fetch_sub(&count->sleepers, 1);
}

static void raise_count(struct signal_count *count) {
    atomic_fetch_add(&count->value, 1);
    if (atomic_load(&count->sleepers))
        syscall(SYS_futex, &count->value, FUTEX_WAKE_PRIVATE, 1 << 30, NULL, NULL, 0);
}

void team_barrier(struct team *team) {
    unsigned phase = atomic_load(&team->phases.value);
    if (atomic_fetch_add(&team->arrived, 1) + 1 == (unsigned)team->threads) {
        atomic_store(&team->arrived, 0);
        atomic_store(&team->taken, 0);
        raise_count(&team->phases);
    } else {
        await_change(&team->phases, phase, team->spins);
    }
}

int team_next(struct team *team, int64_t total, int64_t grain, int64_t *from, int64_t *to) {
    int64_t at = atomic_fetch_add_explicit(&team->taken, grain, memory_order_relaxed);
    if (at >= total) return 0;
    *from = at;
    *to = at + grain < total ? at + grain : total;
    return 1;
}

int team_threads(const struct team *team) { return team->threads; }

static void *member(void *argument) {
    struct team *team = argument;
    int number = atomic_fetch_add(&team->numbers, 1) + 1;
    for (unsigned seen = 0;; seen++) {
        await_change(&team->jobs, seen, team->spins);
        if (team->closing) return NULL;
        team->work(team, number, team->job);
        team_barrier(team);
    }
}

void team_run(struct team *team, work work, void *job) {
    team->work = work;
    team->job = job;
    raise_count(&team->jobs);
    work(team, 0, job);
    team_barrier(team);
}

static void join(struct team *team, int members) {
    team->closing = 1;
    raise_count(&team->jobs);
    for (int index = 0; index < members; index++) pthread_join(team->ids[index], NULL);
    free(team->ids);
    free(team->memory);
    free(team);
}

void *team_memory(struct team *team, int64_t bytes) {
    if (bytes > team->memory_bytes) {
        free(team->memory);
        team->memory_bytes = (bytes + 4095) / 4096 * 4096;
        team->memory = aligned_alloc(4096, (size_t)team->memory_bytes);
        if (!team->memory) team->memory_bytes = 0;
    }
    return team->memory;
}

struct team *argosy_team(int64_t threads, int64_t spins) {
    struct team *team = aligned_alloc(64, sizeof *team);
    if (!team) return NULL;
    *team = (struct team){.threads = (int)threads, .spins = spins};
    team->ids = calloc((size_t)threads, sizeof *team->ids);
    if (!team->ids) {
        free(team);
        return NULL;
    }
    /* Signals are Python's: its main thread must be the one that they interrupt. */
    sigset_t every, before;
    sigfillset(&every);
    pthread_sigmask(SIG_SETMASK, &every, &before);
    int made = 0;
    while (made < threads - 1 && !pthread_create(&team->ids[made], NULL, member, team)) made++;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (made < threads - 1) {
        join(team, made);
        return NULL;
    }
    return team;
}

void argosy_team_close(struct team *team) { join(team, team->threads - 1); }
