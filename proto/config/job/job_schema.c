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

#define WARMUP (1u << SCHEDULE_WARMUP)
#define DECAY (1u << SCHEDULE_WARMUP_DECAY)
#define COSINE (1u << SCHEDULE_WARMUP_COSINE)

#define BOOL(member) .kind = JOB_KIND_BOOL, .field = FIELD(member)
#define U32(member, from, to)                                                  \
    .kind = JOB_KIND_U32, .field = FIELD(member), .least = from, .most = to
#define U64(member, from, to)                                                  \
    .kind = JOB_KIND_U64, .field = FIELD(member), .least = from, .most = to
#define REAL(member, from, to)                                                 \
    .kind = JOB_KIND_REAL, .field = FIELD(member), .least = from, .most = to
#define CHOICE(member, ...)                                                    \
    .kind = JOB_KIND_CHOICE, .field = FIELD(member), .words = WORDS(__VA_ARGS__)
#define EITHER(member, no, yes)                                                \
    .kind = JOB_KIND_EITHER, .field = FIELD(member), .words = WORDS(no, yes)
#define PATH(member) .kind = JOB_KIND_PATH, .field = FIELD(member)
#define COUNTS(member)                                                         \
    .kind = JOB_KIND_COUNTS, .field = FIELD(member), .least = 1, .most = PEERS

#define MANY 1e15 /* steps, epochs: exact in a double */
#define HUGE JOB_BOUNDLESS
#define LARGEST 9223372036854774784.0 /* a double below 2^63 */
#define LONG 1e9                      /* seconds */
#define BATCH 16777216.0
#define FLOAT_POWERS 127.0 /* of two, that a float32 holds */
#define PEERS 1024.0

