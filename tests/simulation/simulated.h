/* SPDX-License-Identifier: Apache-2.0 */
/* A whole cluster in one thread, for tests/simulation/simulation.h: the real
 * cores of ps, worker and chief joined by a simulated network under virtual
 * time. Weights are symbols: numbers in which every contribution leaves its
 * mark. Units are the plan's blocks and behind them the partitions of a table,
 * each of which has one symbol for all its rows. This header is the state that
 * the simulated roles share. */
#ifndef CAPSTAN_SIMULATED_H
#define CAPSTAN_SIMULATED_H

#include "chief/control/adoption.h"
#include "chief/control/membership.h"
#include "chief/control/roster.h"
#include "chief/snapshot/buddies.h"
#include "chief/snapshot/snapshot_round.h"
#include "core/base/time.h"
#include "core/store/copies.h"
#include "core/tensor/layout.h"
#include "core/tensor/philox.h"
#include "proto/messages/channel.h"
#include "proto/plan/run_schedule.h"
#include "ps/consistency/update_core.h"
#include "tests/simulation/simulation.h"
#include "worker/exchange/client/window.h"

#include <stdbool.h>
#include <stdint.h>

enum {
    SIMULATED_RANKS = 4,
    SIMULATED_PS = 3,
    SIMULATED_PARAMETERS = 4,
    SIMULATED_BLOCKS = 2 * SIMULATED_PARAMETERS,
    SIMULATED_PARTITIONS = 4,
    SIMULATED_UNITS = SIMULATED_BLOCKS + SIMULATED_PARTITIONS,
    SIMULATED_WINDOW = SIMULATED_UNITS + SIMULATED_PARTITIONS,
    SIMULATED_PROCESSES = 1 + SIMULATED_PS + SIMULATED_RANKS,
    SIMULATED_CLOCKS = 128,
    SIMULATED_LIVES = 256,
    SIMULATED_SNAPSHOTS = 16,
    SIMULATED_CUTS = 64,
    SIMULATED_PARTS = 2048,
    SIMULATED_RUNS = 1024 + SIMULATED_LIVES,
};

#define SIMULATED_REQUESTED (UINT64_C(1) << 63) /* ids of cuts not planned */
#define SIMULATED_HEARTBEAT_INTERVAL (TIME_S / 2)
#define SIMULATED_PEER_LIMIT (3 * TIME_S)
#define SIMULATED_STEP_LIMIT (40 * TIME_S)

/* What a seed stands for. Chances are of 1000. */
struct simulated_scenario {
    uint32_t num_ranks, num_ps, num_blocks, num_parameters;
    uint32_t num_partitions, micro_batches;
    uint32_t looks_ahead; /* chance that a step's rows are requested before the
                             one before ends, */
    uint32_t looks_early; /* and without awaiting its push */
    uint32_t first_block[SIMULATED_PARAMETERS];
    uint32_t blocks_of[SIMULATED_PARAMETERS];
    uint16_t block_ps[SIMULATED_BLOCKS];
    uint32_t block_bytes[SIMULATED_BLOCKS];
    uint64_t staleness, credit;
    uint32_t backup_workers;
    uint32_t group_bytes;
    bool clip;
    bool overflows; /* some steps are void */
    uint64_t total, every_steps;
    bool rewinds;         /* members go back in place, with what they keep */
    bool adopts;          /* and go on where they are if their chief dies */
    uint64_t buddy_steps; /* between copies in memory; 0: none */
    uint64_t delta_steps; /* between deltas; 0: none */
    int64_t save_every;   /* cuts asked for; 0: none */
    uint32_t drop, duplicate, reorder, lose, pause, crash;
    int64_t delay;     /* longest of a message without faults */
    int64_t step_time; /* longest of a step */
    int64_t heals_at;
};

enum simulated_kind {
    /* Data: worker and ps. */
    SIMULATED_PUSH,
    SIMULATED_PULL,
    SIMULATED_QUERY,
    SIMULATED_LOOKUP,
    SIMULATED_ROWS,
    SIMULATED_WEIGHTS,
    SIMULATED_MISSING,
    SIMULATED_REFUSED,
    /* Control: everyone and the chief. */
    SIMULATED_JOIN,
    SIMULATED_WELCOME,
    SIMULATED_REFUSAL,
    SIMULATED_PLAN,
    SIMULATED_READY,
    SIMULATED_HEARTBEAT,
    SIMULATED_VIEW,
    SIMULATED_CUT_QUERY,
    SIMULATED_CUT_POSITION,
    SIMULATED_CUT,
    SIMULATED_CUT_DONE,
    SIMULATED_CUT_END,
    SIMULATED_COPY_REPORT,
    SIMULATED_COPY_ORDER,
    SIMULATED_RETAIN,
    SIMULATED_REJOIN,
    SIMULATED_ADOPTED,
    SIMULATED_SUMS,
    SIMULATED_NORM,
    SIMULATED_FINISHED,
    SIMULATED_STOP,
    SIMULATED_GOODBYE,
};

