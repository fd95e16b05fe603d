/* SPDX-License-Identifier: Apache-2.0 */
/* The state of a run that the chief's parts (membership, planning, snapshots,
 * evaluations, shutdown) share. One thread. */
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
    RUN_JOINING,   /* until all members have joined and sent their model spec */
    RUN_READYING,  /* until the ps hold their blocks */
    RUN_TRAINING,  /* until every trainer has left the loop */
    RUN_FINISHING, /* last evaluation, checkpoint, export */
    RUN_STOPPING,  /* until all members have said goodbye */
    RUN_OVER,
};

/* Progress of the trainers: loss and samples summed over all of them, and
 * seconds of the one that has trained longest, without evaluations. */
struct run_point {
    double loss, seconds;
    uint64_t samples;
};

/* Per-trainer state beyond its roster slot. */
struct run_trainer {
    bool declared;
    uint64_t digest, train_samples, test_samples; /* from its model spec */
    bool synthetic;  /* holds no parameters; from its model spec */
    char device[64]; /* memory key of its first compute device; "": the host */
    char without_nccl[256];
    struct visible_devices visible_devices;
    uint32_t devices;  /* that it can compute on; from its model spec */
    uint32_t replicas; /* its replicas in the plan; 0: there is none yet */
    bool planned;      /* the plan was sent to it */
    bool in_view;      /* a view that lists it was sent to it */
    bool left;         /* has left the training loop */
    bool dismissed;    /* a joiner that was told to end */
    bool measured;  /* has reported its bandwidth while all trainers transfer at
                       once */
    uint64_t from;  /* clock of its first contribution; 0: not set */
    uint64_t point; /* the last point that it has reached */
    double began;   /* training seconds of the run when it joined */
    double past_loss; /* sum over earlier incarnations */
    uint64_t past_samples;
    struct run_point at_evaluation; /* of all incarnations */
    Capstan__Heartbeat heartbeat;   /* the last one, without its texts */
    int64_t last_progress;          /* when its clock last moved */
};

/* A point is a multiple of the job's steps_per_print, or the last step. The
 * ring holds what trainers have reported for points that are not written yet;
 * seconds 0: nothing. */
enum { RUN_POINTS = 16384, RUN_DECILES = 10 };
struct run_points {
    struct run_point *sums; /* [RUN_POINTS], a ring indexed by point number */
    uint64_t next; /* number of the first point that is not written; 0: there is
                      no plan yet */
    uint64_t max_step; /* highest step that any trainer has reported */
    /* Progress since the start. `last` is the last point written; the rate is
     * measured from `from`, which is at least a second old, and then from
     * `to`. */
    struct run_point from, to, last;
};

/* How long the run has been at its current step, and a peer that missed its
 * heartbeats meanwhile. */
struct run_stall {
    uint64_t step;
    int64_t since;
    const struct roster_slot *silent; /* or NULL */
    uint32_t waiting;                 /* live trainers that wait for it */
};

/* Training time lost by waiting for peers that sent no heartbeats. */
struct run_wait_loss {
    double seconds, longest;
    char peer[64]; /* of the longest wait */
};

struct run_ps {
    bool ready, shares_folder;
    uint16_t port; /* rank 0: port where its weights are read */
    uint64_t view; /* the last view that it acknowledged */
    uint64_t highest;
    double update_s;
};

struct run_snapshot {
    struct snapshot_round protocol;
    uint64_t id, step;
    bool save, evaluate, export, joins, retain;
    bool ordered;               /* the order to write it was sent */
    bool evaluating, exporting; /* the reader has started */
    uint32_t readers;           /* evaluation and export that are not over */
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
    uint64_t id, step; /* id 0: on each trainer's own weights */
    bool open;
    struct evaluation_split parts; /* id 0: one part per rank */
    struct run_point *rank_points; /* id 0: progress of each rank */
};

struct run_series;

struct run {
    const struct log *log;
    struct run_series *series; /* of this run, or NULL; borrowed */
    void *zmq;
    const struct cluster *cluster; /* from the chief's configuration */
    const char *ps_inproc;         /* in-process link of a ps, or NULL */
    struct link *link;
    struct roster roster;
    struct control_server *control_server;
    struct job *job;
    uint64_t id, incarnation;
    bool trains;      /* the chief has a trainer */
    bool allreduce;   /* rank 0 holds the weights, no ps does */
    char backend[16]; /* collective backend; "auto" until there is a plan */
    bool resident;    /* gradients and optimizer state stay on the trainers'
                         devices */
    enum run_phase phase;
    int64_t opened, phase_since, join_limit;
    int64_t last_turn;     /* start of the last loop iteration */
    int64_t stalled;       /* total time that this process was suspended */
    int64_t stalled_until; /* end of the last long suspension; 0: none */

    struct run_trainer *trainers; /* [num_ranks] */
    struct run_ps *ps; /* [num_ps], then rank 0 as holder in all-reduce */
    struct memory_plan_limits *limits; /* [roster.count] */
    int64_t memory_wait_since; /* since when the plan waits for memory, 0: it
                                  does not */

    struct layout *layout; /* from rank 0's model spec */
    uint64_t digest, train_samples, test_samples;
    uint64_t batches_per_epoch; /* of one replica */
    uint32_t num_replicas;      /* of all trainers; 0: there is no plan yet */
    uint32_t *ps_of_block;
    /* ps 0 .. num_holders - 1 hold blocks, because placement fills the lowest
     * first; in all-reduce 1. */
    uint32_t num_holders;
    struct run_schedule run_schedule;
    struct manifest restored; /* the checkpoint that the run resumes from, if
                                 has_restored */
    bool has_restored;
    char restore_folder[4096];

