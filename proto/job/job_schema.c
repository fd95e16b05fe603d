/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/job/job_schema.h"

#include <string.h>

#define FIELD(member) offsetof(struct job, member)
#define WORDS(...) ((const char *const[]){__VA_ARGS__, NULL})

#define RULE_MASK(NAME, number, word) NAME = 1u << OPTIMIZER_##NAME,
enum { OPTIMIZER_ROWS(RULE_MASK) };
#define RULE_WORD(NAME, number, word) [OPTIMIZER_##NAME] = word,

#define MLP (1u << JOB_MLP)
#define BUILT_IN (~(1u << JOB_EXTERNAL))
#define WITH_WIDE (BUILT_IN & ~MLP & ~(1u << JOB_DLRM))
#define WITH_DEEP (BUILT_IN & ~(1u << JOB_LINEAR))

#define CSV (1u << JOB_CSV)
#define NAMED (CSV | JOB_FORMATS_OF_VALUES)
#define CRITEO (1u << JOB_CRITEO)
#define RECORDS (((1u << JOB_DATA_FORMATS) - 1) & ~(1u << JOB_IDX))
#define COMMA_WORD(NAME, word, ...) ", " word
#define BAR_WORD(NAME, word, ...) "|" word
#define NAMED_WORDS "csv" JOB_DATA_FORMAT_ROWS(JOB_NONE, COMMA_WORD)

#define WARMUP (1u << SCHEDULE_WARMUP)
#define DECAY (1u << SCHEDULE_WARMUP_DECAY)
#define COSINE (1u << SCHEDULE_WARMUP_COSINE)
#define EXPONENTIAL (1u << SCHEDULE_EXPONENTIAL)
#define EXPONENTIAL_LR (1u << SCHEDULE_EXPONENTIAL_LR)
#define STEP_LR (1u << SCHEDULE_STEP_LR)
#define PIECEWISE (1u << SCHEDULE_PIECEWISE)
#define MULTI_STEP_LR (1u << SCHEDULE_MULTI_STEP_LR)
#define POLYNOMIAL (1u << SCHEDULE_POLYNOMIAL)
#define POLYNOMIAL_LR (1u << SCHEDULE_POLYNOMIAL_LR)
#define INVERSE_TIME (1u << SCHEDULE_INVERSE_TIME)
#define COSINE_DECAY (1u << SCHEDULE_COSINE)
#define ANNEALING_LR (1u << SCHEDULE_COSINE_ANNEALING_LR)
#define RESTARTS (1u << SCHEDULE_COSINE_RESTARTS)
#define WARM_RESTARTS (1u << SCHEDULE_COSINE_WARM_RESTARTS)

#define BOOL(member) .kind = JOB_KIND_BOOL, .field = FIELD(member)
#define U32(member, from, to)                                                  \
    .kind = JOB_KIND_U32, .field = FIELD(member), .min = from, .max = to
#define U64(member, from, to)                                                  \
    .kind = JOB_KIND_U64, .field = FIELD(member), .min = from, .max = to
#define REAL(member, from, to)                                                 \
    .kind = JOB_KIND_REAL, .field = FIELD(member), .min = from, .max = to
#define CHOICE(member, ...)                                                    \
    .kind = JOB_KIND_CHOICE, .field = FIELD(member), .words = WORDS(__VA_ARGS__)
#define REALS(member, from, to, fewest)                                        \
    .kind = JOB_KIND_REALS, .field = FIELD(member), .min = from, .max = to,    \
    .least = fewest, .most = JOB_MAX_REALS - 1 + (fewest - 1)
#define PARAMETERS(member)                                                     \
    .kind = JOB_KIND_PARAMETERS, .field = FIELD(member), .min = 1, .max = MANY
#define BOOL_WORD(member, no, yes)                                             \
    .kind = JOB_KIND_BOOL_WORD, .field = FIELD(member), .words = WORDS(no, yes)
#define PATH(member) .kind = JOB_KIND_PATH, .field = FIELD(member)
#define COUNTS(member)                                                         \
    .kind = JOB_KIND_COUNTS, .field = FIELD(member), .min = 1, .max = PEERS

#define MANY 1e15 /* steps, epochs: exact in a double */
#define HUGE JOB_UNBOUNDED
#define LARGEST 9223372036854774784.0 /* a double below 2^63 */
#define LONG 1e9                      /* seconds */
#define BATCH 16777216.0
#define FLOAT_POWERS 127.0 /* largest power of two in a float32 */
#define PEERS 1024.0

/* The keys of an optimizer, each by ROW; its fields are OF and RATE, NONE is
 * the word for no rule, or "". Ranges are those that torch.optim checks. */