struct simulated_data {
    uint32_t rank, count;
    uint64_t seq, clock, step;
    bool empty, overflowed;
    bool early; /* a lookup that does not await its reader's push */
    bool late;  /* weights that lack the push that they answer */
    bool zero[SIMULATED_UNITS]; /* a push without rows */
    uint32_t blocks[SIMULATED_UNITS];
    uint64_t values[SIMULATED_UNITS]; /* gradients, weights, or which rows */
    uint64_t versions[SIMULATED_UNITS];
};

struct simulated_control {
    uint64_t seq, ack; /* of the channel; 0: unnumbered */
    uint64_t id, round, clock, number, step, term;
    uint64_t base, known_from; /* of a delta: its base, and since when the ps
                                  knows what has changed; of a copy that is
                                  reported or ordered its own */
    uint64_t complete_base;    /* of the copy that is complete, or restored */
    bool whole;                /* the next copies are to be */
    bool write, written, failed, ok;
    bool back;   /* members leave their run to join the one that goes on */
    bool memory; /* a plan that restores copies in memory; a cut for one */
    double norm;
    struct gate_slot slots[SIMULATED_RANKS];
    double sums[SIMULATED_UNITS];
    uint64_t values[SIMULATED_UNITS], versions[SIMULATED_UNITS];
};

struct simulated_message {
    enum simulated_kind kind;
    uint64_t run, incarnation; /* of the sender */
    union {
        struct simulated_data data;
        struct simulated_control control_message;
    };
};

/* A connection as its server knows it. */
struct simulated_peer {
    uint32_t line;
    uint64_t generation, client; /* the client's incarnation */
};

struct simulated_process {
    bool running, open, over; /* over: ended with 0 */
    bool keeps;               /* between two runs: what is in its memory */
    uint64_t incarnation;
    int64_t paused_until, wakes, starts;
};

/* A ps's or worker's membership. */
struct simulated_member {
    bool joined;
    bool trains;  /* in a run that a chief can adopt, */
    bool rejoins; /* and tells another chief what it has */
    uint64_t run, chief, term;
    int64_t orphaned_at; /* since when it goes on without its chief; 0: not */
    int64_t opened, heard, join_sent, heartbeat_sent;
    struct channel channel;
};

struct simulated_snapshot {
    uint64_t id, order; /* of its beginning */
    bool used, writing;
    uint64_t base;   /* of a delta; 0: it is full */
    uint64_t copied; /* step of a copy in memory; 0: it is none */
    uint32_t added;
    bool has[SIMULATED_UNITS];
    uint64_t values[SIMULATED_UNITS], versions[SIMULATED_UNITS];
};

struct simulated_reader {
    bool waiting;
    uint64_t clock;
    bool early; /* a lookup that does not await its reader's push */
};

struct simulated_contribution {
    bool held, empty, zero, overflowed;
    uint64_t incarnation, clock, value;
};

/* A part of a copy in memory that is on its way to a ps. */
struct simulated_fetch {
    bool is_on, restores; /* the ps waits for it */
    uint64_t step, base;
    uint32_t part, from; /* ps */
    int64_t since;
};

struct simulated_ps {
    struct simulated_member member;
    struct simulated_fetch fetch;
    struct update_core *update_core;
    struct row_lookups *row_lookups;
    bool has_plan;
    uint64_t start, base, known_from;
    uint64_t copy_base;              /* of the next copies; 0: they are whole */
    struct ledger_entry kept;        /* for a planted fault */
    uint32_t count, num_partitions;  /* of my units, the last ones of which */
    uint32_t ids[SIMULATED_UNITS];   /* in the plan */
    uint32_t local[SIMULATED_UNITS]; /* of plan units here, or UINT32_MAX */
    uint64_t values[SIMULATED_UNITS];
    uint64_t view;
    struct gate_slot slots[SIMULATED_RANKS]; /* of the view, for the checks */
    struct simulated_contribution held[SIMULATED_UNITS][SIMULATED_RANKS];
    struct simulated_reader readers[SIMULATED_UNITS][SIMULATED_RANKS];
    struct simulated_reader lookups[SIMULATED_UNITS][SIMULATED_RANKS];
    struct simulated_peer peers[SIMULATED_RANKS];
    bool frozen;
    uint64_t frozen_for, void_id;                          /* cuts */
    struct simulated_control reports[SIMULATED_SNAPSHOTS]; /* of planned cuts */
    uint32_t num_reports;
    double norm, sums[SIMULATED_UNITS];
    uint64_t norm_round;
    uint32_t num_summed;
    struct simulated_snapshot snapshots[SIMULATED_SNAPSHOTS];
    uint64_t asked_id, asked_round, skipped;
    bool asked_write, asked_void;
    uint64_t begun;     /* snapshots */
    uint64_t late_rows; /* for a planted fault: rows still to be copied */
};

