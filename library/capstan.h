/* SPDX-License-Identifier: Apache-2.0 */
/* Capstan's C interface: train a model of your own by parameter server or by
 * all-reduce. The caller computes gradients; Capstan exchanges them, applies
 * the update rule, writes checkpoints and handles failures as for its built-in
 * models. docs/c-api.md has a first program; docs/job.md has every key.
 *
 *     capstan_open      who am I: TF_CONFIG, torchrun, mpirun, srun, ...
 *     capstan_join      the run has a chief: rank and size are known
 *     capstan_declare   each tensor of the model, alike on all ranks
 *     capstan_start     the weights are in the caller's memory
 *     for each step
 *         capstan_push  each gradient, as soon as it is there
 *         capstan_step  ends the step: loss and samples
 *         capstan_wait  before a tensor is read again
 *     capstan_end, capstan_close
 *
 * A process whose role is ps, or a chief that only coordinates, calls
 * capstan_serve after capstan_open and nothing else.
 *
 * Results. A function that returns int returns 0, CAPSTAN_AGAIN, or the exit
 * status with which the program would end: 1 failed, 2 the configuration or a
 * call is wrong, 138 start the same command again, 129, 130 or 143 a signal
 * (capstan_interrupt). capstan_error then has the text and capstan_error_name
 * the stable name of its cause, from the table in docs/running.md. After any
 * result but 0 and CAPSTAN_AGAIN the run is over for this process; only
 * capstan_error, capstan_error_name and capstan_close follow.
 *
 * Waiting. Functions with SECONDS wait at most that long and return
 * CAPSTAN_AGAIN if what they wait for is not there: call them again. A negative
 * SECONDS waits until it is there or the run's own deadline ends the run.
 *
 * Threads. The functions of one run may be called from several threads at once,
 * except capstan_close, which must be the last. Runs are independent of each
 * other. The library starts threads of its own, which block all signals. It
 * installs no signal handler, never ends the process, and prints nothing unless
 * CAPSTAN_LOG is given.
 *
 * Forks. A forked child has no part in the run: what would keep ports or locks
 * busy is closed in it, and every call returns 2. capstan_close does nothing
 * there. A start that finds its port or its checkpoint directory taken tries
 * again for 10 s, as an orphan of a killed process may still have them.
 *
 * Memory. Tensors belong to the caller. Values may change from the push of
 * their gradient until capstan_wait has returned; a gradient stays readable and
 * unchanged as long. */
#ifndef CAPSTAN_H
#define CAPSTAN_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define CAPSTAN_AGAIN (-1) /* not there yet: call again */

enum { CAPSTAN_MAX_DIMS = 8 };

typedef struct capstan_run capstan_run;

enum capstan_role {
    CAPSTAN_CHIEF = 0,
    CAPSTAN_WORKER = 1,
    CAPSTAN_PS = 2,
    CAPSTAN_EVALUATOR = 3,
};

/* Flags of capstan_open. */
enum {
    CAPSTAN_LOG = 1, /* log to standard error, as the program does */
};

/* Resolves the cluster from the environment as `capstan run` does, and starts
 * this process's part of the run. JOB names the job file of the process that
 * leads the run, NULL: defaults; OVERRIDES are settings such as
 * "checkpoint.dir=/data/run" (NULL-ended, or NULL); "timeouts.join=60" also
 * bounds this process's own wait for a chief (600 s). Without a chief in the
 * cluster rank 0's process leads. The job's model.type is external. `capstan
 * local -- COMMAND` gives a job and overrides by the variables CAPSTAN_JOB,
 * which replaces JOB, and CAPSTAN_SET, which follow OVERRIDES. CAPSTAN_SUMMARY
 * names a file to which the process that leads writes the run's figures.
 * CAPSTAN_DEEPSPEED_CONFIG, which only the package's capstan.deepspeed reads,
 * is refused here.
 *
 * *RUN is NULL only if there is no memory (result 1); else capstan_close frees
 * it, whatever the result. */
int capstan_open(capstan_run **run, const char *job,
                 const char *const *overrides, unsigned flags);

/* This process's role. A chief that trains has the role CAPSTAN_CHIEF. */
enum capstan_role capstan_role(const capstan_run *run);

/* Does this process compute gradients? If not, call capstan_serve. */
int capstan_trains(const capstan_run *run);

/* Plays a role without gradients until the run ends; the run's result. */
int capstan_serve(capstan_run *run, double seconds);

/* Waits until the chief has admitted this process. */
int capstan_join(capstan_run *run, double seconds);

