/* SPDX-License-Identifier: Apache-2.0 */
/* A model whose gradients the caller of the library computes, in place of a
 * trainer's compute thread. It outlives the worker: the worker's communication
 * thread attaches its trainer once the chief has admitted it, and detaches it
 * at the end. All else is for the caller's threads, of which several may call
 * at once.
 *
 * A function with UNTIL waits at most until that time. */
#ifndef CAPSTAN_EXTERNAL_H
#define CAPSTAN_EXTERNAL_H

#include "core/base/status.h"
#include "core/tensor/layout.h"
#include "proto/plan/optimizer_group.h"
#include "worker/data/batch.h"
#include "worker/exchange/exchange.h"

#include <stdbool.h>
#include <stdint.h>

struct external;
struct trainer;
struct trainer_call;
struct trainer_group;

enum external_result {
    EXTERNAL_DONE,
    EXTERNAL_LATE, /* not there yet: call again */
    EXTERNAL_OVER, /* the run is over, or this call ends it: external_wait_end
                      has the reason */
};

/* NULL: no memory. */
struct external *external_open(void);

/* Clears *EXTERNAL (may be NULL), which no worker has any more. */
void external_close(struct external **external);

/* The worker. */

/* The run is joined: TRAINER is used by the calls below until external_detach,
 * which waits for those under way. Its exchange is cancelled by then. */
void external_attach(struct external *external, struct trainer *trainer);
void external_detach(struct external *external);

/* The run goes back, or begins anew: external_detach follows, and then, if the
 * caller takes part (external_can_follow), external_attach with the next run's
 * trainer. */
void external_go_back(struct external *external);

/* Does the process go on with a run that has gone back, or begins anew? False:
 * its caller does not take part. */
bool external_can_follow(struct external *external);

/* Does the caller take part if the run goes back now? Any thread. */
bool external_rewinds(struct external *external);

/* All-reduce: copies the caller's weights to the trainer's arena. */
void external_give_weights(struct external *external);

/* The same for those of trained parameters, on any thread, unless it is being
 * detached. */
void external_collect_weights(struct external *external);

/* Where the means of the gradients of each parameter go with optimizer None, in
 * the caller's memory, NULL for other kinds; view. */
float *const *external_means(const struct external *external);

/* Where each parameter's weights are, in the caller's memory; view. */
float *const *external_values(const struct external *external);

/* The process's part in the run has ended with STATUS, for the reason WHY. Ends
 * all waits. */
void external_end(struct external *external, enum status status,
                  const struct failure *why);

/* The caller. */

/* Waits for external_end; the status and its reason. */
enum external_result external_wait_end(struct external *external, int64_t until,
                                       enum status *status,
                                       struct failure *why);

/* Waits until the run is joined. */
enum external_result external_wait_joined(struct external *external,
                                          int64_t until);

struct external_place {
    uint32_t rank, num_ranks, local_rank;
    uint64_t staleness;      /* of the job */
    bool skips;              /* its on_nan: skip */
    uint32_t backup_workers; /* its own */
};

/* After external_wait_joined. */
void external_place(const struct external *external,
                    struct external_place *place);

/* After external_wait_joined, before external_start: the caller follows the
 * job's on_nan. Is that skip? */
bool external_skips(struct external *external);

/* The same of the job's strategy.backup_workers, which it returns: the caller
 * goes on where external_position says after each step. */
uint32_t external_backup_workers(struct external *external);

/* Ends the run on all ranks for the reason WHY. False: it has not been joined,
 * or is over. */
bool external_fail(struct external *external, const struct failure *why);

/* Adds PARAMETER, whose weights are at VALUES, before external_start; MEAN (may
 * be NULL): where the mean of its gradients goes with optimizer None. Its
 * number is that of the earlier calls. STATUS_CONFIG: too late, or too many. */
enum status external_declare(struct external *external,
                             const struct parameter *parameter, float *values,
                             float *mean, uint32_t *number,
                             struct failure *why) MUST_CHECK;

/* Before external_start: the optimizer in place of the job's, by its name
 * there, with its defaults in every group. STATUS_CONFIG: no such optimizer. */
enum status external_optimizer(struct external *external, const char *type,
                               struct failure *why) MUST_CHECK;

/* Sets KEY of GROUP (optimizer_group_set). After external_start it holds from
 * the next step on, for what may change. */
enum status external_set(struct external *external, uint32_t group,
                         const char *key, double value,
                         struct failure *why) MUST_CHECK;

