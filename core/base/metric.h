/* SPDX-License-Identifier: Apache-2.0 */
/* Every figure that a process tells of a run, in one row each. Each outlet
 * names it by one rule: the log's JSON lines, MLflow and the page by the base
 * name, Prometheus by metric_prometheus_name, TensorBoard by the tag of the
 * row. docs/metrics.md is printed from the rows. */
#ifndef CAPSTAN_METRIC_H
#define CAPSTAN_METRIC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum metric_kind {
    METRIC_GAUGE,
    METRIC_COUNTER, /* of one process it never falls */
};

/* Who tells it. */
enum metric_source {
    METRIC_OF_CHIEF = 1,
    METRIC_OF_PS = 2,
    METRIC_OF_TRAINER = 4,
    METRIC_OF_PROCESS = 16, /* each, once, whatever its roles are */
    METRIC_OF_POINT = 32,   /* the points of the run (docs/running.md), and
                               METRIC_OF_CHIEF */
};

/* ROW(suffix of the enumerator, base name, unit or "", suffix of its kind, its
 * sources, has it a label for the rank?, tag in TensorBoard or NULL, help). The
 * order is that in which the outlets write them. */
#define METRIC_ROWS(ROW)                                                       \
    ROW(TRAIN_LOSS, "train_loss", "", GAUGE, POINT_AND_CHIEF, false,           \
        "train/loss",                                                          \
        "mean loss of the training samples since the last point")              \
    ROW(EXAMPLES_PER_SECOND, "examples_per_second", "", GAUGE,                 \
        POINT_AND_CHIEF, false, "train/examples_per_second",                   \
        "samples that all trainers train in a second")                         \
    ROW(LEARNING_RATE, "learning_rate", "", GAUGE, POINT_AND_CHIEF, false,     \
        "train/learning_rate", "learning rate of the step")                    \
    ROW(LOSS_SCALE, "loss_scale", "", GAUGE, POINT_AND_CHIEF, false,           \
        "train/loss_scale", "factor of the loss in fp16")                      \
    ROW(SKIPPED_STEPS, "skipped_steps", "", COUNTER, POINT_AND_CHIEF, false,   \
        "train/skipped_steps", "steps skipped as their gradients overflowed")  \
    ROW(INPUT_SHARE, "input_share", "", GAUGE, POINT_AND_CHIEF, false,         \
        "time/input", "share of the trainers' time that went into data")       \
    ROW(COMPUTE_SHARE, "compute_share", "", GAUGE, POINT_AND_CHIEF, false,     \
        "time/compute",                                                        \
        "share of the trainers' time that went into computing")                \
    ROW(WAITING_SHARE, "waiting_share", "", GAUGE, POINT_AND_CHIEF, false,     \
        "time/waiting_for_weights",                                            \
        "share of the trainers' time that went into waiting for weights")      \
    ROW(ROW_BYTES, "row_bytes", "bytes", GAUGE, POINT_AND_CHIEF, false,        \
        "train/row_bytes", "bytes of table rows that a trainer sends a step")  \
    ROW(TEST_ACCURACY, "test_accuracy", "", GAUGE, POINT_AND_CHIEF, false,     \
        "test/accuracy", "share of the test set that is classified correctly") \
    ROW(TEST_LOSS, "test_loss", "", GAUGE, POINT_AND_CHIEF, false,             \
        "test/loss", "mean loss of the test set")                              \
    ROW(TEST_AUC, "test_auc", "", GAUGE, POINT_AND_CHIEF, false, "test/auc",   \
        "area under the ROC curve of the test set")                            \
    ROW(TEST_LOGLOSS, "test_logloss", "", GAUGE, POINT_AND_CHIEF, false,       \
        "test/logloss", "mean log loss of the test set, of two classes")       \
    ROW(TEST_CALIBRATION, "test_calibration", "", GAUGE, POINT_AND_CHIEF,      \
        false, "test/calibration",                                             \
        "mean prediction over mean label of the test set")                     \
    ROW(STEPS, "steps", "", COUNTER, METRIC_OF_CHIEF | METRIC_OF_TRAINER,      \
        false, NULL,                                                           \
        "steps completed: of the run at the chief, those pushed at a "         \
        "trainer")                                                             \
    ROW(EXAMPLES, "examples", "", COUNTER,                                     \
        POINT_AND_CHIEF | METRIC_OF_TRAINER, false, NULL,                      \
        "samples trained since the start")                                     \
    ROW(TOTAL_STEPS, "total_steps", "", GAUGE, METRIC_OF_CHIEF, false, NULL,   \
        "the last step of the run; absent of one without an end")              \
    ROW(EPOCH, "epoch", "", GAUGE, POINT_AND_CHIEF, false, NULL,               \
        "the epoch of the step, from 1")                                       \
    ROW(STEPS_PER_SECOND, "steps_per_second", "", GAUGE, POINT_AND_CHIEF,      \
        false, NULL, "steps in a second")                                      \
    ROW(BOUND, "bound_steps_per_second", "", GAUGE, POINT_AND_CHIEF, false,    \
        NULL, "steps in a second that the network allows")                     \
    ROW(NETWORK_SHARE, "network_share", "", GAUGE, POINT_AND_CHIEF, false,     \
        NULL, "steps_per_second over bound_steps_per_second")                  \
    ROW(TRAINERS, "trainers", "", GAUGE, POINT_AND_CHIEF, false, NULL,         \
        "trainers in the training loop")                                       \
    ROW(ROWS, "rows", "", GAUGE, POINT_AND_CHIEF | METRIC_OF_PS, false, NULL,  \
        "rows in tables")                                                      \
    ROW(CHECKPOINTS, "checkpoints", "", COUNTER, POINT_AND_CHIEF, false, NULL, \
        "checkpoints completed since the start")                               \
    ROW(CHECKPOINT_STEP, "checkpoint_step", "", GAUGE, METRIC_OF_CHIEF, false, \
        NULL, "step of the newest checkpoint of this run")                     \
    ROW(CHECKPOINT_AGE, "checkpoint_age", "seconds", GAUGE, METRIC_OF_CHIEF,   \
        false, NULL,                                                           \
        "time since the newest checkpoint was complete; before "               \
        "the first since training began")                                      \
    ROW(CHECKPOINT_DURATION, "checkpoint_duration", "seconds", GAUGE,          \
        POINT_AND_CHIEF, false, NULL,                                          \
        "time from the order of the newest checkpoint until it was complete")  \
    ROW(ROUNDS_WITHOUT_TRAINER, "rounds_without_trainer", "", COUNTER,         \
        POINT_AND_CHIEF, false, NULL,                                          \
        "steps that lacked a trainer which had left, each of them counted")    \
    ROW(UNTRAINED_SAMPLES, "untrained_samples", "", GAUGE, POINT_AND_CHIEF,    \
        false, NULL, "samples of trainers that left, which nobody trains")     \
    ROW(GPU_UTILIZATION, "gpu_utilization", "", GAUGE,                         \
        POINT_AND_CHIEF | METRIC_OF_TRAINER, false, "gpu_utilization",         \
        "percent of the time in which a kernel ran on the GPUs, by NVML: at "  \
        "the chief the mean over trainers")                                    \
    ROW(GPU_UTILIZATION_LEAST, "gpu_utilization_least", "", GAUGE,             \
        POINT_AND_CHIEF, false, "gpu_utilization_least",                       \
        "gpu_utilization of the trainer that has the least")                   \
    ROW(GPU_MEMORY, "gpu_memory", "bytes", GAUGE, METRIC_OF_TRAINER, false,    \
        NULL, "memory in use on the GPUs of the trainer, by NVML")             \
    ROW(TRAINER_STEP, "trainer_step", "", GAUGE, METRIC_OF_CHIEF, true, NULL,  \
        "steps that the trainer has pushed, by its last heartbeat")            \
    ROW(TRAINER_SILENCE, "trainer_silence", "seconds", GAUGE, METRIC_OF_CHIEF, \
        true, NULL, "time since the chief heard of the trainer")               \
    ROW(INPUT_TIME, "input_time", "seconds", COUNTER, METRIC_OF_TRAINER,       \
        false, NULL, "time that the trainer waited for data")                  \
    ROW(COMPUTE_TIME, "compute_time", "seconds", COUNTER, METRIC_OF_TRAINER,   \
        false, NULL, "time that the trainer computed")                         \
    ROW(WAITING_TIME, "waiting_time", "seconds", COUNTER, METRIC_OF_TRAINER,   \
        false, NULL,                                                           \
        "time that the trainer waited for weights, or in "                     \
        "all-reduce for sums of gradients")                                    \
    ROW(UPDATES, "updates", "", COUNTER, METRIC_OF_PS, false, NULL,            \
        "rounds of the block that is furthest; with staleness pushes of it")   \
    ROW(UPDATE_TIME, "update_time", "seconds", COUNTER, METRIC_OF_PS, false,   \
        NULL, "time that went into sums and updates")                          \
    ROW(QUEUE, "queue", "", GAUGE, METRIC_OF_PS, false, NULL,                  \
        "sums, updates and replies that wait or are being done")               \
    ROW(STALENESS, "staleness", "", GAUGE, METRIC_OF_PS, false, NULL,          \
        "pushes between the fastest and the slowest live trainer")             \
    ROW(CHIEF_SILENCE, "chief_silence", "seconds", GAUGE,                      \
        METRIC_OF_PS | METRIC_OF_TRAINER, false, NULL,                         \
        "time since the process heard of the chief")                           \
    ROW(SENT, "sent", "bytes", COUNTER, METRIC_OF_PROCESS, false, NULL,        \
        "bytes of messages sent; sums of all-reduce are not among them")       \
    ROW(RECEIVED, "received", "bytes", COUNTER, METRIC_OF_PROCESS, false,      \
        NULL,                                                                  \
        "bytes of messages received; sums of all-reduce are not among them")   \
    ROW(COLLECTIVE_SENT, "collective_sent", "bytes", COUNTER,                  \
        METRIC_OF_TRAINER, false, NULL,                                        \
        "bytes that sums of all-reduce send to other ranks, computed as what " \
        "a ring sends; absent of a run by ps")                                 \
    ROW(MEMORY, "memory", "bytes", GAUGE, METRIC_OF_PROCESS, false, NULL,      \
        "resident memory of the process")

#define METRIC_ENUMERATOR(ID, ...) METRIC_##ID,
enum metric { METRIC_ROWS(METRIC_ENUMERATOR) METRIC_COUNT };
#undef METRIC_ENUMERATOR

struct metric_row {
    const char *name, *unit;
    enum metric_kind kind;
    unsigned sources; /* of enum metric_source */
    bool by_rank;
    const char *tag; /* or NULL: it is not in TensorBoard */
    const char *help;
};

extern const struct metric_row metric_rows[METRIC_COUNT];

/* "capstan_input_time_seconds_total" into NAME (64 bytes hold any). */
void metric_prometheus_name(enum metric metric, char *name, size_t size);

#endif