struct simulated_worker {
    struct simulated_member member;
    struct window *window;
    bool training, finished, leaving;
    uint64_t from, clock, seq, step;
    uint32_t announced;       /* parameters of this step; all: it waits */
    uint32_t missing;         /* blocks */
    bool pushed;              /* the step's rows */
    uint32_t receipts;        /* partitions whose push is not answered */
    uint32_t looked_up;       /* micro batches of the next step */
    uint32_t rows;            /* partitions missing of the last one's lookup, */
    bool looks_up_early;      /* and it was early */
    uint64_t looked_up_after; /* requests before it, */
    uint64_t ids[SIMULATED_UNITS];  /* which rows it wants */
    uint64_t kept[SIMULATED_UNITS]; /* for a planted fault: rows before it has
                                       gone back */
    bool has_kept;
    int64_t busy_until, blocked_since;
    uint16_t block_ps[SIMULATED_WINDOW];
    uint32_t block_bytes[SIMULATED_WINDOW];
    /* Weights, and of partitions what the next step has read. */
    uint64_t values[SIMULATED_UNITS], versions[SIMULATED_UNITS];
    uint64_t gradients[SIMULATED_UNITS]; /* of the step; what is sent */
    uint64_t sent_gradients[SIMULATED_UNITS];
    uint64_t first_sent[SIMULATED_UNITS]; /* clock it was first sent at */
    bool under_way[SIMULATED_UNITS];
};

enum simulated_phase {
    SIMULATED_JOINING,
    SIMULATED_READYING,
    SIMULATED_TRAINING,
    SIMULATED_FINISHING,
    SIMULATED_STOPPING,
};

struct simulated_trainer {
    bool planned, viewed, finished;
    uint64_t from, clock;
    int64_t planned_at;
};

struct simulated_cut {
    struct snapshot_round course;
    uint64_t id, step;
    bool save, joins, copy, ordered, failed;
    uint64_t bases[SIMULATED_PS], known_from[SIMULATED_PS];
    int64_t began;
    uint64_t values[SIMULATED_UNITS], versions[SIMULATED_UNITS];
};

struct simulated_session {
    struct channel channel;
    struct simulated_peer peer;
    int64_t heartbeat_sent;
    uint64_t view;
    bool ready;
};

/* What the chief's process knows over its runs. */
struct simulated_lineage {
    uint64_t copy, run; /* the newest in memory, and the run that it is of */
    uint64_t copy_base; /* what it is a delta of; 0: it is whole */
    uint64_t furthest;  /* step of all runs */
    uint64_t base;      /* of deltas: the newest full checkpoint; 0: none */
    uint32_t in_vain;   /* rewinds since one of them got further */
};

/* What members of a run without a chief have told. */
struct simulated_adopt {
    struct adoption core;
    bool is_open, is_decided;
    struct simulated_control answers[SIMULATED_PS + SIMULATED_RANKS];
    struct simulated_peer peers[SIMULATED_PS + SIMULATED_RANKS];
};

struct simulated_chief {
    struct roster roster;
    bool is_fresh; /* it goes on for no run of its own */
    uint64_t term;
    struct simulated_adopt adopt;
    bool open;
    bool goes_back;
    struct simulated_lineage lineage;
    struct run_buddies buddies;
    struct membership_copies held[SIMULATED_PS];
    enum simulated_phase phase;
    int64_t since, saved_at, no_trainer_since, interrupted;
    bool ok, last_cut, began, view_seen;
    uint64_t run, view, cuts_asked, start;
    struct simulated_trainer trainers[SIMULATED_RANKS];
    struct simulated_session
        sessions[SIMULATED_PS + SIMULATED_RANKS]; /* by slot */
    struct simulated_cut cuts[SIMULATED_CUTS];
    double sums[SIMULATED_UNITS];
    uint32_t sums_received;
};

/* The newest complete checkpoint, or copy in memory. */
struct simulated_disk {
    uint64_t step;
    uint64_t base; /* the full checkpoint with which a delta is read */
    uint64_t values[SIMULATED_UNITS];
};

/* What a file in a ps's memory has. */
struct simulated_part {
    uint64_t run;
    uint32_t count;
    uint32_t ids[SIMULATED_UNITS];
    uint64_t values[SIMULATED_UNITS], versions[SIMULATED_UNITS];
    uint64_t base; /* the step of what it is a delta of, (0: it is whole) */
    uint64_t base_part; /* and the number of that part */
};

