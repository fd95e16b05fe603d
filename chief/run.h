/* SPDX-License-Identifier: Apache-2.0 */
/* A run as its chief knows it: what the chief's parts (admission, planning,
 * cuts, evaluations, ending) share. One thread. */
#ifndef CAPSTAN_RUN_H
#define CAPSTAN_RUN_H

#include "chief/control/control_server.h"
#include "chief/control/roster.h"
#include "chief/plan/device_assignment.h"
#include "chief/plan/memory_plan.h"
#include "chief/report/evaluation_split.h"
#include "chief/report/progress.h"
#include "chief/report/tensorboard_writer.h"
#include "chief/snapshot/snapshot_round.h"
#include "proto/base/log.h"
#include "proto/base/status.h"
#include "proto/config/cluster/cluster.h"
#include "proto/config/job/job.h"
#include "proto/net/link/link.h"
#include "proto/store/manifest.h"
#include "proto/tensor/layout.h"
#include "proto/tensor/run_schedule.h"

#include <stdbool.h>
#include <stdint.h>

enum run_phase {
    RUN_JOINING,   /* until all are here and have declared */
    RUN_READYING,  /* until the ps hold their blocks */
    RUN_TRAINING,  /* until every trainer has left the loop */
    RUN_FINISHING, /* last evaluation, checkpoint, export */
    RUN_STOPPING,  /* until all have said bye */
    RUN_OVER,
};

/* Where the trainers stand: sums over all, and how long the longest has
 * trained, evaluations left out. */
struct run_point {
    double loss, seconds;
    uint64_t samples;
};

/* What the chief knows of a trainer beyond its slot. */
struct run_trainer {
    bool declared;
    uint64_t digest, train_samples, test_samples; /* as it declared */
    bool synthetic;  /* holds no parameters, as it declared */
    char device[64]; /* the first that it computes on, its memory's key; "":
                        the host */
    char without_nccl[256];
    struct visible_devices visible_devices;
    uint32_t devices;  /* that it can compute on, as it declared */
    uint32_t replicas; /* of the plan; 0: there is none yet */
    bool planned;      /* has been sent the plan */
    bool in_view;      /* has been sent a view that lists it */
    bool left;         /* out of the loop */
    bool dismissed;    /* a joiner that was told to end */
    bool measured;     /* has told what it passes beside all others */
    uint64_t from;     /* clock of its first contribution; 0: not set */
    uint64_t point;    /* last that it has reached */
    double began;      /* seconds of training behind the run when it came */
    double past_loss;  /* of incarnations before this one */
    uint64_t past_samples;
    struct run_point at_evaluation; /* of all, at its last evaluation */
    Capstan__Heartbeat heartbeat;   /* the last; its texts are not kept */
    int64_t last_progress;          /* when its clock last moved */
};

/* Points are the multiples of the job's steps_per_print and the last step. Of
 * those that are not written yet, what trainers have told; seconds 0: nothing.
 */
enum { RUN_POINTS = 16384, RUN_DECILES = 10 };
struct run_points {
    struct run_point *sums; /* [RUN_POINTS], a ring by the points' numbers */
    uint64_t next;          /* number of the first that is not written; 0: there
                               is no plan yet */
    uint64_t max_step;      /* step that any trainer has told */
    struct run_point from, to, last; /* samples and seconds since the start: of
                                        the last that was written; the rate
                                        counts from the first, a second or more
                                        ago, and later on from the second */
};

/* How long the run has been at its step, and who did not beat meanwhile. */
struct run_stall {
    uint64_t step;
    int64_t since;
    const struct roster_slot *silent; /* or NULL */
};

/* What trainers have lost by waiting for others that did not beat. */
struct run_wait_loss {
    double seconds, longest;
    char peer[64]; /* of the longest wait */
};

struct run_ps {
    bool ready, shares_folder;
    uint16_t port; /* rank 0: where its weights are read */
    uint64_t view; /* last it acknowledged */
    uint64_t highest;
    double update_s;
};