/* After capstan_join. Ranks are 0 to size - 1. */
int capstan_rank(const capstan_run *run);
int capstan_size(const capstan_run *run);
int capstan_local_rank(const capstan_run *run); /* among those of this host */

/* After capstan_join: the run's strategy.staleness. 0: the steps are
 * synchronous; UINT64_MAX: "inf". */
uint64_t capstan_staleness(const capstan_run *run);

/* After capstan_join: does the job say on_nan "skip"? Before capstan_start a
 * caller says so that it follows it: in a step with a gradient that is not
 * finite it pushes CAPSTAN_VOID. A caller that has not asked is refused at
 * capstan_start then. */
int capstan_skips(capstan_run *run);

/* After capstan_join: the run's strategy.backup_workers. If it is not 0, steps
 * close without a rank that is late: what it pushes then is not applied, and
 * capstan_step waits for the weights of the last step that closed.
 * capstan_where says which that is: steps closed without this rank if it is
 * more than one after the step before, and the next step is of the one behind
 * it, with the batch of that. Before capstan_start a caller says by this call
 * that it follows that; one that has not is refused there then. Optimizer
 * "None", tables, capstan_keep, capstan_rewinds and capstan_had_batch do not go
 * with it. A step uses the values (capstan_set) of the lowest rank that is in
 * it: set them alike on all ranks, by the step of capstan_where. */
unsigned capstan_backup_workers(capstan_run *run);

enum capstan_dtype {
    CAPSTAN_FLOAT32 = 0,
    CAPSTAN_INT64 = 1, /* CAPSTAN_ASSIGNED only */
};

/* What a push of the tensor carries, and what the ranks get back. */
enum capstan_kind {
    CAPSTAN_TRAINED = 0,  /* gradients, or changes (capstan_optimizer); the
                             updated weights */
    CAPSTAN_AVERAGED = 1, /* values; their mean over the ranks (running means).
                             With staleness v += (x - v) / n at each push */
    CAPSTAN_ASSIGNED = 2, /* rank 0's values; other ranks push CAPSTAN_EMPTY */
};

/* A named tensor, row-major. All ranks declare the same tensors in the same
 * order; a difference is an error on every rank. */
struct capstan_tensor {
    const char *name;
    uint32_t num_dims; /* 0: a scalar */
    const uint32_t *dims;
    enum capstan_dtype dtype;
    enum capstan_kind kind;
    uint32_t group; /* of the optimiser; 0: the job's own */
    void *values;   /* where the weights are; set before capstan_start on
                       rank 0, whose values count in a new run */
    void *mean;     /* optimizer "None" without staleness, CAPSTAN_TRAINED:
                       where the mean of the gradients goes; else NULL */
};

/* After capstan_join, before capstan_start. *TENSOR numbers the tensors from 0
 * in the order of declaration. The struct is copied; VALUES stay the caller's.
 */
int capstan_declare(capstan_run *run, const struct capstan_tensor *tensor,
                    uint32_t *number);

/* Before capstan_start and any capstan_set: the optimiser, in place of the
 * job's, with its defaults: "SGD", "Adam", "AdamW", "Adagrad", "RMSprop",
 * "Ftrl".
 *
 * Or "None", the caller's own. Without staleness: after capstan_wait the
 * tensor's MEAN is the mean of the ranks' gradients, and the caller applies
 * what it likes to VALUES, alike on all ranks. MEAN is left unchanged where no
 * rank has brought bytes. VALUES are those after a step from the first push of
 * the next step on, or from capstan_end on, until the next capstan_wait: a
 * checkpoint reads them then.
 *
 * "None" with staleness: MEAN is NULL, and a push brings the change that the
 * caller's optimiser makes, new weights - VALUES. The ps add it to the bit,
 * undivided: n ranks' changes add up. After capstan_wait VALUES are the sum. It
 * is the optimiser SGD of the ps, at rate 1 of minus the change: checkpoints
 * say so, capstan_set is a wrong call, and gradient_clipping is an error. A
 * MEAN tells which of the two a caller means; the wrong one ends the run. */
int capstan_optimizer(capstan_run *run, const char *type);

/* Sets KEY of GROUP: "lr", "momentum", "dampening", "weight_decay", "beta1",
 * "beta2", "eps", "alpha", "lr_decay", and before capstan_start also
 * "nesterov", "maximize", "centered", "amsgrad" (0 or 1),
 * "initial_accumulator_value", "learning_rate_power",
 * "l1_regularization_strength", "l2_regularization_strength"; which an
 * optimiser has, and their meaning, is as in the job's optimizer.params. Groups
 * count from 0, those not set have the optimiser's defaults. After
 * capstan_start it holds from the next step on; a round uses the values of the
 * lowest live rank. */
