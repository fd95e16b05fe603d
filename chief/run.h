/* SPDX-License-Identifier: Apache-2.0 */
/* The state of a run. What the chief's parts share stands here; what belongs to
 * one part is declared in its header. One thread. */
#ifndef CAPSTAN_RUN_H
#define CAPSTAN_RUN_H

#include "chief/control/control_server.h"
#include "chief/control/membership.h"
#include "chief/control/port_probe.h"
#include "chief/control/roster.h"
#include "chief/plan/bandwidth_probe.h"
#include "chief/plan/device_replicas.h"
#include "chief/plan/planning.h"
#include "chief/report/evaluations.h"
#include "chief/report/hang_report.h"
#include "chief/report/metrics.h"
#include "chief/report/stall.h"
#include "chief/report/trace_file.h"
#include "chief/shutdown.h"
#include "chief/snapshot/buddies.h"
#include "chief/snapshot/checkpoint_policy.h"
#include "chief/snapshot/snapshot_coordinator.h"
#include "core/base/log.h"
#include "core/base/status.h"
#include "core/net/link/link.h"
#include "proto/cluster/cluster.h"
#include "proto/job/job.h"
#include "proto/plan/memory_footprint.h"

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

/* What a run that goes on without a trainer does not train: its share of the
 * data, from its loss until another process has its place or the run ends. In a
 * synchronous run steps are the rounds that lack it, with staleness the updates
 * that others make meanwhile. */
struct run_absence {
    bool is_gone;
    uint64_t since; /* the last step before it left, the last time */
    uint64_t first; /* the first time */
    uint64_t steps; /* without it, up to its last return */
};

/* What a trainer has told of its steps and data: bad lines of the training
 * data, left out (data.bad_lines); with backup workers the contributions that
 * were late, and the rounds that it has missed for that. */
struct run_counts {
    double loss; /* a sum */
    uint64_t samples, bad_lines, late, missed;
};

/* Per-trainer state beyond its roster slot. */
struct run_trainer {
    struct membership_copies held; /* when it joined */
    bool declared;
    uint64_t digest, features, train_samples, test_samples,
        share_samples;     /* from its model spec */
    struct layout *layout; /* likewise, of an external model; or NULL */
    bool synthetic;        /* holds no parameters; from its model spec */
    char device[64]; /* memory key of its first compute device; "": the host */
    char without_nccl[256];
    struct visible_devices visible_devices;
    uint32_t num_groups; /* of the optimizer that it names; 0: it names none */
    enum optimizer_type optimizer;
    uint32_t devices;    /* that it can compute on; from its model spec */
    uint32_t replicas;   /* its replicas in the plan; 0: there is none yet */
    bool has_plan;       /* the plan was sent to it */
    bool in_view;        /* a view that lists it was sent to it */
    bool finished;       /* has left the training loop, */
    bool ended_early;    /* and the others go on without it */
    bool leaving;        /* says goodbye soon, on a signal */
    bool keeps;          /* something with each checkpoint */
    uint64_t keeps_with; /* with staleness: the last step it is to write */
    bool dismissed;      /* a joiner that was told to end */
    bool measured;  /* has reported its bandwidth while all trainers transfer at
                       once */
    uint64_t from;  /* clock of its first contribution; 0: not set */
    uint64_t point; /* the last point that it has reached */
    double began;   /* training seconds of the run when it joined */
    struct run_counts past;         /* of earlier incarnations */
    struct run_point at_evaluation; /* of all incarnations */
    bool heard;                     /* its member has sent one in a view */
    Capstan__Heartbeat heartbeat;   /* the last one, without its memory */
    int64_t last_progress;          /* when its clock last moved */
    struct run_absence absence;     /* of all incarnations */
};

struct run_ps {
    struct membership_copies held; /* when it joined */
    bool ready, shares_folder;
    uint16_t port;         /* rank 0: port where its weights are read */
    uint64_t view;         /* the last view that it acknowledged */
    uint64_t square_round; /* gradient clipping: of its last square sums */
    uint64_t highest;
    double update_s;
    uint64_t *table_counts; /* [RUN_TABLE_COUNTS, num_tables], as last reported;
                               NULL: not yet */
};