#define OPTIMIZER(ROW, of, rate, none, meaning)                                \
    ROW("type", meaning, .kind = JOB_KIND_CHOICE, .field = FIELD(of.type),     \
        .words =                                                               \
            (const char *const[OPTIMIZER_TYPES + 1]){                          \
                OPTIMIZER_ROWS(RULE_WORD)[OPTIMIZER_NONE] = none},             \
        .required = true)                                                      \
    ROW("params.lr", "the learning rate", REAL(rate, 0, HUGE),                 \
        .default_value = "0.001", .tf = "0.01", .optimizers = SGD)             \
    ROW("params.lr", REAL(rate, 0, HUGE), .default_value = "0.001",            \
        .optimizers = ADAM | ADAMW | FTRL)                                     \
    ROW("params.lr", REAL(rate, 0, HUGE), .default_value = "0.01",             \
        .tf = "0.001", .optimizers = ADAGRAD | RMSPROP)                        \
    ROW("params.momentum", "factor of the last update in the next",            \
        REAL(of.momentum, 0, HUGE), .default_value = "0",                      \
        .optimizers = SGD | RMSPROP)                                           \
    ROW("params.dampening", "what momentum leaves out of a gradient",          \
        REAL(of.dampening, -HUGE, HUGE), .default_value = "0",                 \
        .optimizers = SGD)                                                     \
    ROW("params.nesterov",                                                     \
        "Nesterov's momentum, which needs momentum over 0 and no dampening",   \
        BOOL(of.nesterov), .default_value = "false", .optimizers = SGD)        \
    ROW("params.weight_decay",                                                 \
        "L2 penalty; of AdamW decoupled from the gradient",                    \
        REAL(of.weight_decay, 0, HUGE), .default_value = "0",                  \
        .optimizers = SGD | ADAGRAD | RMSPROP | ADAM)                          \
    ROW("params.weight_decay", REAL(of.weight_decay, 0, HUGE),                 \
        .default_value = "0.01", .deepspeed = "0", .tf = "0.004",              \
        .optimizers = ADAMW)                                                   \
    ROW("params.maximize", "maximize the objective instead of minimizing it",  \
        BOOL(of.maximize), .default_value = "false",                           \
        .optimizers = SGD | ADAGRAD | RMSPROP | ADAM | ADAMW)                  \
    ROW("params.lr_decay", "decay of the learning rate",                       \
        REAL(of.lr_decay, 0, HUGE), .default_value = "0",                      \
        .optimizers = ADAGRAD)                                                 \
    ROW("params.initial_accumulator_value",                                    \
        "initial sum of squared gradients",                                    \
        REAL(of.initial_accumulator_value, 0, HUGE), .default_value = "0",     \
        .tf = "0.1", .optimizers = ADAGRAD)                                    \
    ROW("params.initial_accumulator_value",                                    \
        REAL(of.initial_accumulator_value, 0, HUGE), .default_value = "0.1",   \
        .optimizers = FTRL)                                                    \
    ROW("params.alpha", "smoothing of squared gradients",                      \
        REAL(of.alpha, 0, 1), .default_value = "0.99", .tf = "0.9",            \
        .optimizers = RMSPROP)                                                 \
    ROW("params.centered", "divide by the gradient's estimated variance",      \
        BOOL(of.centered), .default_value = "false", .optimizers = RMSPROP)    \
    ROW("params.betas",                                                        \
        "decay of the running means of the gradient and of its square",        \
        .kind = JOB_KIND_BETAS, .field = FIELD(of),                            \
        .default_value = "[0.9, 0.999]", .optimizers = ADAM | ADAMW)           \
    ROW("params.eps", "added to the denominator", REAL(of.eps, 0, HUGE),       \
        .default_value = "1e-10", .tf = "1e-7", .optimizers = ADAGRAD)         \
    ROW("params.eps", REAL(of.eps, 0, HUGE), .default_value = "1e-8",          \
        .tf = "1e-7", .optimizers = RMSPROP | ADAM | ADAMW)                    \
    ROW("params.amsgrad", "use the maximum of past squared gradients",         \
        BOOL(of.amsgrad), .default_value = "false",                            \
        .optimizers = ADAM | ADAMW)                                            \
    ROW("params.learning_rate_power",                                          \
        "power of the accumulator in the learning rate",                       \
        REAL(of.learning_rate_power, -HUGE, 0), .default_value = "-0.5",       \
        .optimizers = FTRL)                                                    \
    ROW("params.l1_regularization_strength", "L1 penalty",                     \
        REAL(of.l1, 0, HUGE), .default_value = "0", .optimizers = FTRL)        \
    ROW("params.l2_regularization_strength", "L2 penalty",                     \
        REAL(of.l2, 0, HUGE), .default_value = "0", .optimizers = FTRL)

#define OWN(name, ...) {"optimizer." name, __VA_ARGS__},
#define WIDE(name, ...)                                                        \
    {"optimizers.wide." name, __VA_ARGS__, .models = WITH_WIDE,                \
     .group = JOB_GROUP_WIDE},
#define DEEP(name, ...)                                                        \
    {"optimizers.deep." name, __VA_ARGS__, .models = WITH_DEEP,                \
     .group = JOB_GROUP_DEEP},