int capstan_set(capstan_run *run, uint32_t group, const char *key,
                double value);

/* A table of rows on the ps (in all-reduce on every rank), by 64-bit id, of
 * which only those that a step reads come here. A row that was never pushed has
 * initial values that follow from the job's seed, the table and the id. */
struct capstan_table {
    const char *name;
    uint32_t dim;     /* floats of a row, at most 4096 */
    float init_range; /* initial values are uniform in [-range, range); 0: 0 */
    const char *optimizer; /* "SGD", "Adagrad", "Adam", "AdamW" or "Ftrl", with
                              its defaults; NULL: the run's. Its weight_decay
                              is of the rows pushed, at that push */
    uint32_t admit;  /* pushes after which a row exists; until then it reads as
                        zeros; 0: at once */
    uint64_t expire; /* steps without a push after which it is gone; 0: never */
    uint64_t max_rows; /* more end the run; 0: any number */
};

/* After capstan_join, before capstan_start, alike on all ranks. A run with
 * tables has ps, and at least one tensor. */
int capstan_declare_table(capstan_run *run, const struct capstan_table *table,
                          uint32_t *number);

/* Sets KEY ("lr", "eps", ...; as capstan_set) of the optimiser that table
 * NUMBER has of its own, before capstan_start. */
int capstan_set_table(capstan_run *run, uint32_t number, const char *key,
                      double value);

/* What the weighted sum of a bag's rows is divided by, unless that is 0. */
enum capstan_combiner {
    CAPSTAN_SUM = 0,
    CAPSTAN_MEAN = 1,  /* the sum of the weights */
    CAPSTAN_SQRTN = 2, /* the root of the sum of their squares */
};

/* COUNT rows of a table; ids may be equal.
 *
 * With bags, VALUES are a row for each bag in place of each id: the combined
 * rows of its ids; pushed, the gradient of that. A bag of no ids has zeros. It
 * costs less than rows by id, which are more, and often equal. */
struct capstan_rows {
    uint32_t table;
    size_t count;
    const uint64_t *ids;
    float *values;           /* [count, dim], or [num_bags, dim]: weights, or
                                gradients */
    size_t num_bags;         /* 0, and the rest too: no bags */
    const uint32_t *offsets; /* [num_bags + 1]: bag b has the ids offsets[b] to
                                offsets[b + 1] - 1; the last is COUNT */
    const float *weights;    /* [count], of the ids; NULL: 1 each */
    enum capstan_combiner combiner;
};

/* Reads N lists of rows, of any tables, as they are after the last step; best
 * all of a step in one call. After CAPSTAN_AGAIN call it again with the same
 * lists. One thread at a time. */
int capstan_lookup(capstan_run *run, const struct capstan_rows *rows, size_t n,
                   double seconds);

/* Asks ahead for the rows that the first capstan_lookup of the next step reads,
 * with the same lists (VALUES are not used), and does not wait: once a step, by
 * the thread that looks up, pushes rows and calls capstan_step. It follows the
 * step's last capstan_lookup; or, best, it precedes the only one, if that was
 * asked for ahead itself: ids are sorted out while those rows are on their way.
 * Once the request is sent, another capstan_lookup in the step is a wrong call.
 * Without staleness they are the rows that a lookup of the next step reads;
 * with it they may lack this rank's own last push, and are as old as the
 * staleness allows otherwise. If the next step looks up other lists, or none,
 * they are dropped. */
int capstan_prefetch(capstan_run *run, const struct capstan_rows *rows,
                     size_t n);

/* Gradients of rows in this step, before capstan_step; copied, and added up by
 * row. Rows that no rank pushes stay as they are. */
int capstan_push_rows(capstan_run *run, const struct capstan_rows *rows,
                      size_t n);

/* Writes the ids of the rows that TABLE has after the last step (pushed or
 * written, and admitted) to IDS [room], in no order; *COUNT: how many there
 * are, or some number above ROOM. With staleness rows come and go meanwhile.
 * After CAPSTAN_AGAIN call it again with the same. One thread at a time, that
 * of capstan_lookup. */
int capstan_ids(capstan_run *run, uint32_t table, uint64_t *ids, size_t room,
                size_t *count, double seconds);