    double link_gbits; /* bandwidth of each host in each direction, 10^9 bits/s;
                          0: unknown */
    bool link_measured;             /* link_gbits was measured, not given */
    int64_t link_requested_at;      /* of a measurement, 0: not yet */
    bool link_reported;             /* the measurement was reported */
    int64_t aggregate_requested_at; /* when a measurement with all trainers at
                                       once was requested, 0: not yet */
    uint32_t aggregate_reports;     /* trainers that have reported it */
    double aggregate_gbits;         /* their sum; 0: unknown */
    uint64_t view;
    bool view_sent; /* the newest view was sent to the trainers that it newly
                       lists */

    struct dir_lock *dir_lock;      /* lock on checkpoint.dir, or NULL */
    struct run_snapshot *snapshots; /* [num_snapshots] */
    uint32_t num_snapshots;
    uint64_t snapshots_requested;
    uint64_t last_failed_save; /* highest step whose checkpoint failed */
    uint64_t saved;            /* step of the newest complete checkpoint */
    bool has_saved;
    int64_t saved_at;
    bool save_wanted;    /* a signal requested one, not taken yet */
    uint64_t every_seen; /* staleness: the last multiple of every_steps that was
                            due */
    char checkpoint[4096];  /* folder of that checkpoint */
    char last_problem[512]; /* why the last checkpoint was not written, or "" */

    struct run_evaluation *evaluations; /* several if a trainer is ahead */
    uint32_t num_evaluations;
    uint64_t evaluated;             /* last step with an accuracy */
    uint64_t incomplete_evaluation; /* highest step whose evaluation lacks a
                                       part for good */
    double accuracy, test_loss;     /* NAN: none yet */
    uint64_t epochs_seen; /* staleness: epochs whose evaluation was requested */
    uint64_t epochs_ended; /* highest epoch end that was logged */

    double *square_sums; /* [num_blocks]: of the round being clipped */
    uint32_t sums_received;

    struct run_point epoch_start;
    /* The shown loss and rate are measured from `shown_from`, the next ones
     * from `shown`. */
    struct run_point shown_from, shown;
    int64_t shown_at; /* time of `shown` */
    bool began;       /* a trainer has taken a step */
    int64_t logged_waiting_at, logged_slow_at;
    double shown_rate, shown_loss, epoch_loss;
    struct run_points points;
    struct run_point deciles[RUN_DECILES]; /* at each tenth of the steps */
    bool diverged;                         /* a loss was NaN */
    struct run_stall stall;
    struct run_wait_loss lost_time;
    struct progress progress;
    struct tensorboard_writer *tensorboard_writer;

    enum status interrupted;       /* status of a signal here or at a ps */
    int64_t grace_deadline;        /* end of timeouts.grace */
    bool final_snapshot_requested; /* the last snapshot was requested */
    int64_t refused_at;            /* when a late joiner was refused, 0: none */
    int64_t no_trainer_since; /* since when no trainer is left, 0: one is */
    int64_t peer_lost_at; /* all-reduce: when a trainer reported a lost peer, 0:
                             none */
    char lost_reason[512]; /* its text */
    uint32_t deaths;       /* of trainers: some rounds may lack contributions */
    struct weights_io *weights_io; /* init or export in progress, or NULL */
    /* The checkpoint being committed, or NULL. */
    struct checkpoint_commit *checkpoint_commit;
    bool init_wanted; /* all ps wait for the weights of job.init */
    bool init_done;
    char export_problem[512]; /* why the export failed, or "" */
    bool failed_to_start;     /* it failed before any process could join */
    bool json;
    bool no_restart;    /* no process can be restarted */
    enum status status; /* final status */
    uint64_t end_step;
    uint64_t reported; /* staleness: global step by the ps that counts it */
    uint64_t reached;  /* highest step seen */
    char text[1024];
};

/* The current step: the round of the slowest live trainer, or with staleness
 * the global step. If no trainer is live, the last step that was seen. */
uint64_t run_step(const struct run *run);

/* Is staleness 0? */
bool run_synchronous(const struct run *run);

/* Number of trainers in the training loop. */
uint32_t run_count_live(const struct run *run);

/* Is STATUS that of a signal? Only the process that got it ends with it; the
 * others end with STATUS_RETRY. */
bool run_is_signal(enum status status);

/* Ends the run with STATUS and sends the stop order to all members. Later calls
 * have no effect. */
void run_stop(struct run *run, enum status status, const char *format, ...)
    PRINTF_LIKE(3, 4);

/* The slot of holder INDEX (< num_holders): ps INDEX, or rank 0's. */
struct roster_slot *run_holder(struct run *run, uint32_t index);

/* Number of ps that hold blocks; all ps before there is a plan. */
double run_holder_count(const struct run *run);

/* Writes host:port of the data link of holder INDEX. */
void run_holder_address(struct run *run, uint32_t index, char *text,
                        size_t size);

/* The holder state of rank 0, in all-reduce. */
struct run_ps *run_allreduce_holder(struct run *run);

/* Sends CONTROL to the holders of weights: every ps, or rank 0. */
void run_send_to_holders(struct run *run, Capstan__Control *control);

/* Number of replicas whose gradients form one update: those of all trainers, or
 * with staleness those of one. */
uint32_t run_step_replicas(const struct run *run);

/* Samples that all trainers together have read after STEP. */
uint64_t run_samples(const struct run *run, uint64_t step);

/* Enters PHASE and restarts the phase deadline. */
void run_enter_phase(struct run *run, enum run_phase phase);

#endif