/* The groups that were set, *COUNT of them; NULL: none. View. */
const struct optimizer_group *external_groups(const struct external *external,
                                              uint32_t *count);

/* Sends the model to the chief and waits for the plan, the other processes and
 * the weights, which are then at the parameters' VALUES. */
enum external_result external_start(struct external *external, int64_t until);

/* REWINDS: where the run goes back, the caller takes its steps again. */
void external_set_rewinds(struct external *external, bool rewinds);

/* Any thread, also within a signal's handler: the process is told to end its
 * part, of which the worker hears by and by. */
void external_interrupt(struct external *external);

/* Is the run going back? Then pushes are left out, other calls return
 * EXTERNAL_OVER, and external_return waits until the model is with the next
 * run: EXTERNAL_DONE, and its VALUES are those of the checkpoint. */
bool external_is_back(struct external *external);
enum external_result external_return(struct external *external, int64_t until);

/* Is it going back, or has it, and external_take_rewound was not done yet? */
bool external_is_behind(struct external *external);

/* After external_wait for all, without staleness and backup workers: has any
 * rank brought bytes to the last step, or an overflow? */
bool external_had_batch(struct external *external);

/* capstan_brought. */
bool external_brought(const struct external *external, uint32_t p);

/* EXTERNAL_DONE once after each external_return: the next step is the one after
 * the checkpoint, whose values are in VALUES. EXTERNAL_OVER: there was none. */
enum external_result external_take_rewound(struct external *external,
                                           int64_t until);

struct external_position {
    uint64_t step, total;       /* total UINT64_MAX: without an end */
    uint64_t updates;           /* steps without those that overflowed */
    uint64_t epoch, epoch_step; /* the last that has begun, steps done in it */
    bool resumed;               /* the run did not begin at step 0 */
    bool joined;                /* after the run's other trainers */
};

void external_position(struct external *external,
                       struct external_position *position);

/* Epoch NUMBER began BACK steps ago, 0: begins with the next one. With
 * staleness BACK is 0. */
enum external_result external_epoch(struct external *external, uint64_t number,
                                    uint64_t back);

/* SIZE bytes at DATA (copied) under KEY belong to the step that ended last:
 * they are saved with a checkpoint of it. */
enum external_result external_keep(struct external *external, const char *key,
                                   const void *data, size_t size);

/* What the checkpoint that the run continues has under KEY, of this rank, else
 * of the lowest that has it. *DATA is valid until the next call; NULL: none. */
enum external_result external_kept(struct external *external, const char *key,
                                   const void **data, size_t *size);

/* State KEY (rule_slot_name) of PARAMETER's optimizer after the last step, to
 * TO [elements]; "step", of an optimizer with state: how many updates of
 * PARAMETER it has counted, to TO [1]. FOUND false: there is none of that name,
 * or this rank has a part of it only; TO is unchanged. One thread at a time. */
enum external_result external_state(struct external *external,
                                    uint32_t parameter, const char *key,
                                    float *to, bool *found, int64_t until);

/* For external_collective: before external_attach, until external_detach. */
void external_give_trainers(struct external *external,
                            struct trainer_group *trainers);

/* trainer_group_call; where the call has failed WHY has a code, which may come
 * before the run's own end. */
enum external_result external_collective(struct external *external,
                                         const struct trainer_call *call,
                                         void *data, int64_t until,
                                         struct failure *why);

/* With staleness: a checkpoint of STEP is taken, with which the worker saves
 * what the caller keeps: with its next push, or now if no push follows. */
void external_save_with(struct external *external, uint64_t step);

/* The chief has the checkpoints of STEPS[COUNT] (ascending) and no others: what
 * this rank kept with others is removed. No-op where the chief removes it, as
 * the checkpoint directory is the same. */
void external_retain(struct external *external, const uint64_t *steps,
                     size_t count);

/* Does this rank keep anything? Any thread. */
bool external_keeps(struct external *external);

enum external_due {
    EXTERNAL_NOT_DUE,
    EXTERNAL_DUE,
    EXTERNAL_DUE_LEAD /* and this is the lowest rank that trains */
};

/* Is a checkpoint taken of the step that ended last, whose weights are here?
 * ENDING: no step follows. */
enum external_due external_due(struct external *external, bool ending);

/* Asks the chief for a checkpoint as soon as possible. */
enum external_result external_request_save(struct external *external);