static const struct job_key keys[] = {
    {"defaults",
     "whose defaults keys have that are left out: torch's, or those of TensorFlow's Keras for optimizers and model.init",
     BOOL_WORD(tf_defaults, "torch", "tf"), .default_value = "\"torch\""},
    {"model.type",
     "mlp: fully connected layers; external: a program declares the model and computes gradients. The others read features of records",
     CHOICE(model.type, "mlp", "external", "linear", "fm", "deepfm",
            "wide_deep", "dlrm", "matrix_factorization"),
     .default_value = "\"mlp\""},
    {"data.format",
     "idx: MNIST's format, unsigned bytes are scaled to 0..1, other types are taken as they are. The others are files of records, which are read as they are needed. All but safetensors also compressed by gzip or Zstandard",
     .kind = JOB_KIND_CHOICE, .field = FIELD(data.format),
     .words =
         (const char *const[]){JOB_DATA_FORMAT_ROWS(JOB_WORD, JOB_WORD) NULL},
     .default_value = "\"idx\"", .models = BUILT_IN},
    {"data.dir", "start of relative paths of the data", PATH(data.dir),
     .models = BUILT_IN},
    {"data.train",
     "idx: images and labels; records: a path, a pattern (\"day_*.csv\"), or an array of up to 255 of them",
     .kind = JOB_KIND_FILES, .field = FIELD(data.train), .models = BUILT_IN,
     .required = true},
    {"data.test", "as data.train, for evaluation", .kind = JOB_KIND_FILES,
     .field = FIELD(data.test), .models = BUILT_IN},
    {"data.shuffle",
     "a new order in each epoch, from the seed; else file order",
     BOOL(data.shuffle), .default_value = "true", .models = BUILT_IN},
    {"data.shuffle_buffer", "records: how many are shuffled at a time",
     U32(data.shuffle_buffer, 1, 1e9), .default_value = "65536",
     .models = BUILT_IN, .formats = RECORDS},
    {"data.bad_lines",
     "records: a bad one ends the run with its file and line, or is left out; the first ten are shown",
     BOOL_WORD(data.skip_bad_lines, "stop", "skip"),
     .default_value = "\"stop\"", .models = BUILT_IN, .formats = RECORDS},
    {"data.header",
     "csv: the first line of each file has the columns' names; criteo: false",
     BOOL(data.header), .default_value = "false", .models = BUILT_IN,
     .formats = CSV | CRITEO},
    {"data.columns", "csv without header: the columns' names",
     .kind = JOB_KIND_NAMES, .field = FIELD(data.columns), .models = BUILT_IN,
     .formats = CSV},
    {"data.delimiter",
     "csv: the character between two columns; criteo: without effect",
     .kind = JOB_KIND_TEXT, .field = FIELD(data.delimiter),
     .default_value = "\",\"", .models = BUILT_IN, .formats = CSV | CRITEO},
    {"data.trim",
     "csv: spaces around a field or a name, outside of its quotes, are no part of it; false reads as RFC 4180 says",
     BOOL(data.trim), .default_value = "true", .models = BUILT_IN,
     .formats = CSV},
    {"data.missing",
     "csv: words that mean no value, as an empty field does: [\"NA\", \"?\"]",
     .kind = JOB_KIND_NAMES, .field = FIELD(data.missing), .models = BUILT_IN,
     .formats = CSV},
    {"data.decimal", "csv: the character before the decimals of a number",
     BOOL_WORD(data.decimal_comma, ".", ","), .default_value = "\".\"",
     .models = BUILT_IN, .formats = CSV},
    {"data.label",
     NAMED_WORDS
     ": the column with the label; criteo: without effect, it is the first field",
     .kind = JOB_KIND_TEXT, .field = FIELD(data.label),
     .default_value = "\"label\"", .models = BUILT_IN,
     .formats = NAMED | CRITEO},
    {"data.weight",
     NAMED_WORDS
     ": the column with a sample's weight, 0 or more, by which its loss is multiplied; the mean is still over the number of samples",
     .kind = JOB_KIND_TEXT, .field = FIELD(data.weight), .models = BUILT_IN,
     .formats = NAMED},
    {"features", "records: the numbers and ids that the model reads",
     .kind = JOB_KIND_OBJECT, .field = FIELD(features), .models = BUILT_IN,
     .formats = RECORDS},
    {"data.drop_last",
     "drop the short last batch instead of taking the mean over its samples",
     BOOL(data.drop_last), .default_value = "false", .models = BUILT_IN},
    {"data.num_workers",
     "threads that prefetch batches; 0: the trainer prepares each batch itself. The order of samples and the results do not depend on it",
     U32(data.num_workers, 0, 64), .default_value = "1", .models = BUILT_IN},
    {"data.prefetch_factor", "batches that each of these threads prefetches",
     U32(data.prefetch_factor, 1, 1024), .default_value = "2",
     .models = BUILT_IN},
    {"data.pin_memory",
     "accepted but not used: with a GPU batches are always in pinned memory",
     BOOL(data.pin_memory), .default_value = "false", .models = BUILT_IN},

    {"seed", "seed of the initial weights and the order of samples",
     U64(seed, 0, LARGEST), .default_value = "0"},
    {"epochs", "passes over the data", U64(epochs, 1, MANY)},
    {"steps",
     "number of rounds; with staleness, number of pushes of all trainers together. 0 writes the initial checkpoint and ends",
     .kind = JOB_KIND_STEPS, .min = 0, .max = MANY},
    {"steps_per_epoch",
     "length of an epoch, shorter or longer than the data, as in Keras",
     U64(steps_per_epoch, 1, MANY)},
    {"train_batch_size",
     "micro batch x accumulation x replicas of all trainers; with staleness the replicas of one trainer",
     U32(train_batch_size, 1, BATCH)},
    {"train_micro_batch_size_per_gpu", "samples of one pass of one replica",
     U32(micro_batch, 1, BATCH)},
    {"gradient_accumulation_steps",
     "passes whose gradients are summed in one push",
     U32(accumulation, 1, BATCH)},
    {"gradient_clipping",
     "bound of the global norm of the averaged gradient; 0 is off",
     REAL(gradient_clipping, 0, HUGE), .default_value = "0"},

    {"fp16.enabled",
     "operands of matrix products are rounded to fp16; the loss is scaled, and steps whose gradients overflow are skipped",
     BOOL(fp16.enabled), .default_value = "false", .models = BUILT_IN},
    {"fp16.loss_scale", "a fixed scale; 0: dynamic",
     REAL(fp16.loss_scale, 0, HUGE), .default_value = "0", .models = BUILT_IN},
    {"fp16.initial_scale_power", "the initial scale is 2 to this power",
     U32(fp16.initial_scale_power, 0, FLOAT_POWERS), .default_value = "16",
     .models = BUILT_IN},
    {"fp16.loss_scale_window",
     "steps without an overflow after which the scale doubles",
     U64(fp16.loss_scale_window, 1, MANY), .default_value = "1000",
     .models = BUILT_IN},
    {"fp16.hysteresis", "overflows after which it is halved",
     U32(fp16.hysteresis, 1, 1e9), .default_value = "2", .models = BUILT_IN},
    {"fp16.consecutive_hysteresis",
     "true: each step without an overflow restores the hysteresis; false: loss_scale_window such steps restore it",
     BOOL(fp16.consecutive_hysteresis), .default_value = "false",
     .models = BUILT_IN},
    {"fp16.min_loss_scale",
     "an overflow at this scale ends the run with exit 1",
     REAL(fp16.min_loss_scale, 1e-6, HUGE), .default_value = "1",
     .models = BUILT_IN},
    {"bf16.enabled", "operands of matrix products are rounded to bf16",
     BOOL(bf16.enabled), .default_value = "false", .models = BUILT_IN},
    {"bf16.check_overflow", "skip steps whose gradients are infinite or NaN",
     BOOL(bf16.check_overflow), .default_value = "false", .models = BUILT_IN},
    {"tf32", "GPUs round the operands of matrix products to TF32", BOOL(tf32),
     .default_value = "false", .models = BUILT_IN},

    OPTIMIZER(
        OWN, optimizer, schedule.lr, "None",
        "the update rule, by names of torch.optim, Ftrl by TensorFlow's; None: with model.type external, whose trainers apply one themselves")
        OPTIMIZER(WIDE, groups[JOB_GROUP_WIDE].optimizer,
                  groups[JOB_GROUP_WIDE].lr, "",
                  "the update rule of the group wide")
            OPTIMIZER(DEEP, groups[JOB_GROUP_DEEP].optimizer,
                      groups[JOB_GROUP_DEEP].lr, "",
                      "the update rule of the group deep")

                {"scheduler.type",
                 "how the learning rate changes: by names and formulas of DeepSpeed, TensorFlow and torch; a step is an update",
                 CHOICE(schedule.type, "none", "WarmupLR", "WarmupDecayLR",
                        "WarmupCosineLR", "ExponentialDecay", "ExponentialLR",
                        "StepLR", "PiecewiseConstantDecay", "MultiStepLR",
                        "PolynomialDecay", "PolynomialLR", "InverseTimeDecay",
                        "CosineDecay", "CosineAnnealingLR",
                        "CosineDecayRestarts", "CosineAnnealingWarmRestarts"),
                 .default_value = "\"none\""},
    {"scheduler.params.warmup_min_lr", "the first rate",
     REAL(schedule.warmup_min_lr, 0, HUGE), .default_value = "0",
     .schedules = WARMUP | DECAY},
    {"scheduler.params.warmup_max_lr",
     "the highest rate, in place of optimizer.params.lr",
     REAL(schedule.warmup_max_lr, 0, HUGE), .default_value = "0.001",
     .schedules = WARMUP | DECAY},
    {"scheduler.params.warmup_num_steps",
     "steps from the first rate to the highest",
     U64(schedule.warmup_num_steps, 0, MANY), .default_value = "1000",
     .schedules = WARMUP | DECAY | COSINE},
    {"scheduler.params.total_num_steps", "steps until the rate is at its end",
     U64(schedule.total_num_steps, 1, MANY), .required = true,
     .schedules = DECAY | COSINE},
    {"scheduler.params.warmup_min_ratio",
     "first rate, as a fraction of optimizer.params.lr",
     REAL(schedule.warmup_min_ratio, 0, HUGE), .default_value = "0",
     .schedules = COSINE},
    {"scheduler.params.cos_min_ratio",
     "last rate, as a fraction of optimizer.params.lr",
     REAL(schedule.cos_min_ratio, 0, HUGE), .default_value = "0.0001",
     .schedules = COSINE},
    {"scheduler.params.warmup_type", "how the rate grows",
     BOOL_WORD(schedule.warmup_linear, "log", "linear"),
     .default_value = "\"log\"", .schedules = WARMUP | DECAY | COSINE},
    {"scheduler.params.initial_learning_rate",
     "the first rate, in place of optimizer.params.lr",
     REAL(schedule.initial_lr, 1e-30, HUGE),
     .schedules =
         EXPONENTIAL | POLYNOMIAL | INVERSE_TIME | COSINE_DECAY | RESTARTS},
    {"scheduler.params.decay_steps",
     "steps of a decay by decay_rate, or until the rate is at its end",
     U64(schedule.period, 1, MANY), .required = true,
     .schedules = EXPONENTIAL | POLYNOMIAL | INVERSE_TIME | COSINE_DECAY},
    {"scheduler.params.first_decay_steps", "steps of the first period",
     U64(schedule.period, 1, MANY), .required = true, .schedules = RESTARTS},
    {"scheduler.params.decay_rate", "factor of the decay",
     REAL(schedule.decay_rate, 0, HUGE), .required = true,
     .schedules = EXPONENTIAL | INVERSE_TIME},
    {"scheduler.params.staircase", "decay after whole periods only",
     BOOL(schedule.staircase), .default_value = "false",
     .schedules = EXPONENTIAL | INVERSE_TIME},
    {"scheduler.params.end_learning_rate", "the last rate",
     REAL(schedule.end_rate, 0, HUGE), .default_value = "0.0001",
     .schedules = POLYNOMIAL},
    {"scheduler.params.power", "power of the polynomial",
     REAL(schedule.power, 0, HUGE), .default_value = "1",
     .schedules = POLYNOMIAL | POLYNOMIAL_LR},
    {"scheduler.params.cycle",
     "begin again, over twice, three times ... decay_steps",
     BOOL(schedule.cycle), .default_value = "false", .schedules = POLYNOMIAL},
    {"scheduler.params.alpha", "last rate, as a fraction of the first",
     REAL(schedule.alpha, 0, 1), .default_value = "0",
     .schedules = COSINE_DECAY | RESTARTS},
    {"scheduler.params.t_mul", "factor from one period's length to the next",
     REAL(schedule.t_mul, 1, HUGE), .default_value = "2",
     .schedules = RESTARTS},
    {"scheduler.params.m_mul", "factor from one period's height to the next",
     REAL(schedule.m_mul, 0, HUGE), .default_value = "1",
     .schedules = RESTARTS},
    {"scheduler.params.boundaries", "steps after which the value changes",
     REALS(schedule.bounds, 0, MANY, 1), .required = true,
     .schedules = PIECEWISE},
    {"scheduler.params.values", "rates, one more than boundaries",
     REALS(schedule.values, 0, HUGE, 2), .required = true,
     .schedules = PIECEWISE},
    {"scheduler.params.gamma", "factor of a decay",
     REAL(schedule.decay_rate, 0, HUGE), .required = true,
     .schedules = EXPONENTIAL_LR},
    {"scheduler.params.gamma", REAL(schedule.decay_rate, 0, HUGE),
     .default_value = "0.1", .schedules = STEP_LR | MULTI_STEP_LR},
    {"scheduler.params.step_size", "steps between two decays",
     U64(schedule.period, 1, MANY), .required = true, .schedules = STEP_LR},
    {"scheduler.params.milestones", "steps at which the rate decays",
     REALS(schedule.bounds, 0, MANY, 1), .required = true,
     .schedules = MULTI_STEP_LR},
    {"scheduler.params.total_iters", "steps until the rate is 0",
     U64(schedule.period, 1, MANY), .default_value = "5",
     .schedules = POLYNOMIAL_LR},
    {"scheduler.params.T_max", "steps from the highest rate to the lowest",
     U64(schedule.period, 1, MANY), .required = true,
     .schedules = ANNEALING_LR},
    {"scheduler.params.T_0", "steps of the first period",
     U64(schedule.period, 1, MANY), .required = true,
     .schedules = WARM_RESTARTS},
    {"scheduler.params.T_mult", "factor from one period's length to the next",
     REAL(schedule.t_mul, 1, HUGE), .default_value = "1",
     .schedules = WARM_RESTARTS},
    {"scheduler.params.eta_min", "the lowest rate",
     REAL(schedule.end_rate, 0, HUGE), .default_value = "0",
     .schedules = ANNEALING_LR | WARM_RESTARTS},
    {"scale_lr",
     "linear: the rate, and warmup_max_lr, times the number of replicas; not with staleness",
     BOOL_WORD(scale_lr, "none", "linear"), .default_value = "\"none\""},

    {"strategy.type",
     "how gradients are combined; without it by ps if any are listed, else by all-reduce",
     CHOICE(strategy, "", "ps", "allreduce")},
    {"strategy.staleness",
     "0 synchronous, N stale-synchronous, inf asynchronous",
     .kind = JOB_KIND_STALENESS, .field = FIELD(staleness), .min = 0,
     .max = MANY, .default_value = "0"},
    {"strategy.backup_workers",
     "how many of the trainers a round closes without: it takes the first gradients of the others, whichever they are",
     U32(backup_workers, 0, PEERS), .default_value = "0"},
    {"strategy.recovery",
     "when a ps, or a trainer of all-reduce, dies: rewind, the run goes back to its newest checkpoint and goes on; end, it ends with 138. Without it rewind if there is checkpoint.dir, or strategy.replicas",
     CHOICE(recovery, "", "rewind", "end")},
    {"strategy.replicas",
     "1: each ps keeps a copy of its part in its memory and in that of another ps, from which the run goes on after a ps has died",
     U32(replicas, 0, 1), .default_value = "0"},
    {"strategy.buddy_steps",
     "steps between two such copies; 0: as many as keep them below 5 % of what trainers send, from 100 to 1000, with tables 1000",
     U64(buddy_steps, 0, MANY), .default_value = "0"},
    {"strategy.ps_threads",
     "threads that sum and update a ps's blocks; the results do not depend on it",
     U32(ps_threads, 1, 64)},
    {"strategy.backend",
     "library of all-reduce; auto takes nccl if each rank has a GPU of its own, else gloo, and logs the reason; nccl needs a GPU for each rank",
     CHOICE(backend, "auto", "gloo", "nccl"), .default_value = "\"auto\""},
    {"strategy.algorithm", "algorithm of Gloo's all-reduce; not with ZeRO",
     CHOICE(algorithm, "ring", "halving_doubling"),
     .default_value = "\"ring\""},
    {"zero_optimization.stage",
     "for all-reduce: from 1 on each rank keeps a part of the optimiser state and gathers the weights of the other ranks. All stages give the same weights",
     U32(zero.stage, 0, 2), .default_value = "0"},
    {"zero_optimization.reduce_bucket_size",
     "elements of gradients that are summed at a time",
     PARAMETERS(zero.reduce_bucket), .default_value = "500000000"},
    {"zero_optimization.allgather_bucket_size",
     "elements of weights that are gathered at a time",
     PARAMETERS(zero.allgather_bucket), .default_value = "500000000"},
    /* torch's DDP overlaps always, DeepSpeed only in stage 3 */
    {"zero_optimization.overlap_comm", "sum a bucket during the backward pass",
     BOOL(zero.overlap), .default_value = "true", .deepspeed = "false"},
    {"zero_optimization.offload_optimizer.device",
     "cpu: trainers on GPUs keep the state in host memory and update the weights there",
     BOOL_WORD(zero.offload, "none", "cpu"), .default_value = "\"none\""},
    {"zero_optimization.cpu_offload",
     "true means offload_optimizer.device \"cpu\", the key of older DeepSpeed versions",
     BOOL(zero.cpu_offload), .default_value = "false"},
    {"activation_checkpointing.number_checkpoints",
     "hidden layers whose outputs are kept for the backward pass, which recomputes the others to the same bits; 0, or the number of hidden layers, keeps all",
     U32(model.kept, 0, 1e9), .default_value = "0", .models = MLP},
    {"wire", "format of gradients and weights in messages",
     CHOICE(wire, "float32", "bf16"), .default_value = "\"float32\""},
    {"chief", "the chief trains too, or only coordinates",
     CHOICE(chief, "", "train", "coordinate")},
    {"device",
     "device of the trainers: a GPU if there is one, only the CPU, or only a GPU",
     CHOICE(device, "auto", "cpu", "cuda"), .default_value = "\"auto\""},
    {"devices",
     "largest number of devices of a trainer; 0: all that it sees and shares with no other trainer",
     U32(devices, 0, JOB_MAX_DEVICES), .default_value = "0"},
    {"threads", "compute threads of a trainer", U32(threads, 1, 1024),
     .default_value = "1"},
    {"workers",
     "number of workers, where the chief's cluster description does not list all; with --join the most that may take part",
     U32(workers, 1, PEERS)},

    {"checkpoint.dir", "folder of the checkpoints; without it none is written",
     PATH(checkpoint.dir)},
    {"checkpoint.every_steps", "a checkpoint after so many steps; 0: none",
     U64(checkpoint.every_steps, 0, MANY), .default_value = "0"},
    {"checkpoint.every_epochs", "a checkpoint after so many epochs; 0: none",
     U64(checkpoint.every_epochs, 0, MANY), .default_value = "0"},
    {"checkpoint.every_seconds",
     "a checkpoint after so many seconds; 0: none, the default beside one of the two above",
     REAL(checkpoint.every_seconds, 0, LONG),
     .default_value = "600"}, /* 0 if one of the two above is given */
    {"checkpoint.delta_every_steps",
     "models with tables: a checkpoint of only those rows that changed; 0: none",
     U64(checkpoint.delta_every_steps, 0, MANY), .default_value = "0"},
    {"checkpoint.keep", "number of checkpoints to keep; 0 is all",
     U32(checkpoint.keep, 0, 1e9), .default_value = "5"},
    {"checkpoint.copy_mb",
     "memory for copies while a checkpoint is written; 0 is half of the free memory",
     U64(checkpoint.copy_mb, 0, 1e9), .default_value = "0"},
    {"checkpoint.resume",
     "auto: the newest complete checkpoint, else a new run; never: a new run; a number: the checkpoint of that step",
     .kind = JOB_KIND_RESUME, .field = FIELD(checkpoint), .min = 0, .max = MANY,
     .default_value = "\"auto\""},

    {"tensorboard.enabled", "write event files", BOOL(tensorboard),
     .default_value = "false"},
    {"tensorboard.output_path",
     "folder of the event files; without it tensorboard",
     PATH(tensorboard_path)},
    {"tensorboard.job_name", "a folder in tensorboard.output_path",
     .kind = JOB_KIND_TEXT, .field = FIELD(tensorboard_name),
     .default_value = "\"\"", .deepspeed = "\"DeepSpeedJobName\""},
    {"tensorboard.histogram_every_steps",
     "also histograms of weights and gradients; 0: none",
     U64(histogram_every_steps, 0, MANY), .default_value = "0"},
    {"metrics.jsonl",
     "a file of JSON lines: each point of the run, before them the job, at the end the summary",
     PATH(metrics_jsonl)},
    {"mlflow.tracking_uri",
     "the MLflow server that gets the metrics; without it the variable MLFLOW_TRACKING_URI; an empty string: none, whatever the environment says",
     .kind = JOB_KIND_TEXT, .field = FIELD(mlflow.tracking_uri)},
    {"mlflow.experiment",
     "the experiment of a new run; without it MLFLOW_EXPERIMENT_NAME, or Default",
     .kind = JOB_KIND_TEXT, .field = FIELD(mlflow.experiment)},
    {"mlflow.run_name",
     "the name of a new run; without it MLFLOW_RUN_NAME, or capstan-RUN",
     .kind = JOB_KIND_TEXT, .field = FIELD(mlflow.run_name)},
    {"security.secret_file",
     "the job's secret, as capstan keygen writes it; --secret-file and CAPSTAN_SECRET_FILE are before it. Processes that do not read the job need one of those",
     PATH(secret_file)},
    {"export.path",
     "all weights in one file, at the end; its folder is made at the start. If the export fails the exit code is 1",
     PATH(export_path), .words = WORDS(".safetensors", ".npz")},
    {"init", "initial weights; not read if the run resumes from a checkpoint",
     PATH(init), .words = WORDS(".safetensors")},
    {"steps_per_print",
     "steps between two points of the metrics and between two log lines; without it the run has 50 to 125 points, and one without an end has one each 100 steps",
     U32(steps_per_print, 1, 1e9), .deepspeed = "10"},
    {"on_nan",
     "stop: a NaN loss ends the run with exit code 1; skip: its step is skipped, by a script's model with capstan.torch only",
     BOOL_WORD(nan_skip, "stop", "skip"), .default_value = "\"stop\""},

    {"timeouts.join", "seconds for the start, until all processes have joined",
     REAL(timeouts.join, 0.1, LONG), .default_value = "600"},
    {"timeouts.peer", "seconds of silence of a peer's heartbeats",
     REAL(timeouts.peer, 0.1, LONG), .default_value = "30"},
    {"timeouts.step", "seconds of one step while all processes are alive",
     REAL(timeouts.step, 0.1, LONG), .default_value = "1800"},
    {"timeouts.grace", "seconds for the checkpoint after SIGTERM",
     REAL(timeouts.grace, 0.1, LONG), .default_value = "30"},
    {"timeouts.stop", "seconds for the end of the run",
     REAL(timeouts.stop, 0.1, LONG), .default_value = "5"},
    {"timeouts.recover",
     "seconds in which a ps that died is back, and the others have joined again",
     REAL(timeouts.recover, 0.1, LONG), .default_value = "300"},
    {"timeouts.spare",
     "seconds in which a ps that died is awaited where the others can take over its weights; 0: they do at once",
     REAL(timeouts.spare, 0, LONG), .default_value = "10"},
    {"timeouts.chief",
     "seconds in which a chief that died is back, where the run goes back; 0: its death ends the run",
     REAL(timeouts.chief, 0, LONG), .default_value = "300"},

    /* Ranges are those of the flags; --latency-us alone may be 0. */
    {"compare.ps", "numbers of ps that hold blocks", COUNTS(compare.ps)},
    {"compare.workers",
     "numbers of workers; in a cluster only their actual number",
     COUNTS(compare.workers)},
    {"compare.steps", "rounds of each run", U64(compare.steps, 1, 1e12)},
    {"compare.repeats", "runs of each case",
     U64(compare.repeats, 1, JOB_MAX_REPEATS)},
    {"compare.limit", "longest time of a run, seconds",
     REAL(compare.limit, 1, 1e6)},
    {"compare.csv", "also write the table to this file", PATH(compare.csv)},
    {"compare.plot", "also draw the table, with gnuplot", PATH(compare.plot),
     .words = WORDS(".svg", ".png")},
    {"compare.tensorboard", "also write each case for TensorBoard's HParams",
     PATH(compare.tensorboard)},
    {"compare.report", "also write the table, with bars, as one page of HTML",
     PATH(compare.report)},
    {"compare.link_gbits",
     "bandwidth of a host's link in each direction, 10^9 bits/s",
     REAL(compare.link_gbits, 1e-3, 1e5)},
    {"compare.latency_us", "latency between two hosts, microseconds",
     REAL(compare.latency_us, 1e-3, 1e6)},
};