struct run_snapshot {
    struct snapshot_round protocol;
    uint64_t id, step;
    bool save, evaluate, export, joins, retain;
    bool ordered;               /* to be written */
    bool evaluating, exporting; /* the reader has begun */
    uint32_t readers;           /* evaluation and export, until each is over */
    bool complete;              /* written by all ps */
    int64_t completed_at;
    bool written, failed;
    char problem[512];
    struct shard_info *files; /* [num_holders] */
    int64_t began;
    double seconds;
    struct loss_scaler scaler; /* of the weights that were written */
};

struct run_evaluation {
    uint64_t id, step; /* id 0: on the trainers' own weights */
    bool open;
    struct evaluation_split parts; /* own weights: by rank */
    struct run_point
        *rank_points; /* own weights: where each rank was, as many */
};

struct run_series;

struct run {
    const struct log *log;
    struct run_series *series; /* one run of several, or NULL; borrowed */
    void *zmq;
    const struct cluster *cluster; /* as the chief knows it */
    const char *ps_inproc; /* the holder's link in this process, or NULL */
    struct link *link;
    struct roster roster;
    struct control_server *control_server;
    struct job *job;
    uint64_t id, incarnation;
    bool trains;      /* the chief has a trainer */
    bool allreduce;   /* rank 0 holds the weights for the chief, no ps does */
    char backend[16]; /* its collectives; "auto" until there is a plan */
    bool resident;    /* gradients and state stay on the trainers' devices */
    enum run_phase phase;
    int64_t opened, phase_since, join_limit;
    int64_t last_turn;     /* when the loop last looked */
    int64_t stalled;       /* how long it has stood still in all */
    int64_t stalled_until; /* until when, at last; 0: never for long */

    struct run_trainer *trainers;      /* [num_ranks] */
    struct run_ps *ps;                 /* [num_ps], then rank 0 in all-reduce */
    struct memory_plan_limits *limits; /* [roster.count]: the holder's */
    int64_t memory_wait_since;         /* the plan waits for memory, 0: not */

    struct layout *layout; /* as rank 0 declared it */
    uint64_t digest, train_samples, test_samples;
    uint64_t batches_per_epoch; /* of a replica */
    uint32_t num_replicas;      /* of all trainers; 0: there is no plan yet */
    uint32_t *ps_of_block;
    uint32_t num_holders; /* ps 0 .. num_holders - 1 hold blocks: placement
                             fills the lowest first; in all-reduce 1 */
    struct run_schedule run_schedule;
    struct manifest restored; /* what the run starts from, if has_restored */
    bool has_restored;
    char restore_folder[4096];

    double link_gbits;  /* of each host each way, 10^9 bits/s; 0: not known */
    bool link_measured; /* else it was given */
    int64_t link_requested_at; /* when a measurement was, 0: not */
    bool link_reported;        /* it was answered */
    int64_t
        aggregate_requested_at; /* the same of all trainers at once, 0: not */
    uint32_t aggregate_reports; /* so many have answered */
    double aggregate_gbits;     /* of all of them; 0: not known */
    uint64_t view;
    bool view_sent; /* to the trainers it newly lists */

    struct dir_lock *dir_lock;      /* on checkpoint.dir, or NULL */
    struct run_snapshot *snapshots; /* [num_snapshots] */
    uint32_t num_snapshots;
    uint64_t snapshots_requested;
    uint64_t last_failed_save; /* step of the last one that was not written */
    uint64_t saved;            /* step of the newest complete checkpoint */
    bool has_saved;
    int64_t saved_at;
    bool save_wanted;       /* a signal asked for one, not yet cut */
    uint64_t every_seen;    /* staleness: last step that was due for a save */
    char checkpoint[4096];  /* its folder */
    char last_problem[512]; /* why the last one was not written, "" */