/* A contribution of KIND to PARAMETER in this step: BYTES at DATA if it is
 * CONTRIBUTION_FULL, unchanged until external_wait. */
struct external_push {
    uint32_t parameter;
    enum contribution kind;
    const void *data;
    size_t bytes;
};

/* Makes COUNT pushes. After the last step, also that of a run which was
 * complete at its start, they are left out. */
enum external_result external_push(struct external *external,
                                   const struct external_push *pushes,
                                   size_t count);

/* Those that a push of PARAMETER has; 0 if it was not declared. */
size_t external_bytes(const struct external *external, uint32_t parameter);

#define EXTERNAL_ALL UINT32_MAX /* every parameter */

/* Adds TABLE, with the optimizer TYPE of its own and that one's defaults (NULL:
 * the run's), before external_start; numbered as parameters are, from 0. */
enum status external_declare_table(struct external *external,
                                   const struct table *table, const char *type,
                                   uint32_t *number,
                                   struct failure *why) MUST_CHECK;

/* Sets KEY of the optimizer that table NUMBER has of its own, before
 * external_start. */
enum status external_set_table(struct external *external, uint32_t number,
                               const char *key, double value,
                               struct failure *why) MUST_CHECK;

/* The optimizers that tables name, *COUNT of them; NULL: none. View. */
const struct optimizer_group *external_table_groups(
    const struct external *external, uint32_t *count);

/* Rows of TABLE by IDS [count], and VALUES [count, dim]: weights, or gradients.
 * Ids may be equal. With bags (bags.h) VALUES [num_bags, dim] are their sums,
 * or gradients of those. */
struct external_rows {
    uint32_t table;
    size_t count;
    const uint64_t *ids;
    float *values;
    size_t num_bags;         /* 0: none */
    const uint32_t *offsets; /* [num_bags + 1]: of the bags in IDS */
    const float *weights;    /* [count], of the ids in bags; NULL: 1 each */
    enum batch_combiner combiner;
};

/* Between steps: fills the VALUES of all COUNT of ROWS. Called again after
 * EXTERNAL_LATE with the same ROWS. One thread at a time. */
enum external_result external_lookup(struct external *external,
                                     const struct external_rows *rows,
                                     uint32_t count, int64_t until);

/* Begins the external_lookup of the step after this one, of the same ROWS:
 * once, after the last lookup of this one; or before it, if that was itself
 * begun ahead: then it goes out when that one has its rows. Does not wait;
 * VALUES are not used. By the thread that looks up, pushes rows and ends steps.
 */
enum external_result external_prefetch(struct external *external,
                                       const struct external_rows *rows,
                                       uint32_t count);

/* Adds gradients of rows to this step, before external_step; copied. After the
 * last step they are left out. */
enum external_result external_push_rows(struct external *external,
                                        const struct external_rows *rows,
                                        uint32_t count);

/* Between steps: the ids of TABLE's admitted rows, in no order, to IDS [room];
 * COUNT: how many there are, or some number above `room`. Called again after
 * EXTERNAL_LATE with the same. One thread at a time. */
struct external_ids {
    uint64_t *ids;
    size_t room, count;
};
enum external_result external_ids(struct external *external, uint32_t table,
                                  struct external_ids *out, int64_t until);

/* Sets rows, of which VALUES are the weights; copied. Before external_start all
 * ranks call it for the same tables, with rows or none: those of rank 0 are
 * there before anybody reads, unless the run has rows already. After it they
 * go with this step, before its gradients; this rank reads them at once. */
enum external_result external_write_rows(struct external *external,
                                         const struct external_rows *rows,
                                         uint32_t count);

/* Waits until PARAMETER's weights, or EXTERNAL_ALL, are those after its last
 * push, which is of a step in which every parameter is pushed. */
enum external_result external_wait(struct external *external,
                                   uint32_t parameter, int64_t until);

/* What the caller measured in a step. */
struct external_step {
    double loss; /* mean over the samples */
    uint64_t samples, correct;
};

/* Ends the step, in which every parameter was pushed. *ENDS: no step follows,
 * or there was none to take. With backup workers it waits for all weights, and
 * the steps that closed without this rank are behind it too. */
enum external_result external_step(struct external *external,
                                   const struct external_step *step, bool *ends,
                                   int64_t until);

/* After the end of a step: no other follows. Waits for the last weights and
 * tells the chief. EARLY: the others go on without this rank. */
enum external_result external_finish(struct external *external, bool early,
                                     int64_t until);

#endif
