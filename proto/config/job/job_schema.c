/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/config/job/job_schema.h"

#define FIELD(member) offsetof(struct job, member)
#define WORDS(...) ((const char *const[]){__VA_ARGS__, NULL})

#define SGD (1u << OPTIMIZER_SGD)
#define ADAGRAD (1u << OPTIMIZER_ADAGRAD)
#define RMSPROP (1u << OPTIMIZER_RMSPROP)
#define ADAM (1u << OPTIMIZER_ADAM)
#define ADAMW (1u << OPTIMIZER_ADAMW)
#define FTRL (1u << OPTIMIZER_FTRL)

#define MLP (1u << JOB_MLP)
#define BUILT_IN (~(1u << JOB_EXTERNAL))
#define WITH_WIDE (BUILT_IN & ~MLP & ~(1u << JOB_DLRM))
#define WITH_DEEP (BUILT_IN & ~(1u << JOB_LINEAR))

#define CSV (1u << JOB_CSV)
#define NAMED                                                                  \
    (CSV | 1u << JOB_TFRECORD | 1u << JOB_NPZ | 1u << JOB_NPY |                \
     1u << JOB_SAFETENSORS)
#define CRITEO (1u << JOB_CRITEO)
#define RECORDS (NAMED | CRITEO | 1u << JOB_LIBSVM)

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

/* The keys of an optimizer, each by ROW; its fields are OF and RATE, LAST a
 * further word of its type or NULL. Ranges are those that torch.optim checks.
 */
#define OPTIMIZER(ROW, of, rate, last)                                         \
    ROW("type",                                                                \
        CHOICE(of.type, "SGD", "Adagrad", "RMSprop", "Adam", "AdamW", "Ftrl",  \
               last),                                                          \
        .required = true)                                                      \
    ROW("params.lr", REAL(rate, 0, HUGE), .default_value = "0.001",            \
        .tf = "0.01", .optimizers = SGD)                                       \
    ROW("params.lr", REAL(rate, 0, HUGE), .default_value = "0.001",            \
        .optimizers = ADAM | ADAMW | FTRL)                                     \
    ROW("params.lr", REAL(rate, 0, HUGE), .default_value = "0.01",             \
        .tf = "0.001", .optimizers = ADAGRAD | RMSPROP)                        \
    ROW("params.momentum", REAL(of.momentum, 0, HUGE), .default_value = "0",   \
        .optimizers = SGD | RMSPROP)                                           \
    ROW("params.dampening", REAL(of.dampening, -HUGE, HUGE),                   \
        .default_value = "0", .optimizers = SGD)                               \
    ROW("params.nesterov", BOOL(of.nesterov), .default_value = "false",        \
        .optimizers = SGD)                                                     \
    ROW("params.weight_decay", REAL(of.weight_decay, 0, HUGE),                 \
        .default_value = "0", .optimizers = SGD | ADAGRAD | RMSPROP | ADAM)    \
    ROW("params.weight_decay", REAL(of.weight_decay, 0, HUGE),                 \
        .default_value = "0.01", .deepspeed = "0", .tf = "0.004",              \
        .optimizers = ADAMW)                                                   \
    ROW("params.maximize", BOOL(of.maximize), .default_value = "false",        \
        .optimizers = SGD | ADAGRAD | RMSPROP | ADAM | ADAMW)                  \
    ROW("params.lr_decay", REAL(of.lr_decay, 0, HUGE), .default_value = "0",   \
        .optimizers = ADAGRAD)                                                 \
    ROW("params.initial_accumulator_value",                                    \
        REAL(of.initial_accumulator_value, 0, HUGE), .default_value = "0",     \
        .tf = "0.1", .optimizers = ADAGRAD)                                    \
    ROW("params.initial_accumulator_value",                                    \
        REAL(of.initial_accumulator_value, 0, HUGE), .default_value = "0.1",   \
        .optimizers = FTRL)                                                    \
    ROW("params.alpha", REAL(of.alpha, 0, 1), .default_value = "0.99",         \
        .tf = "0.9", .optimizers = RMSPROP)                                    \
    ROW("params.centered", BOOL(of.centered), .default_value = "false",        \
        .optimizers = RMSPROP)                                                 \
    ROW("params.betas", .kind = JOB_KIND_BETAS, .field = FIELD(of),            \
        .default_value = "[0.9, 0.999]", .optimizers = ADAM | ADAMW)           \
    ROW("params.eps", REAL(of.eps, 0, HUGE), .default_value = "1e-10",         \
        .tf = "1e-7", .optimizers = ADAGRAD)                                   \
    ROW("params.eps", REAL(of.eps, 0, HUGE), .default_value = "1e-8",          \
        .tf = "1e-7", .optimizers = RMSPROP | ADAM | ADAMW)                    \
    ROW("params.amsgrad", BOOL(of.amsgrad), .default_value = "false",          \
        .optimizers = ADAM | ADAMW)                                            \
    ROW("params.learning_rate_power", REAL(of.learning_rate_power, -HUGE, 0),  \
        .default_value = "-0.5", .optimizers = FTRL)                           \
    ROW("params.l1_regularization_strength", REAL(of.l1, 0, HUGE),             \
        .default_value = "0", .optimizers = FTRL)                              \
    ROW("params.l2_regularization_strength", REAL(of.l2, 0, HUGE),             \
        .default_value = "0", .optimizers = FTRL)