/* Sets rows of N lists, VALUES [count, dim] without bags, copied; of equal ids
 * the last stands. A row that is not there, or not admitted, is then, and its
 * state begins; that of others stays as it is.
 *
 * Before capstan_start: the rows that the table begins with. All ranks call it
 * for the same tables, and the rows of rank 0 stand; others may give none. No
 * rank reads a row before they are there. A run that continues a checkpoint has
 * rows, and leaves them out.
 *
 * After it: with this step, as capstan_push_rows, and once, also where messages
 * are lost or processes die. They are set before the step's gradients are
 * applied; where several ranks set a row, the highest rank's stand. This rank's
 * lookups read them at once, those of others when the step is done. Before
 * capstan_prefetch in a step. */
int capstan_write_rows(capstan_run *run, const struct capstan_rows *rows,
                       size_t n);

/* Where the run is. */
struct capstan_position {
    uint64_t step; /* steps that the run has completed */
    uint64_t
        total; /* the run ends at this step; UINT64_MAX: when its trainers do */
    int resumed;    /* 1: it continues a checkpoint; 2: joined while it ran,
                       which is known from capstan_join on */
    uint64_t epoch; /* number of the last epoch that capstan_epoch has begun */
    uint64_t epoch_step; /* steps done in it */
    uint64_t updates; /* steps without those pushed as CAPSTAN_VOID, which the
                         optimiser does not count */
};

/* Waits for the other processes, the plan and the weights. Then every tensor's
 * VALUES are those of the run. */
int capstan_start(capstan_run *run, double seconds);

void capstan_where(capstan_run *run, struct capstan_position *position);

/* The optimiser's state KEY of tensor NUMBER after the last step, to DATA, as
 * many floats as the tensor has: "momentum_buffer" (SGD, RMSprop), "exp_avg",
 * "exp_avg_sq", "max_exp_avg_sq" (Adam, AdamW), "sum" (Adagrad), "square_avg",
 * "grad_avg" (RMSprop), "accum", "linear" (Ftrl). Of an optimiser with one of
 * these also "step", one float: the updates of this tensor to which some rank
 * brought bytes, which are those that the optimiser counts. *FOUND 0: the
 * optimiser has no such state of this tensor, or this rank has a part of it
 * only (all-reduce with zero_optimization). Between steps, by one thread. */
int capstan_state(capstan_run *run, uint32_t number, const char *key,
                  float *data, int *found, double seconds);

/* Bytes of the caller's own that belong to the state after the last step, such
 * as an optimiser's or a generator's: saved with a checkpoint of that step, in
 * its folder, which this host must be able to write. Copied; they hold until
 * NAME is kept again; DATA NULL: it is kept no more. NAME: 1 to 31 of a-z, 0-9,
 * _; at most 8 a rank. From a rank's first call on checkpoints wait for what it
 * keeps. With staleness each rank saves what belongs to its own last step. */
int capstan_keep(capstan_run *run, const char *name, const void *data,
                 size_t bytes);

enum capstan_due {
    CAPSTAN_NOT_DUE = 0,
    CAPSTAN_DUE = 1,
    CAPSTAN_DUE_LEAD = 2, /* this rank also keeps what is alike on all ranks,
                             which others do no more */
};

/* Is a checkpoint taken of the state after the last step, or a copy in memory
 * (strategy.replicas), of which each rank is the lead of its own? After
 * capstan_wait for all tensors, and before the next push, or (ENDING: no step
 * follows) capstan_end: what is kept by then is saved with it. */
enum capstan_due capstan_due(capstan_run *run, int ending);

/* After capstan_start of a run that continues: what this rank has kept under
 * NAME, else what the lowest rank has. A trainer that joins with staleness has
 * that of the newest checkpoint. A view until the next call or
 * capstan_close; NULL and 0: nothing. CAPSTAN_AGAIN: the run goes back, call it
 * again. */
int capstan_kept(capstan_run *run, const char *name, const void **data,
                 size_t *bytes);

/* Asks for a checkpoint as soon as possible, as SIGUSR1 to the program. */
int capstan_checkpoint(capstan_run *run);

/* What a push brings. */
enum capstan_contribution {
    CAPSTAN_FULL = 0,  /* bytes */
    CAPSTAN_ZERO = 1,  /* the gradient is zero: counts as one, without bytes */
    CAPSTAN_EMPTY = 2, /* no batch: does not count */
    CAPSTAN_VOID = 3,  /* the gradients overflowed: the round changes nothing.
                          All tensors of the step are pushed so */
};