    struct run_evaluation *evaluations; /* as many as a trainer is ahead */
    uint32_t num_evaluations;
    uint64_t evaluated;             /* last step with an accuracy */
    uint64_t incomplete_evaluation; /* last step that lacks a part for good */
    double accuracy, test_loss;     /* NAN: none yet */
    uint64_t epochs_seen;  /* staleness: epochs whose evaluation was ordered */
    uint64_t epochs_ended; /* as reported */

    double *square_sums; /* [num_blocks]: of the round being clipped */
    uint32_t sums_received;

    struct run_point epoch_start;
    struct run_point shown_from, shown; /* loss and rate that are shown count
                                           from the first, the next ones from
                                           the second */
    int64_t shown_at;                   /* the second is of this time */
    bool began;                         /* a trainer has taken a step */
    int64_t logged_waiting_at, logged_slow_at;
    double shown_rate, shown_loss, epoch_loss;
    struct run_points points;
    struct run_point deciles[RUN_DECILES]; /* of the steps from start to end */
    bool diverged;                         /* a loss was no number */
    struct run_stall stall;
    struct run_wait_loss lost_time;
    struct progress progress;
    struct tensorboard_writer *tensorboard_writer;

    enum status interrupted;       /* by a signal here or at a ps */
    int64_t grace_deadline;        /* when the grace is over */
    bool final_snapshot_requested; /* the last cut was ordered */
    int64_t refused_at;            /* a latecomer, 0: none */
    int64_t no_trainer_since;      /* no trainer was left, 0: one is */
    int64_t peer_lost_at;  /* all-reduce: a trainer lost another, 0: none */
    char lost_reason[512]; /* its words */
    uint32_t deaths;       /* of trainers: rounds may stand half closed */
    struct weights_io *weights_io; /* weights on their way, or NULL */
    struct checkpoint_commit
        *checkpoint_commit; /* a manifest being written, or NULL */
    bool init_wanted;       /* all ps are ready for the weights of job.init */
    bool init_done;
    char export_problem[512]; /* why there is no export, "" */
    bool failed_to_start;     /* failed before anybody could join */
    bool json;
    bool no_restart;    /* nobody can be started again */
    enum status status; /* of the end */
    uint64_t end_step;
    uint64_t reported; /* staleness: global step by the ps that counts it */
    uint64_t reached;  /* highest step seen */
    char text[1024];
};

/* The step the run is at: the slowest live trainer's round, or the global
 * step; with nobody there, the last one that was seen. */
uint64_t run_step(const struct run *run);

/* Is staleness 0? */
bool run_synchronous(const struct run *run);

/* Trainers that are in the loop. */
uint32_t run_count_live(const struct run *run);

/* Is STATUS that of a signal? Then it is the process's own, and others retry.
 */
bool run_is_signal(enum status status);

/* Ends the run with STATUS for all: everyone is told. The first reason stays.
 */
void run_stop(struct run *run, enum status status, const char *format, ...)
    PRINTF_LIKE(3, 4);

/* The slot of holder INDEX (< num_holders): ps INDEX, or rank 0's. */
struct roster_slot *run_holder(struct run *run, uint32_t index);

/* How many ps hold blocks; before there is a plan all. */
double run_holder_count(const struct run *run);

/* Writes host:port of the data link of holder INDEX. */
void run_holder_address(struct run *run, uint32_t index, char *text,
                        size_t size);

/* What is known of rank 0 as holder of the weights, in all-reduce. */
struct run_ps *run_allreduce_holder(struct run *run);

/* Tells CONTROL to who holds weights: every ps, or rank 0. */
void run_send_to_holders(struct run *run, Capstan__Control *control);

/* Replicas whose gradients make an update: those of all trainers, with
 * staleness those of one. */
uint32_t run_step_replicas(const struct run *run);

/* Samples read by all trainers together after STEP. */
uint64_t run_samples(const struct run *run, uint64_t step);

/* Begins PHASE; its deadline counts from now. */
void run_enter_phase(struct run *run, enum run_phase phase);

#endif