#define OWN(name, ...) {"optimizer." name, __VA_ARGS__},
#define WIDE(name, ...)                                                        \
    {"optimizers.wide." name, __VA_ARGS__, .models = WITH_WIDE,                \
     .group = JOB_GROUP_WIDE},
#define DEEP(name, ...)                                                        \
    {"optimizers.deep." name, __VA_ARGS__, .models = WITH_DEEP,                \
     .group = JOB_GROUP_DEEP},

static const struct job_key keys[] = {
    {"defaults", BOOL_WORD(tf_defaults, "torch", "tf"),
     .default_value = "\"torch\""},
    {"model.type",
     CHOICE(model.type, "mlp", "external", "linear", "fm", "deepfm",
            "wide_deep", "dlrm", "matrix_factorization"),
     .default_value = "\"mlp\""},
    {"data.format", CHOICE(data.format, JOB_DATA_FORMAT_WORDS),
     .default_value = "\"idx\"", .models = BUILT_IN},
    {"data.dir", PATH(data.dir), .models = BUILT_IN},
    {"data.train", .kind = JOB_KIND_FILES, .field = FIELD(data.train),
     .models = BUILT_IN, .required = true},
    {"data.test", .kind = JOB_KIND_FILES, .field = FIELD(data.test),
     .models = BUILT_IN},
    {"data.shuffle", BOOL(data.shuffle), .default_value = "true",
     .models = BUILT_IN},
    {"data.shuffle_buffer", U32(data.shuffle_buffer, 1, 1e9),
     .default_value = "65536", .models = BUILT_IN, .formats = RECORDS},
    {"data.bad_lines", BOOL_WORD(data.skip_bad_lines, "stop", "skip"),
     .default_value = "\"stop\"", .models = BUILT_IN, .formats = RECORDS},
    {"data.header", BOOL(data.header), .default_value = "false",
     .models = BUILT_IN, .formats = CSV | CRITEO},
    {"data.columns", .kind = JOB_KIND_NAMES, .field = FIELD(data.columns),
     .models = BUILT_IN, .formats = CSV},
    {"data.delimiter", .kind = JOB_KIND_TEXT, .field = FIELD(data.delimiter),
     .default_value = "\",\"", .models = BUILT_IN, .formats = CSV | CRITEO},
    {"data.trim", BOOL(data.trim), .default_value = "true", .models = BUILT_IN,
     .formats = CSV},
    {"data.missing", .kind = JOB_KIND_NAMES, .field = FIELD(data.missing),
     .models = BUILT_IN, .formats = CSV},
    {"data.decimal", BOOL_WORD(data.decimal_comma, ".", ","),
     .default_value = "\".\"", .models = BUILT_IN, .formats = CSV},
    {"data.label", .kind = JOB_KIND_TEXT, .field = FIELD(data.label),
     .default_value = "\"label\"", .models = BUILT_IN,
     .formats = NAMED | CRITEO},
    {"data.weight", .kind = JOB_KIND_TEXT, .field = FIELD(data.weight),
     .models = BUILT_IN, .formats = NAMED},
    {"features", .kind = JOB_KIND_OBJECT, .field = FIELD(features),
     .models = BUILT_IN, .formats = RECORDS},
    {"data.drop_last", BOOL(data.drop_last), .default_value = "false",
     .models = BUILT_IN},
    {"data.num_workers", U32(data.num_workers, 0, 64), .default_value = "1",
     .models = BUILT_IN},
    {"data.prefetch_factor", U32(data.prefetch_factor, 1, 1024),
     .default_value = "2", .models = BUILT_IN},
    {"data.pin_memory", BOOL(data.pin_memory), .default_value = "false",
     .models = BUILT_IN},

    {"seed", U64(seed, 0, LARGEST), .default_value = "0"},
    {"epochs", U64(epochs, 1, MANY)},
    {"steps", .kind = JOB_KIND_STEPS, .min = 0, .max = MANY},
    {"steps_per_epoch", U64(steps_per_epoch, 1, MANY)},
    {"train_batch_size", U32(train_batch_size, 1, BATCH)},
    {"train_micro_batch_size_per_gpu", U32(micro_batch, 1, BATCH)},
    {"gradient_accumulation_steps", U32(accumulation, 1, BATCH)},
    {"gradient_clipping", REAL(gradient_clipping, 0, HUGE),
     .default_value = "0"},

    {"fp16.enabled", BOOL(fp16.enabled), .default_value = "false",
     .models = BUILT_IN},
    {"fp16.loss_scale", REAL(fp16.loss_scale, 0, HUGE), .default_value = "0",
     .models = BUILT_IN},
    {"fp16.initial_scale_power", U32(fp16.initial_scale_power, 0, FLOAT_POWERS),
     .default_value = "16", .models = BUILT_IN},
    {"fp16.loss_scale_window", U64(fp16.loss_scale_window, 1, MANY),
     .default_value = "1000", .models = BUILT_IN},
    {"fp16.hysteresis", U32(fp16.hysteresis, 1, 1e9), .default_value = "2",
     .models = BUILT_IN},
    {"fp16.consecutive_hysteresis", BOOL(fp16.consecutive_hysteresis),
     .default_value = "false", .models = BUILT_IN},
    {"fp16.min_loss_scale", REAL(fp16.min_loss_scale, 1e-6, HUGE),
     .default_value = "1", .models = BUILT_IN},
    {"bf16.enabled", BOOL(bf16.enabled), .default_value = "false",
     .models = BUILT_IN},
    {"bf16.check_overflow", BOOL(bf16.check_overflow), .default_value = "false",
     .models = BUILT_IN},
    {"tf32", BOOL(tf32), .default_value = "false", .models = BUILT_IN},

    OPTIMIZER(OWN, optimizer, schedule.lr, "None") OPTIMIZER(
        WIDE, groups[JOB_GROUP_WIDE].optimizer, groups[JOB_GROUP_WIDE].lr, NULL)
        OPTIMIZER(DEEP, groups[JOB_GROUP_DEEP].optimizer,
                  groups[JOB_GROUP_DEEP].lr, NULL)

            {"scheduler.type",
             CHOICE(schedule.type, "none", "WarmupLR", "WarmupDecayLR",
                    "WarmupCosineLR", "ExponentialDecay", "ExponentialLR",
                    "StepLR", "PiecewiseConstantDecay", "MultiStepLR",
                    "PolynomialDecay", "PolynomialLR", "InverseTimeDecay",
                    "CosineDecay", "CosineAnnealingLR", "CosineDecayRestarts",
                    "CosineAnnealingWarmRestarts"),
             .default_value = "\"none\""},
    {"scheduler.params.warmup_min_lr", REAL(schedule.warmup_min_lr, 0, HUGE),
     .default_value = "0", .schedules = WARMUP | DECAY},
    {"scheduler.params.warmup_max_lr", REAL(schedule.warmup_max_lr, 0, HUGE),
     .default_value = "0.001", .schedules = WARMUP | DECAY},
    {"scheduler.params.warmup_num_steps",
     U64(schedule.warmup_num_steps, 0, MANY), .default_value = "1000",
     .schedules = WARMUP | DECAY | COSINE},
    {"scheduler.params.total_num_steps", U64(schedule.total_num_steps, 1, MANY),
     .required = true, .schedules = DECAY | COSINE},
    {"scheduler.params.warmup_min_ratio",
     REAL(schedule.warmup_min_ratio, 0, HUGE), .default_value = "0",
     .schedules = COSINE},
    {"scheduler.params.cos_min_ratio", REAL(schedule.cos_min_ratio, 0, HUGE),
     .default_value = "0.0001", .schedules = COSINE},
    {"scheduler.params.warmup_type",
     BOOL_WORD(schedule.warmup_linear, "log", "linear"),
     .default_value = "\"log\"", .schedules = WARMUP | DECAY | COSINE},
    {"scheduler.params.initial_learning_rate",
     REAL(schedule.initial_lr, 1e-30, HUGE),
     .schedules =
         EXPONENTIAL | POLYNOMIAL | INVERSE_TIME | COSINE_DECAY | RESTARTS},
    {"scheduler.params.decay_steps", U64(schedule.period, 1, MANY),
     .required = true,
     .schedules = EXPONENTIAL | POLYNOMIAL | INVERSE_TIME | COSINE_DECAY},
    {"scheduler.params.first_decay_steps", U64(schedule.period, 1, MANY),
     .required = true, .schedules = RESTARTS},
    {"scheduler.params.decay_rate", REAL(schedule.decay_rate, 0, HUGE),
     .required = true, .schedules = EXPONENTIAL | INVERSE_TIME},
    {"scheduler.params.staircase", BOOL(schedule.staircase),
     .default_value = "false", .schedules = EXPONENTIAL | INVERSE_TIME},
    {"scheduler.params.end_learning_rate", REAL(schedule.end_rate, 0, HUGE),
     .default_value = "0.0001", .schedules = POLYNOMIAL},
    {"scheduler.params.power", REAL(schedule.power, 0, HUGE),
     .default_value = "1", .schedules = POLYNOMIAL | POLYNOMIAL_LR},
    {"scheduler.params.cycle", BOOL(schedule.cycle), .default_value = "false",
     .schedules = POLYNOMIAL},
    {"scheduler.params.alpha", REAL(schedule.alpha, 0, 1), .default_value = "0",
     .schedules = COSINE_DECAY | RESTARTS},
    {"scheduler.params.t_mul", REAL(schedule.t_mul, 1, HUGE),
     .default_value = "2", .schedules = RESTARTS},
    {"scheduler.params.m_mul", REAL(schedule.m_mul, 0, HUGE),
     .default_value = "1", .schedules = RESTARTS},
    {"scheduler.params.boundaries", REALS(schedule.bounds, 0, MANY, 1),
     .required = true, .schedules = PIECEWISE},
    {"scheduler.params.values", REALS(schedule.values, 0, HUGE, 2),
     .required = true, .schedules = PIECEWISE},
    {"scheduler.params.gamma", REAL(schedule.decay_rate, 0, HUGE),
     .required = true, .schedules = EXPONENTIAL_LR},
    {"scheduler.params.gamma", REAL(schedule.decay_rate, 0, HUGE),
     .default_value = "0.1", .schedules = STEP_LR | MULTI_STEP_LR},
    {"scheduler.params.step_size", U64(schedule.period, 1, MANY),
     .required = true, .schedules = STEP_LR},
    {"scheduler.params.milestones", REALS(schedule.bounds, 0, MANY, 1),
     .required = true, .schedules = MULTI_STEP_LR},
    {"scheduler.params.total_iters", U64(schedule.period, 1, MANY),
     .default_value = "5", .schedules = POLYNOMIAL_LR},
    {"scheduler.params.T_max", U64(schedule.period, 1, MANY), .required = true,
     .schedules = ANNEALING_LR},
    {"scheduler.params.T_0", U64(schedule.period, 1, MANY), .required = true,
     .schedules = WARM_RESTARTS},
    {"scheduler.params.T_mult", REAL(schedule.t_mul, 1, HUGE),
     .default_value = "1", .schedules = WARM_RESTARTS},
    {"scheduler.params.eta_min", REAL(schedule.end_rate, 0, HUGE),
     .default_value = "0", .schedules = ANNEALING_LR | WARM_RESTARTS},
    {"scale_lr", BOOL_WORD(scale_lr, "none", "linear"),
     .default_value = "\"none\""},

    {"strategy.type", CHOICE(strategy, "", "ps", "allreduce")},
    {"strategy.staleness", .kind = JOB_KIND_STALENESS,
     .field = FIELD(staleness), .min = 0, .max = MANY, .default_value = "0"},
    {"strategy.ps_threads", U32(ps_threads, 1, 64)},
    {"strategy.backend", CHOICE(backend, "auto", "gloo", "nccl"),
     .default_value = "\"auto\""},
    {"strategy.algorithm", CHOICE(algorithm, "ring", "halving_doubling"),
     .default_value = "\"ring\""},
    {"zero_optimization.stage", U32(zero.stage, 0, 2), .default_value = "0"},
    {"zero_optimization.reduce_bucket_size", PARAMETERS(zero.reduce_bucket),
     .default_value = "500000000"},
    {"zero_optimization.allgather_bucket_size",
     PARAMETERS(zero.allgather_bucket), .default_value = "500000000"},
    /* torch's DDP overlaps always, DeepSpeed only in stage 3 */
    {"zero_optimization.overlap_comm", BOOL(zero.overlap),
     .default_value = "true", .deepspeed = "false"},
    {"zero_optimization.offload_optimizer.device",
     BOOL_WORD(zero.offload, "none", "cpu"), .default_value = "\"none\""},
    {"zero_optimization.cpu_offload", BOOL(zero.cpu_offload),
     .default_value = "false"},
    {"activation_checkpointing.number_checkpoints", U32(model.kept, 0, 1e9),
     .default_value = "0", .models = MLP},
    {"wire", CHOICE(wire, "float32", "bf16"), .default_value = "\"float32\""},
    {"chief", CHOICE(chief, "", "train", "coordinate")},
    {"device", CHOICE(device, "auto", "cpu", "cuda"),
     .default_value = "\"auto\""},
    {"devices", U32(devices, 0, JOB_MAX_DEVICES), .default_value = "0"},
    {"threads", U32(threads, 1, 1024), .default_value = "1"},
    {"workers", U32(workers, 1, PEERS)},

    {"checkpoint.dir", PATH(checkpoint.dir)},
    {"checkpoint.every_steps", U64(checkpoint.every_steps, 0, MANY),
     .default_value = "0"},
    {"checkpoint.every_epochs", U64(checkpoint.every_epochs, 0, MANY),
     .default_value = "0"},
    {"checkpoint.every_seconds", REAL(checkpoint.every_seconds, 0, LONG),
     .default_value = "600"}, /* 0 if one of the two above is given */
    {"checkpoint.delta_every_steps", U64(checkpoint.delta_every_steps, 0, MANY),
     .default_value = "0"},
    {"checkpoint.keep", U32(checkpoint.keep, 0, 1e9), .default_value = "5"},
    {"checkpoint.copy_mb", U64(checkpoint.copy_mb, 0, 1e9),
     .default_value = "0"},
    {"checkpoint.resume", .kind = JOB_KIND_RESUME, .field = FIELD(checkpoint),
     .min = 0, .max = MANY, .default_value = "\"auto\""},

    {"tensorboard.enabled", BOOL(tensorboard), .default_value = "false"},
    {"tensorboard.output_path", PATH(tensorboard_path)},
    {"tensorboard.job_name", .kind = JOB_KIND_TEXT,
     .field = FIELD(tensorboard_name), .default_value = "\"\"",
     .deepspeed = "\"DeepSpeedJobName\""},
    {"export.path", PATH(export_path), .words = WORDS(".safetensors", ".npz")},
    {"init", PATH(init), .words = WORDS(".safetensors")},
    {"steps_per_print", U32(steps_per_print, 1, 1e9), .default_value = "100",
     .deepspeed = "10"},
    {"on_nan", BOOL_WORD(nan_skip, "stop", "skip"),
     .default_value = "\"stop\""},

    {"timeouts.join", REAL(timeouts.join, 0.1, LONG), .default_value = "600"},
    {"timeouts.peer", REAL(timeouts.peer, 0.1, LONG), .default_value = "30"},
    {"timeouts.step", REAL(timeouts.step, 0.1, LONG), .default_value = "1800"},
    {"timeouts.grace", REAL(timeouts.grace, 0.1, LONG), .default_value = "30"},
    {"timeouts.stop", REAL(timeouts.stop, 0.1, LONG), .default_value = "5"},

    /* Ranges are those of the flags; --latency-us alone may be 0. */
    {"compare.ps", COUNTS(compare.ps)},
    {"compare.workers", COUNTS(compare.workers)},
    {"compare.steps", U64(compare.steps, 1, 1e12)},
    {"compare.repeats", U64(compare.repeats, 1, JOB_MAX_REPEATS)},
    {"compare.limit", REAL(compare.limit, 1, 1e6)},
    {"compare.csv", PATH(compare.csv)},
    {"compare.plot", PATH(compare.plot), .words = WORDS(".svg", ".png")},
    {"compare.link_gbits", REAL(compare.link_gbits, 1e-3, 1e5)},
    {"compare.latency_us", REAL(compare.latency_us, 1e-3, 1e6)},
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

bool job_schema_may_apply(const struct job_key *key, const struct job *job) {
    return (job->model_unknown && (key->of_model || key->group)) ||
           (job->format_unknown &&
            (key->formats || key->kind == JOB_KIND_FILES));
}

const char *job_schema_group(enum job_group group, enum job_model_type type) {
    static const struct {
        const char *name;
        unsigned models;
    } groups[JOB_GROUPS] = {[JOB_GROUP_WIDE] = {"wide", WITH_WIDE},
                            [JOB_GROUP_DEEP] = {"deep", WITH_DEEP}};
    return groups[group].models & 1u << type ? groups[group].name : NULL;
}