struct run {
    const struct log *log;
    struct run_series *series;       /* of this run, or NULL; borrowed */
    struct rewind_lineage *lineage;  /* likewise */
    struct page_points *page_points; /* likewise */
    struct health *health;           /* borrowed; NULL: nobody asks for it */
    const struct mlflow_settings *mlflow; /* likewise */
    void *zmq;
    const char *address; /* these two as of struct process (member.h) */
    const struct link_keys *keys;
    const struct cluster *cluster; /* from the chief's configuration */
    const char *ps_inproc;         /* in-process link of a ps, or NULL */
    struct link *link;
    struct roster roster;
    struct control_server *control_server;
    struct job *job;
    memory_footprint_of_model *model_memory; /* NULL: external */
    uint64_t id, incarnation;
    uint64_t launcher;    /* of this process (launch_record.h); 0: none */
    uint32_t num_beyond;  /* of the ranks, the last ones: workers beyond the
                             cluster's list, which may join and have no share of
                             the data of their own */
    bool trains;          /* the chief has a trainer */
    bool allreduce;       /* rank 0 holds the weights, no ps does */
    bool together;        /* all processes are on this machine */
    bool no_restart;      /* no process can be restarted */
    bool starts_once;     /* as of struct chief_settings */
    bool failed_to_start; /* it failed before any process could join */
    enum run_phase phase;
    int64_t opened, phase_since, join_limit;
    int64_t training_since;       /* 0: it has not begun */
    struct run_trainer *trainers; /* [num_ranks] */
    struct run_ps *ps;            /* [num_ps] by place, then rank 0 as holder in
                                     all-reduce */
    struct port_probe *probes;    /* [roster.count] by slot */

    struct run_membership membership;
    struct adopt
        *adopt;       /* NULL: no member of a run goes on without its chief */
    bool is_adopting; /* whether this one adopts it is not decided yet */
    uint64_t term;    /* how often chiefs have adopted the run */
    struct run_plan plan;
    struct run_bandwidth bandwidth;
    struct run_snapshots snapshots;
    struct run_checkpoints checkpoints;
    struct run_buddies buddies;
    struct weights_io *weights_io; /* init or export in progress, or NULL */
    struct run_evaluations evaluations;
    struct run_metrics metrics;
    struct run_stall stall;
    struct run_hang_report hang_report;
    struct run_shutdown shutdown;
    struct run_trace trace;

    double *square_sums; /* gradient clipping: [num_blocks] of the round in
                            progress */
    /* Times at which this process itself did not run. */
    struct {
        int64_t last_turn;    /* start of the last loop iteration */
        int64_t total, until; /* until: end of the last long one; 0: none */
    } suspension;
    int64_t logged_waiting_at, logged_slow_at;

    enum failure_code code; /* why the run ends; FAILURE_NONE: it is done */
    uint64_t end_step;
    char text[1024];
    unsigned recorded_deaths; /* rewind_deaths, as the launcher knows them, */
    bool has_recorded;        /* once it does */
    bool rewind_checked;      /* rewind_step has done its part, */
    uint32_t ps_here;         /* as the last turn has found them, */
    int64_t ps_here_since;    /* and since when */
    uint32_t ps_too_few; /* so many cannot take over from the others; 0: it has
                            not been found */
    bool end_checked;    /* and looked for the end of a run before */
    struct last_export *last_export; /* of that run; NULL: it was not over */
    uint64_t last_step;              /* of its last checkpoint */
    bool is_rewinding;        /* another goes on from its newest checkpoint, */
    bool regroups;            /* as this one would, but with other ps */
    bool training_stopped;    /* it was stopped in RUN_TRAINING */
    bool resumable;           /* the same command may go on from a checkpoint */
    char export_problem[512]; /* why the export failed, or "" */
};

/* The current step: the round of the slowest live trainer that rounds await, or
 * with staleness the global step. If no trainer is live, the last step that was
 * seen. */
uint64_t run_step(const struct run *run);

/* Sets RUN->end_step, the step at which the run ends, or of a run that fails
 * the last one that is known to be complete. It never falls. */
void run_find_end_step(struct run *run);

/* Is staleness 0? */
bool run_synchronous(const struct run *run);

/* Does each trainer evaluate its own weights after planned rounds? Otherwise
 * not all have those of one round. */
bool run_tests_own_weights(const struct run *run);

/* How many of the trainers in the training loop rounds do not await. */
uint32_t run_spare(const struct run *run);

/* Does it end only when its trainers do? */
bool run_is_endless(const struct run *run);

/* Does it evaluate once training is over? In a synchronous run the plan may
 * have done that. */
bool run_tests_at_end(const struct run *run);

/* Was it over when it began, or when it was adopted? Then it evaluates its last
 * step once more. */
bool run_tests_again(const struct run *run);

/* By ps with optimizer None: the ps have weights only where a snapshot is
 * taken. */
bool run_trainers_keep_weights(const struct run *run);

/* How many ranks have a share of the data, each its own: the first ones. */
uint32_t run_num_shares(const struct run *run);

/* Is RANK that of a worker beyond the cluster's list? Nobody awaits it. */
bool run_is_beyond(const struct run *run, uint32_t rank);

/* How many of those have taken part so far. */
uint32_t run_count_joined(const struct run *run);

/* Those and all that the cluster lists. */
uint32_t run_count_trainers(const struct run *run);

/* The trainer is in the training loop. */
bool run_is_live(const struct run *run, uint32_t rank);

/* Number of trainers in the training loop. */
uint32_t run_count_live(const struct run *run);

/* The code with which the members of a run end that the chief ends with CODE:
 * that of a signal is for the process that received it alone. */