#define OVER_0 "{\"not\": {\"enum\": [0, null]}}"
#define NONZERO "{\"type\": \"number\", \"exclusiveMinimum\": 0}"
#define IS_TRUE "{\"const\": true}"
#define ZERO_IF_ANY "{\"enum\": [0, null]}"
#define NOT_TRUE "{\"not\": {\"const\": true}}"
#define NOT_FALSE "{\"not\": {\"const\": false}}"
#define IS_FALSE "{\"const\": false}"
#define TWO_PATHS                                                              \
    "{\"type\": [\"array\", \"null\"], \"minItems\": 2, \"maxItems\": 2}"
#define NOT_WORD(pattern)                                                      \
    "{\"not\": {\"type\": \"string\", \"pattern\": \"^" pattern "$\"}}"
#define NESTEROV(object)                                                       \
    {object ".params.nesterov", IS_TRUE, object ".params.momentum",            \
     .must = NONZERO, .needed = true},                                         \
        {object ".params.nesterov", IS_TRUE, object ".params.dampening",       \
         .must = ZERO_IF_ANY},

const struct job_rule job_schema_rules[] = {
    {"epochs", JOB_GIVEN, "steps", .must = JOB_LEFT_OUT},
    {"optimizer.type", "None", "model.type", .must = "external",
     "found \"None\"; allowed: only with model.type \"external\", whose trainers apply one themselves",
     .needed = true},
    {"strategy.recovery", "rewind", "checkpoint.dir", .must = JOB_GIVEN,
     "found \"rewind\" without checkpoint.dir: there is nothing to go back to; give checkpoint.dir, strategy.replicas 1, or strategy.recovery \"end\"",
     .needed = true, .or_other = "strategy.replicas"},
    {"strategy.recovery", "end", "strategy.replicas", .must = ZERO_IF_ANY,
     "found with strategy.recovery \"end\"; allowed there: 0, as the run does not go back",
     .at_other = true},
    {"strategy.type", "allreduce", "strategy.replicas", .must = ZERO_IF_ANY,
     "found with strategy.type \"allreduce\"; allowed there: 0, as each rank has all weights",
     .at_other = true},
    {"strategy.buddy_steps", "{\"not\": {\"enum\": [0, null]}}",
     "strategy.replicas", .must = JOB_IS_ONE,
     "found without strategy.replicas 1; allowed: 0, or both keys",
     .needed = true},
    {"optimizer.type", "None", "strategy.staleness", .must = ZERO_IF_ANY,
     "found \"None\" with strategy.staleness; allowed there: " OPTIMIZER_WORDS},
    NESTEROV("optimizer") NESTEROV("optimizers.wide")
        NESTEROV("optimizers.deep")
    /* A mean over the ranks is of a larger batch. */
    {"scale_lr", "linear", "strategy.staleness", .must = ZERO_IF_ANY,
     "found \"linear\" with strategy.staleness; allowed: only with staleness 0, as each push is an update of its own otherwise"},
    {"strategy.type", "allreduce", "strategy.staleness", .must = ZERO_IF_ANY,
     "found with type \"allreduce\"; allowed there: 0, as it is synchronous",
     .at_other = true},
    {"strategy.backup_workers", OVER_0, "strategy.staleness",
     .must = ZERO_IF_ANY,
     "found with strategy.staleness; allowed there: 0, as no push awaits those of all"},
    {"strategy.backup_workers", OVER_0, "strategy.type",
     .must = NOT_WORD("[aA][lL][lL][rR][eE][dD][uU][cC][eE]"),
     "found with strategy.type \"allreduce\", which sums the gradients of all; allowed there: 0"},
    {"strategy.backup_workers", OVER_0, "gradient_clipping",
     .must = ZERO_IF_ANY,
     "found with gradient_clipping, whose norm is that of one round of all blocks; allowed there: 0"},
    {"strategy.backup_workers", OVER_0, "optimizer.type",
     .must = NOT_WORD("[nN][oO][nN][eE]"),
     "found with optimizer \"None\", whose updates are the trainers' own; allowed there: 0"},
    {"strategy.backup_workers", OVER_0, "model.type", .must = "mlp|external",
     "found with a built-in model other than \"mlp\"; allowed there: 0, as tables have no backup workers"},
    {"strategy.type", "allreduce", "wire", .must = NOT_WORD("[bB][fF]16"),
     "found \"bf16\" with strategy.type \"allreduce\"; allowed there: \"float32\"",
     .at_other = true},
    {"fp16.enabled", IS_TRUE, "bf16.enabled", .must = NOT_TRUE,
     "found true beside bf16.enabled; allowed: one of the two"},
    {"fp16.enabled", IS_TRUE, "bfloat16.enabled", .must = NOT_TRUE},
    {"tf32", IS_TRUE, "fp16.enabled", .must = NOT_TRUE,
     "found true beside fp16.enabled; allowed: one of the two"},
    {"tf32", IS_TRUE, "bf16.enabled", .must = NOT_TRUE,
     "found true beside bf16.enabled; allowed: one of the two"},
    {"tf32", IS_TRUE, "bfloat16.enabled", .must = NOT_TRUE},
    {"tf32", IS_TRUE, "device", .must = NOT_WORD("[cC][pP][uU]"),
     "found true with device \"cpu\"; allowed there: false, as only GPUs have it"},
    {"checkpoint.resume", "{\"type\": \"integer\"}", "checkpoint.dir",
     .must = JOB_GIVEN,
     "found a step without checkpoint.dir; give the folder that holds it",
     .needed = true},
    {"tensorboard.histogram_every_steps", OVER_0, "tensorboard.enabled",
     .must = IS_TRUE,
     "found without \"enabled\": true, and histograms are in the event files; allowed: 0, or both keys",
     .needed = true},
    {"mlflow", "{\"type\": \"object\"}", "mlflow.tracking_uri",
     .must = "{\"pattern\": \"^$|^([hH][tT][tT][pP][sS]?|"
             "[aA][zZ][uU][rR][eE][mM][lL])://[^/@?# \\t\\r\\n]+(/|$)\"}"},
    {"mlflow", "{\"type\": \"object\"}", "mlflow.experiment",
     .must = "{\"minLength\": 1}"},
    {"mlflow", "{\"type\": \"object\"}", "mlflow.run_name",
     .must = "{\"minLength\": 1}"},
    {"data.format", "csv", "data.delimiter",
     .must = "{\"maxLength\": 1, \"pattern\": \"^[\\u0001-\\u007f]$\","
             " \"not\": {\"enum\": [\"\\\"\", \"\\r\", \"\\n\"]}}"},
    {"data.format", "csv", "data",
     .must =
         "{\"anyOf\": [{\"properties\": {\"columns\": {\"type\": \"array\"},"
         "                               \"header\": {\"not\": {\"const\": true}}},"
         "              \"required\": [\"columns\"]},"
         "             {\"properties\": {\"columns\": {\"type\": \"null\"},"
         "                               \"header\": {\"const\": true}},"
         "              \"required\": [\"header\"]}]}"},
    {"data.format", "criteo" JOB_DATA_FORMAT_ROWS(JOB_NONE, BAR_WORD),
     "features", .must = JOB_GIVEN,
     "missing; allowed: an object with the features of the model, by name",
     .needed = true, .at_other = true},
    {"data.format", "criteo", "data.header",
     .must = "{\"enum\": [false, null]}",
     "found true; allowed: false: Criteo's files have no line with names",
     .at_other = true},
    {"data.format", "libsvm", "features",
     .must = "{\"additionalProperties\": {\"properties\": {\"type\": {\"not\":"
             " {\"enum\": [\"numeric\", \"bucketized\", \"vocabulary\"]}}}}}"},
    {"data.format", "idx", "data.train", .must = TWO_PATHS},
    {"data.format", "idx", "data.test", .must = TWO_PATHS},
    {"optimizer.params.adam_w_mode", IS_TRUE, "optimizer.type",
     .must = "Adam|AdamW", .needed = true},
    {"scheduler.params.total_num_steps", "{\"const\": \"auto\"}", "steps",
     .must = JOB_GIVEN, .needed = true},
    {"bfloat16.enabled", IS_TRUE, "bf16.enabled", .must = NOT_FALSE},
    {"bfloat16.enabled", IS_FALSE, "bf16.enabled", .must = NOT_TRUE},
    {"dataloader_drop_last", IS_TRUE, "data.drop_last", .must = NOT_FALSE},
    {"dataloader_drop_last", IS_FALSE, "data.drop_last", .must = NOT_TRUE},
    {.path = NULL},
};