/* Tensor NUMBER's gradient of this step, BYTES at DATA; each tensor once a
 * step, in any order. Returns at once if the tensor was waited for since its
 * last push, else it waits first. NULL and 0 unless CAPSTAN_FULL. A block for
 * which no rank brought bytes is left unchanged; without staleness the VALUES
 * of CAPSTAN_ASSIGNED are not written then, whatever the caller has there.
 * After the run's last step, and in a run that was complete when it started,
 * pushes are left out. */
int capstan_push(capstan_run *run, uint32_t number, const void *data,
                 size_t bytes, enum capstan_contribution contribution);

/* As capstan_push of N tensors, in this order, with CAPSTAN_FULL: of NUMBERS[i]
 * the bytes that it was declared with, at DATA[i]. */
int capstan_push_tensors(capstan_run *run, const uint32_t *numbers,
                         const void *const *data, size_t n);

#define CAPSTAN_ALL UINT32_MAX /* every tensor */

/* Waits until tensor NUMBER, or CAPSTAN_ALL, has the values that follow its
 * last push. A wrong call, which ends the run, if that push is of a step in
 * which this rank has not pushed every tensor yet: with all-reduce or clipping
 * the values would never come. */
int capstan_wait(capstan_run *run, uint32_t number, double seconds);

/* After capstan_wait of tensor NUMBER: has that written its VALUES or MEAN? Not
 * where no rank brought bytes of a MEAN, or without staleness rank 0 none of
 * CAPSTAN_ASSIGNED. */
int capstan_brought(capstan_run *run, uint32_t number);

enum capstan_outcome {
    CAPSTAN_GOES_ON = 0, /* compute the next step */
    CAPSTAN_ENDS = 1,    /* that was the last step, or the run was complete */
    CAPSTAN_REWOUND = 2, /* the run went back (capstan_rewinds): capstan_where
                            says where to go on, VALUES are those of that step,
                            capstan_kept has what was kept then */
};

/* REWINDS 1: the caller takes its steps again from where the run goes back to,
 * and keeps by capstan_keep what they depend on beside the weights, or they
 * depend on nothing else. After capstan_start. Such a run, with
 * checkpoint.dir and strategy.recovery not "end", goes on after the death of a
 * ps, a rank of all-reduce, or the process that leads, once that is back: all
 * of its ranks go back to its newest checkpoint. It writes one when its ranks
 * have ended their first two steps. With strategy.replicas it goes back to a
 * copy in memory after the death of a ps.
 *
 * The rank is in the same process then, and declares nothing again. From the
 * death on what it pushes is left out; capstan_wait, capstan_lookup and
 * capstan_state return when the run is back, with the values, rows and states
 * of the checkpoint, and the next capstan_step returns CAPSTAN_REWOUND. A rank
 * that ends before it has, or after its last step, ends the run with 138.
 *
 * REWINDS 0, the default, on any rank: such a death ends the run with 138, and
 * the same command goes on from the checkpoint. */
int capstan_rewinds(capstan_run *run, int rewinds);

/* Has the run gone back, and the next capstan_step says so? Then VALUES are not
 * those that follow the last step. */
int capstan_is_behind(capstan_run *run);

/* Ends the step: every tensor has been pushed. LOSS is the mean over SAMPLES;
 * CORRECT of them were classified right (0: not known). A loss that is not
 * finite is an error on all ranks. Waits for the weights only with staleness,
 * with backup workers or at the last step. */
int capstan_step(capstan_run *run, double loss, uint64_t samples,
                 uint64_t correct, enum capstan_outcome *outcome,
                 double seconds);

/* Without staleness and backup workers, after capstan_wait for all tensors: has
 * any rank brought bytes of a tensor to the last step, or CAPSTAN_VOID? A rank
 * whose data is over pushes CAPSTAN_EMPTY in each step until none has: then all
 * ranks are at the same step. */
int capstan_had_batch(capstan_run *run);

/* Epoch NUMBER begins with the next step. What rank 0 tells is saved in
 * checkpoints, and capstan_where of a resumed run has it; with
 * checkpoint.every_epochs a checkpoint follows the end of an epoch. */
int capstan_epoch(capstan_run *run, uint64_t number);

/* The same of an epoch that began STEPS steps ago, as a rank tells that has
 * missed its beginning (capstan_backup_workers). Without staleness. */
int capstan_epoch_begun(capstan_run *run, uint64_t number, uint64_t steps);