/* Ranges of the optimisers are those that torch.optim checks. */
static const struct job_key keys[] = {
    {"model.type", CHOICE(model.type, "mlp"), .usual = "\"mlp\""},
    {"model.layers", .kind = JOB_KIND_LAYERS, .field = FIELD(model), .least = 1,
     .most = BATCH, .required = true},
    {"model.activation",
     CHOICE(model.activation, "relu", "tanh", "sigmoid", "identity"),
     .usual = "\"relu\""},
    {"model.loss",
     CHOICE(model.loss, "softmax_cross_entropy", "sigmoid_cross_entropy",
            "mse"),
     .usual = "\"softmax_cross_entropy\""},
    {"data.format", CHOICE(data.format, "idx"), .usual = "\"idx\""},
    {"data.dir", PATH(data.dir)},
    {"data.train", .kind = JOB_KIND_FILES, .field = FIELD(data.train_images),
     .required = true},
    {"data.test", .kind = JOB_KIND_FILES, .field = FIELD(data.test_images)},
    {"data.shuffle", BOOL(data.shuffle), .usual = "true"},
    {"data.drop_last", BOOL(data.drop_last), .usual = "false"},
    {"data.num_workers", U32(data.num_workers, 0, 64), .usual = "1"},
    {"data.prefetch_factor", U32(data.prefetch_factor, 1, 1024), .usual = "2"},
    {"data.pin_memory", BOOL(data.pin_memory), .usual = "false"},

    {"seed", U64(seed, 0, LARGEST), .usual = "0"},
    {"epochs", U64(epochs, 1, MANY)},
    {"steps", .kind = JOB_KIND_STEPS, .least = 0, .most = MANY},
    {"steps_per_epoch", U64(steps_per_epoch, 1, MANY)},
    {"train_batch_size", U32(train_batch_size, 1, BATCH)},
    {"train_micro_batch_size_per_gpu", U32(micro_batch, 1, BATCH)},
    {"gradient_accumulation_steps", U32(accumulation, 1, BATCH)},
    {"gradient_clipping", REAL(gradient_clipping, 0, HUGE), .usual = "0"},

    {"fp16.enabled", BOOL(fp16.enabled), .usual = "false"},
    {"fp16.loss_scale", REAL(fp16.loss_scale, 0, HUGE), .usual = "0"},
    {"fp16.initial_scale_power", U32(fp16.initial_scale_power, 0, FLOAT_POWERS),
     .usual = "16"},
    {"fp16.loss_scale_window", U64(fp16.loss_scale_window, 1, MANY),
     .usual = "1000"},
    {"fp16.hysteresis", U32(fp16.hysteresis, 1, 1e9), .usual = "2"},
    {"fp16.consecutive_hysteresis", BOOL(fp16.consecutive_hysteresis),
     .usual = "false"},
    {"fp16.min_loss_scale", REAL(fp16.min_loss_scale, 1e-6, HUGE),
     .usual = "1"},
    {"bf16.enabled", BOOL(bf16.enabled), .usual = "false"},
    {"bf16.check_overflow", BOOL(bf16.check_overflow), .usual = "false"},

    {"optimizer.type",
     CHOICE(optimizer.type, "SGD", "Adagrad", "RMSprop", "Adam", "AdamW",
            "Ftrl"),
     .required = true},
    {"optimizer.params.lr", REAL(schedule.lr, 0, HUGE), .usual = "0.001",
     .optimizers = SGD | ADAM | ADAMW | FTRL},
    {"optimizer.params.lr", REAL(schedule.lr, 0, HUGE), .usual = "0.01",
     .optimizers = ADAGRAD | RMSPROP},
    {"optimizer.params.momentum", REAL(optimizer.momentum, 0, HUGE),
     .usual = "0", .optimizers = SGD | RMSPROP},
    {"optimizer.params.dampening", REAL(optimizer.dampening, -HUGE, HUGE),
     .usual = "0", .optimizers = SGD},
    {"optimizer.params.nesterov", BOOL(optimizer.nesterov), .usual = "false",
     .optimizers = SGD},
    {"optimizer.params.weight_decay", REAL(optimizer.weight_decay, 0, HUGE),
     .usual = "0", .optimizers = SGD | ADAGRAD | RMSPROP | ADAM},
    {"optimizer.params.weight_decay", REAL(optimizer.weight_decay, 0, HUGE),
     .usual = "0.01", .deepspeed = "0", .optimizers = ADAMW},
    {"optimizer.params.maximize", BOOL(optimizer.maximize), .usual = "false",
     .optimizers = SGD | ADAGRAD | RMSPROP | ADAM | ADAMW},
    {"optimizer.params.lr_decay", REAL(optimizer.lr_decay, 0, HUGE),
     .usual = "0", .optimizers = ADAGRAD},
    {"optimizer.params.initial_accumulator_value",
     REAL(optimizer.initial_accumulator_value, 0, HUGE), .usual = "0",
     .optimizers = ADAGRAD},
    {"optimizer.params.initial_accumulator_value",
     REAL(optimizer.initial_accumulator_value, 0, HUGE), .usual = "0.1",
     .optimizers = FTRL},
    {"optimizer.params.alpha", REAL(optimizer.alpha, 0, 1), .usual = "0.99",
     .optimizers = RMSPROP},
    {"optimizer.params.centered", BOOL(optimizer.centered), .usual = "false",
     .optimizers = RMSPROP},
    {"optimizer.params.betas", .kind = JOB_KIND_BETAS,
     .field = FIELD(optimizer), .usual = "[0.9, 0.999]",
     .optimizers = ADAM | ADAMW},
    {"optimizer.params.eps", REAL(optimizer.eps, 0, HUGE), .usual = "1e-10",
     .optimizers = ADAGRAD},
    {"optimizer.params.eps", REAL(optimizer.eps, 0, HUGE), .usual = "1e-8",
     .optimizers = RMSPROP | ADAM | ADAMW},
    {"optimizer.params.amsgrad", BOOL(optimizer.amsgrad), .usual = "false",
     .optimizers = ADAM | ADAMW},
    {"optimizer.params.learning_rate_power",
     REAL(optimizer.learning_rate_power, -HUGE, 0), .usual = "-0.5",
     .optimizers = FTRL},
    {"optimizer.params.l1_regularization_strength", REAL(optimizer.l1, 0, HUGE),
     .usual = "0", .optimizers = FTRL},
    {"optimizer.params.l2_regularization_strength", REAL(optimizer.l2, 0, HUGE),
     .usual = "0", .optimizers = FTRL},

    {"scheduler.type",
     CHOICE(schedule.type, "none", "WarmupLR", "WarmupDecayLR",
            "WarmupCosineLR"),
     .usual = "\"none\""},
    {"scheduler.params.warmup_min_lr", REAL(schedule.warmup_min_lr, 0, HUGE),
     .usual = "0", .schedules = WARMUP | DECAY},
    {"scheduler.params.warmup_max_lr", REAL(schedule.warmup_max_lr, 0, HUGE),
     .usual = "0.001", .schedules = WARMUP | DECAY},
    {"scheduler.params.warmup_num_steps",
     U64(schedule.warmup_num_steps, 0, MANY), .usual = "1000",
     .schedules = WARMUP | DECAY | COSINE},
    {"scheduler.params.total_num_steps", U64(schedule.total_num_steps, 1, MANY),
     .required = true, .schedules = DECAY | COSINE},
    {"scheduler.params.warmup_min_ratio",
     REAL(schedule.warmup_min_ratio, 0, HUGE), .usual = "0",
     .schedules = COSINE},
    {"scheduler.params.cos_min_ratio", REAL(schedule.cos_min_ratio, 0, HUGE),
     .usual = "0.0001", .schedules = COSINE},
    {"scheduler.params.warmup_type",
     EITHER(schedule.warmup_linear, "log", "linear"), .usual = "\"log\"",
     .schedules = WARMUP | DECAY | COSINE},
    {"scale_lr", EITHER(scale_lr, "none", "linear"), .usual = "\"none\""},

    {"strategy.type", CHOICE(strategy, "", "ps", "allreduce")},
    {"strategy.staleness", .kind = JOB_KIND_STALENESS,
     .field = FIELD(staleness), .least = 0, .most = MANY, .usual = "0"},
    {"strategy.ps_threads", U32(ps_threads, 1, 64)},
    {"strategy.backend", CHOICE(backend, "auto", "gloo", "nccl"),
     .usual = "\"auto\""},
    {"strategy.algorithm", CHOICE(algorithm, "ring", "halving_doubling"),
     .usual = "\"ring\""},
    {"zero_optimization.stage", U32(zero.stage, 0, 2), .usual = "0"},
    {"zero_optimization.reduce_bucket_size", U64(zero.reduce_bucket, 1, MANY),
     .usual = "500000000"},
    {"zero_optimization.allgather_bucket_size",
     U64(zero.allgather_bucket, 1, MANY), .usual = "500000000"},
    /* torch's DDP overlaps always, DeepSpeed only in stage 3 */
    {"zero_optimization.overlap_comm", BOOL(zero.overlap), .usual = "true",
     .deepspeed = "false"},
    {"zero_optimization.offload_optimizer.device",
     EITHER(zero.offload, "none", "cpu"), .usual = "\"none\""},
    {"zero_optimization.cpu_offload", BOOL(zero.cpu_offload), .usual = "false"},
    {"activation_checkpointing.number_checkpoints", U32(model.kept, 0, 1e9),
     .usual = "0"},
    {"wire", CHOICE(wire, "float32", "bf16"), .usual = "\"float32\""},
    {"chief", CHOICE(chief, "", "train", "coordinate")},
    {"device", CHOICE(device, "auto", "cpu", "cuda"), .usual = "\"auto\""},
    {"devices", U32(devices, 0, JOB_MOST_DEVICES), .usual = "0"},
    {"threads", U32(threads, 1, 1024), .usual = "1"},
    {"workers", U32(workers, 1, PEERS)},

    {"checkpoint.dir", PATH(checkpoint.dir)},
    {"checkpoint.every_steps", U64(checkpoint.every_steps, 0, MANY),
     .usual = "0"},
    {"checkpoint.every_epochs", U64(checkpoint.every_epochs, 0, MANY),
     .usual = "0"},
    {"checkpoint.every_seconds", REAL(checkpoint.every_seconds, 0, LONG),
     .usual = "600"}, /* 0 where one of the two above is given */
    {"checkpoint.keep", U32(checkpoint.keep, 0, 1e9), .usual = "5"},
    {"checkpoint.copy_mb", U64(checkpoint.copy_mb, 0, 1e9), .usual = "0"},
    {"checkpoint.resume", .kind = JOB_KIND_RESUME, .field = FIELD(checkpoint),
     .least = 0, .most = MANY, .usual = "\"auto\""},

    {"tensorboard.enabled", BOOL(tensorboard), .usual = "false"},
    {"tensorboard.output_path", PATH(tensorboard_path)},
    {"tensorboard.job_name", .kind = JOB_KIND_TEXT,
     .field = FIELD(tensorboard_name), .usual = "\"\"",
     .deepspeed = "\"DeepSpeedJobName\""},
    {"export.path", PATH(export_path), .words = WORDS(".safetensors", ".npz")},
    {"init", PATH(init), .words = WORDS(".safetensors")},
    {"steps_per_print", U32(steps_per_print, 1, 1e9), .usual = "100",
     .deepspeed = "10"},
    {"on_nan", EITHER(nan_skip, "stop", "skip"), .usual = "\"stop\""},

    {"timeouts.join", REAL(timeouts.join, 0.1, LONG), .usual = "600"},
    {"timeouts.peer", REAL(timeouts.peer, 0.1, LONG), .usual = "30"},
    {"timeouts.step", REAL(timeouts.step, 0.1, LONG), .usual = "1800"},
    {"timeouts.grace", REAL(timeouts.grace, 0.1, LONG), .usual = "30"},
    {"timeouts.stop", REAL(timeouts.stop, 0.1, LONG), .usual = "5"},

    /* Ranges are those of the flags; --latency-us alone may be 0. */
    {"compare.ps", COUNTS(compare.ps)},
    {"compare.workers", COUNTS(compare.workers)},
    {"compare.steps", U64(compare.steps, 1, 1e12)},
    {"compare.repeats", U64(compare.repeats, 1, COMPARE_OPTIONS_MAX_REPEATS)},
    {"compare.limit", REAL(compare.limit, 1, 1e6)},
    {"compare.csv", PATH(compare.csv)},
    {"compare.plot", PATH(compare.plot), .words = WORDS(".svg", ".png")},
    {"compare.link_gbits", REAL(compare.link_gbits, 1e-3, 1e5)},
    {"compare.latency_us", REAL(compare.latency_us, 1e-3, 1e6)},
};

const struct job_key *job_schema(size_t *count) {
    *count = sizeof keys / sizeof *keys;
    return keys;
}

bool job_schema_applies(const struct job_key *key, const struct job *job) {
    if (key->optimizers && !(key->optimizers & 1u << job->optimizer.type))
        return false;
    return !key->schedules || key->schedules & 1u << job->schedule.type;
}