/* A model's keys follow its type, and all follow what sets defaults. */
const struct job_key *job_schema_row(const struct job_models *models,
                                     size_t i) {
    const size_t before = JOB_SCHEMA_FIRST, count = sizeof keys / sizeof *keys;
    if (i < before)
        return &keys[i];
    for (int type = 0; models && type < JOB_MODEL_TYPES; type++) {
        const struct job_model_schema *schema = models->of_type[type];
        if (!schema)
            continue;
        if (i - before < schema->num_keys)
            return &schema->keys[i - before];
        i -= schema->num_keys;
    }
    return i < count ? &keys[i] : NULL;
}

const struct job_key *job_schema_find(const struct job_models *models,
                                      const char *path) {
    const struct job_key *key;
    for (size_t i = 0; (key = job_schema_row(models, i)); i++)
        if (!strcmp(key->path, path))
            break;
    return key;
}

bool job_schema_applies(const struct job_key *key, const struct job *job) {
    if (key->models && !(key->models & 1u << job->model.type))
        return false;
    if (key->formats && !(key->formats & 1u << job->data.format))
        return false;
    const struct optimizer *optimizer =
        key->group ? &job->groups[key->group].optimizer : &job->optimizer;
    if (key->optimizers && !(key->optimizers & 1u << optimizer->type))
        return false;
    return !key->schedules || key->schedules & 1u << job->schedule.type;
}

const char *job_schema_group(enum job_group group, enum job_model_type type) {
    static const struct {
        const char *name;
        unsigned models;
    } groups[JOB_GROUPS] = {[JOB_GROUP_WIDE] = {"wide", WITH_WIDE},
                            [JOB_GROUP_DEEP] = {"deep", WITH_DEEP}};
    return groups[group].models & 1u << type ? groups[group].name : NULL;
}