/* Collectives among the run's trainers, after capstan_join, before the model is
 * declared or between steps, in any mode. All ranks call the same in the same
 * order, each rank from one thread; a difference is an error on all ranks,
 * which names two that differ. CAPSTAN_AGAIN: call again with the same
 * arguments. The ranks connect at the first call, over the Gloo plugin; a run
 * without one opens no port for it. Another result than 0 and CAPSTAN_AGAIN
 * leaves the run as it is, and capstan_error has its text: 138 if a rank is
 * lost, or has not called within timeouts.step. Later collectives have the same
 * result, until a rank has joined in place of one that was lost: then the ranks
 * connect anew, and the next call of each is one collective. */

/* Waits until every rank calls it. */
int capstan_barrier(capstan_run *run, double seconds);

/* BYTES from each rank's SEND, in rank order, to RECEIVED [ranks * BYTES]. */
int capstan_all_gather(capstan_run *run, const void *send, size_t bytes,
                       void *received, double seconds);

/* DATA [BYTES] becomes that of rank ROOT. */
int capstan_broadcast(capstan_run *run, void *data, size_t bytes, uint32_t root,
                      double seconds);

enum capstan_number {
    CAPSTAN_NUMBER_FLOAT32 = 0,
    CAPSTAN_NUMBER_FLOAT64 = 1,
    CAPSTAN_NUMBER_INT8 = 2,
    CAPSTAN_NUMBER_INT16 = 3,
    CAPSTAN_NUMBER_INT32 = 4,
    CAPSTAN_NUMBER_INT64 = 5,
    CAPSTAN_NUMBER_UINT8 = 6,
};

enum capstan_reduction {
    CAPSTAN_REDUCE_SUM = 0,
    CAPSTAN_REDUCE_MEAN = 1, /* of floating point */
    CAPSTAN_REDUCE_MIN = 2,
    CAPSTAN_REDUCE_MAX = 3,
    CAPSTAN_REDUCE_PRODUCT = 4,
};

/* DATA, COUNT numbers, becomes the reduction over all ranks: computed in their
 * own type in rank order, the same bits on all ranks. Whole numbers wrap
 * around. */
int capstan_all_reduce(capstan_run *run, void *data, size_t count,
                       enum capstan_number number,
                       enum capstan_reduction reduction, double seconds);

/* Does what the program does on signal NUMBER: a worker leaves, or the run
 * writes a checkpoint and ends; SIGQUIT: with CAPSTAN_LOG what capstan_report
 * tells is logged, and the run goes on. Async-signal-safe. */
void capstan_interrupt(capstan_run *run, int number);

/* Writes to TEXT, of SIZE bytes and ended by 0, a line for each role of this
 * process: what it does and waits for, since when, its step and its last
 * events. In the process that leads it asks all processes of the run first, for
 * about 2 s, and writes a line for each; one that has not answered is named. 0;
 * 2 if TEXT is too small, which has the beginning then; CAPSTAN_AGAIN before
 * the process has begun, or after its part has ended. It never ends the run,
 * and may be called while another thread waits. */
int capstan_report(capstan_run *run, char *text, size_t size);

/* How this rank ends. */
enum capstan_end {
    CAPSTAN_DONE = 0,   /* it has trained to its end */
    CAPSTAN_EARLY = 1,  /* its data is over; other ranks go on without it */
    CAPSTAN_FAILED = 2, /* TEXT says why: the run ends on all ranks, with 1 */
    CAPSTAN_RETRY = 3, /* so, with 138: of what may be gone when all are started
                          again, such as a collective's lost rank */
};

/* Ends this process's part and waits for the run's end; the run's result. TEXT
 * only with the last two. Within a step, of which tensors are pushed, the first
 * two are wrong calls. Synchronous runs: a rank that is CAPSTAN_DONE while
 * another pushes a later step ends the run with an error naming both steps. A
 * run that all ranks end before its last step goes on there when it is started
 * again. */
int capstan_end(capstan_run *run, enum capstan_end end, const char *text,
                double seconds);

/* Frees RUN (may be NULL). A run that has not ended is left: as
 * capstan_interrupt with SIGTERM does, and without waiting for others. */
void capstan_close(capstan_run *run);

/* The text of the run's failure; "" if there is none. A view until
 * capstan_close. */
const char *capstan_error(const capstan_run *run);

/* The stable name of its cause, such as "PEER_LOST"; "NONE". */
const char *capstan_error_name(const capstan_run *run);

/* "0.1.0": of the library. */
const char *capstan_version(void);

#ifdef __cplusplus
}
#endif

#endif