/* What really happened, as nobody in the cluster knows it. */
struct simulated_oracle {
    /* By incarnation: its first clock, what is applied. */
    uint64_t from[SIMULATED_LIVES];
    uint8_t applied[SIMULATED_LIVES][SIMULATED_UNITS][SIMULATED_CLOCKS];
    /* Of this run; in synchronous runs by version. */
    uint64_t values[SIMULATED_CLOCKS][SIMULATED_UNITS];
    uint64_t expected[SIMULATED_CLOCKS][SIMULATED_UNITS];
    uint64_t copied[SIMULATED_CLOCKS][SIMULATED_UNITS];
    uint64_t runs[SIMULATED_CLOCKS]; /* in which a version was last computed */
    uint64_t taken[SIMULATED_UNITS][SIMULATED_RANKS]; /* highest clock */
    bool whole; /* no trainer was ever missing: bits are foreseeable */
};

struct simulated_net;

struct simulated {
    uint64_t seed;
    enum simulation_fault fault;
    bool trace, healed, failed;
    char text[400];
    int64_t now;
    struct philox_sequence random;
    struct simulated_scenario scenario;
    struct run_schedule run_schedule; /* of the present run */
    struct simulated_net *net;
    struct simulated_process processes[SIMULATED_PROCESSES];
    struct simulated_chief chief;
    struct simulated_ps ps[SIMULATED_PS];
    struct simulated_worker workers[SIMULATED_RANKS];
    struct simulated_disk disk;
    struct simulated_disk memory; /* step 0: there is none */
    struct simulated_disk start;  /* of the present run: one of both */
    struct copies copies[SIMULATED_PS];
    uint64_t memories[SIMULATED_PS];   /* life in which they began, */
    uint64_t planned_in[SIMULATED_PS]; /* that of the present run, */
    uint64_t copied_in[SIMULATED_PS];  /* and that of the run of `memory` */
    struct simulated_part parts[SIMULATED_PARTS];
    uint32_t num_parts, memory_parts;   /* of `memory` */
    uint32_t placed_as[SIMULATED_RUNS]; /* the run whose placement a run has */
    struct simulated_oracle truth;
    uint64_t lives, steps, hash;
    uint32_t runs, deaths, joiners, cuts, late, copied, returns, adoptions;
};

/* Processes: the chief, the ps, the workers. */
static inline uint32_t simulated_ps_process(uint32_t ps) {
    return 1 + ps;
}

static inline uint32_t simulated_worker_process(const struct simulated *s,
                                                uint32_t rank) {
    return 1 + s->scenario.num_ps + rank;
}

static inline bool simulated_synchronous(const struct simulated *s) {
    return s->scenario.staleness == 0;
}

/* Contributions that close a round. */
static inline uint32_t simulated_enough(const struct simulated *s) {
    return s->scenario.num_ranks - s->scenario.backup_workers;
}

static inline bool simulated_has_fault(const struct simulated *s,
                                       enum simulation_fault fault) {
    return s->fault == fault;
}

static inline uint32_t simulated_units(const struct simulated *s) {
    return s->scenario.num_blocks + s->scenario.num_partitions;
}

static inline bool simulated_is_partition(const struct simulated *s,
                                          uint32_t unit) {
    return unit >= s->scenario.num_blocks;
}

/* The ps that has UNIT in RUN. Partitions lie in equal ranges, as
 * chief/plan/placement.c has them; each run has another number of ps for them,
 * as after a restore, but that from memory. */
static inline uint32_t simulated_place(const struct simulated *s, uint64_t run,
                                       uint32_t unit) {
    const struct simulated_scenario *scenario = &s->scenario;
    if (!simulated_is_partition(s, unit))
        return scenario->block_ps[unit];
    uint32_t num_ps = 1 + s->placed_as[run] % scenario->num_ps;
    return (unit - scenario->num_blocks) * num_ps / scenario->num_partitions;
}

/* True CHANCE times of 1000. */
bool simulated_chance(struct simulated *s, uint32_t chance);
/* Up to LIMIT nanoseconds. */
int64_t simulated_time(struct simulated *s, int64_t limit);

/* The seed is a find: TEXT says what went wrong. The first one counts. */
void simulated_fail(struct simulated *s, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* A line of the history, where one is wanted (simulation.h). */
void simulated_trace(const struct simulated *s, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* PROCESS ends: with 0 (OK), or for its supervisor to start again. */
void simulated_end(struct simulated *s, uint32_t process, bool ok);

/* PROCESS leaves its run and joins the next one with what it has in memory. */
void simulated_go_back(struct simulated *s, uint32_t process);

/* The supervisor has started it, or it goes back: a new incarnation, with
 * nothing but the disk, or what it keeps. */
void simulated_start(struct simulated *s, uint32_t process);

#endif