enum failure_code run_code_of_members(enum failure_code code);

/* What a loss means that ends the run, or takes it back, as the rest of a
 * sentence. */
const char *run_consequence_of_loss(const struct run *run);

/* Ends the run with CODE; shutdown.c sends the stop order to all members. Later
 * calls have no effect. */
void run_stop(struct run *run, enum failure_code code, const char *format, ...)
    PRINTF_LIKE(3, 4);

/* As run_stop, of a run that may go on from its newest checkpoint. */
void run_stop_resumable(struct run *run, enum failure_code code,
                        const char *format, ...) PRINTF_LIKE(3, 4);

/* As run_stop, of a run whose weights were not exported (`export_problem`).
 * SAVED: its checkpoint has them. */
void run_stop_unexported(struct run *run, bool saved);

/* What is known of the ps of SLOT. */
struct run_ps *run_ps_of(struct run *run, const struct roster_slot *slot);

/* The slot of holder PLACE (< num_holders): the ps of that place, or rank
 * 0's. */
struct roster_slot *run_holder(struct run *run, uint32_t place);

/* Does SLOT's process, a ps or in all-reduce a trainer, hold weights by the
 * plan? Others may send what a holder does, which does not count. */
bool run_is_holder(const struct run *run, const struct roster_slot *slot);

/* Number of ps that hold blocks; all ps before there is a plan. */
double run_holder_count(const struct run *run);

/* Writes host:port of the data link of holder INDEX. */
void run_holder_address(struct run *run, uint32_t index, char *text,
                        size_t size);

/* The holder state of rank 0, in all-reduce. */
struct run_ps *run_allreduce_holder(struct run *run);

/* RUN_TABLE_ROWS of TABLE. */
uint64_t run_table_rows(const struct run *run, uint32_t table);

enum run_table_count {
    RUN_TABLE_ROWS,
    RUN_TABLE_ADMITTED, /* of these rows */
    RUN_TABLE_EXPIRED,  /* since the start of each ps */
    RUN_TABLE_COUNTS
};

/* COUNT of TABLE on all ps, or of rank 0, as last reported. */
uint64_t run_table_count(const struct run *run, enum run_table_count count,
                         uint32_t table);

/* Bytes of rows that a trainer sends in a step, on average; 0: none. */
double run_row_bytes(const struct run *run);

/* Sends CONTROL to the holders of weights: every ps, or rank 0. */
void run_send_to_holders(struct run *run, Capstan__Control *control);

/* Number of replicas whose gradients form one update: those of all trainers, or
 * with staleness those of one. */
uint32_t run_step_replicas(const struct run *run);

/* Samples that all trainers together have read after STEP. */
uint64_t run_samples(const struct run *run, uint64_t step);

/* Of records: samples in the first BATCH of the BATCHES of an epoch; more for
 * each further batch. */
uint64_t run_share_samples(const struct run *run, uint64_t batch,
                           uint64_t batches);

/* The optimizer of TABLE, one of the run's layout; view. */
const struct optimizer *run_table_optimizer(const struct run *run,
                                            const struct table *table);

/* Loss and samples of all trainers since the start. */
struct run_point run_total(const struct run *run);

/* Those of RANK, of all incarnations. */
struct run_counts run_counts(const struct run *run, uint32_t rank);

/* Of the training data, left out by all trainers (data.bad_lines). */
uint64_t run_bad_lines(const struct run *run);

/* Has the run left out all that it has read since its first step? Then it has
 * trained nothing. */
bool run_all_bad_lines(const struct run *run);

/* Is a part of an evaluation still awaited? */
bool run_evaluations_pending(const struct run *run);

/* Does the newest evaluation of a synchronous run lack a part that no trainer
 * can report any more? Then an evaluation on a snapshot is needed. */
bool run_evaluations_missing(const struct run *run);

/* Does the trainer of RANK wait for the reports of the others? */
bool run_awaits_devices(const struct run *run, uint32_t rank);

/* Enters PHASE and restarts the phase deadline. */
void run_enter_phase(struct run *run, enum run_phase phase);

/* What RANK has not trained up to STEP; samples are 0 of a caller's model,
 * which are not known. */
struct run_untrained {
    uint64_t steps, samples;
};
struct run_untrained run_untrained_by(const struct run *run, uint32_t rank,
                                      uint64_t step);

/* The trainer of RANK has its first clock: its share is trained again. */
void run_absence_end(struct run *run, uint32_t rank);

/* The manifest of the newest checkpoint, which the caller clears, as of
 * checkpoint_reader_newest. Shard files are not read where RUN goes back to
 * what its members have just written, unless the last such run has come to no
 * step, or an older copy in memory is dropped for it: a ps that finds its own
 * damaged ends with 138, and the next run reads all. */
enum status run_newest_checkpoint(const struct run *run, struct manifest *out,
                                  bool *found, struct failure *why) MUST_CHECK;

#endif
