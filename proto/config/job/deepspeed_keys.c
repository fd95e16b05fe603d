/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/config/job/deepspeed.h"

#define SUPPORTED(name)                                                        \
    { .path = name, .support = DEEPSPEED_SUPPORTED }
#define SUPPORTED_ONLY(name, values, reason)                                   \
    {                                                                          \
        .path = name, .support = DEEPSPEED_SUPPORTED, .text = reason,          \
        .allowed = values                                                      \
    }
#define DEPENDENT(name)                                                        \
    { .path = name, .support = DEEPSPEED_DEPENDENT }
#define RENAMED(name, to)                                                      \
    { .path = name, .support = DEEPSPEED_RENAMED, .text = to }
#define BY_DESIGN(name, how)                                                   \
    { .path = name, .support = DEEPSPEED_BY_DESIGN, .text = how }
#define REFUSED(name, reason)                                                  \
    { .path = name, .support = DEEPSPEED_REFUSED, .text = reason }
#define ONLY(name, values, reason)                                             \
    {                                                                          \
        .path = name, .support = DEEPSPEED_REFUSED, .text = reason,            \
        .allowed = values                                                      \
    }
static const char float32[] = "weights, gradients and messages are float32";
static const char master[] =
    "weights, summed gradients and state stay float32: set it to false";
static const char summed[] = "gradients are summed up in float32";
static const char half[] =
    "mixed precision is set by fp16.enabled or bf16.enabled: set it to false";
static const char collectives[] =
    "a setting of DeepSpeed's collectives: here pushes are cut into blocks and "
    "always overlap the backward pass";
static const char stage3[] =
    "a setting of stage 3, which is not in use: nothing to do";
static const char same_sums[] = "it does not change the weights";
static const char host_memory[] = "host memory that a device copies is pinned";
static const char quantised[] = "nothing is quantised: set it to false";
static const char fast_rules[] = "each update is one fused pass";
static const char contiguous[] =
    "kept activations are allocated once, at the start";
static const char transformer[] =
    "the models have no attention or experts: leave it out";
static const char curriculum[] =
    "every sample is seen once an epoch: set enabled to false";
static const char tracker[] =
    "metrics are written only for TensorBoard: set tensorboard.enabled";
static const char quantised_training[] =
    "weights are not compressed: leave it out";

/* In the order of DeepSpeed's documentation. */
static const struct deepspeed_key keys[] = {
    SUPPORTED("train_batch_size"),
    SUPPORTED("train_micro_batch_size_per_gpu"),
    SUPPORTED("gradient_accumulation_steps"),
    ONLY("managed_gradient_accumulation", "[true]",
         "a push always closes one accumulation group: set it to true"),

    SUPPORTED("optimizer.type"),
    SUPPORTED("optimizer.params"),
    SUPPORTED("optimizer.params.adam_w_mode"),
    BY_DESIGN("optimizer.legacy_fusion", fast_rules),
    BY_DESIGN("optimizer.params.torch_adam", fast_rules),
    BY_DESIGN("optimizer.params.fused", fast_rules),
    BY_DESIGN("optimizer.params.foreach", fast_rules),
    BY_DESIGN("optimizer.params.set_grad_none", fast_rules),
    BY_DESIGN("optimizer.params.capturable", fast_rules),
    REFUSED("optimizer.params.differentiable",
            "an update is not differentiated: set it to false"),
    ONLY("optimizer.params.bias_correction", "[true]",
         "Adam corrects the bias, as in its paper: set it to true"),
    ONLY("optimizer.params.max_grad_norm", "[0]",
         "the norm is bounded by gradient_clipping: put the value there"),
    REFUSED("optimizer.params.freeze_step",
            "gradients are not compressed to 1 bit: leave it out"),

    SUPPORTED("scheduler.type"),
    SUPPORTED("scheduler.params"),
    ONLY("scheduler.params.last_batch_iteration", "[-1]",
         "a run resumes from its checkpoint (checkpoint.resume)"),

    ONLY("communication_data_type", "[\"fp32\"]", float32),
    ONLY("seq_parallel_communication_data_type", "[\"fp32\"]", float32),
    BY_DESIGN(
        "prescale_gradients",
        "gradients are summed in rank order and divided once, in float32"),
    BY_DESIGN(
        "gradient_predivide_factor",
        "gradients are summed in rank order and divided once, in float32"),
    ONLY("gradient_allreduce_op", "[\"mean\"]",
         "gradients of a round are averaged: take \"mean\""),
    REFUSED("sparse_gradients",
            "gradients are dense in this build: set it to false"),
    BY_DESIGN("disable_allgather", collectives),
    BY_DESIGN("fp32_allreduce", float32),

    SUPPORTED("fp16.enabled"),
    BY_DESIGN("fp16.auto_cast",
              "inputs are rounded as all operands of matrix products are"),
    SUPPORTED("fp16.loss_scale"),
    SUPPORTED("fp16.initial_scale_power"),
    SUPPORTED("fp16.loss_scale_window"),
    SUPPORTED("fp16.hysteresis"),
    SUPPORTED("fp16.consecutive_hysteresis"),
    SUPPORTED("fp16.min_loss_scale"),
    REFUSED("fp16.fp16_master_weights_and_grads", master),
    SUPPORTED("bf16.enabled"),
    BY_DESIGN("bf16.immediate_grad_update", summed),
    SUPPORTED("bf16.check_overflow"),
    REFUSED("bf16.bf16_master_weights_and_grads", master),
    REFUSED("bf16.bf16_optimizer_states", master),
    RENAMED("bfloat16.enabled", "bf16.enabled"),
    BY_DESIGN("bfloat16.immediate_grad_update", summed),
    REFUSED("amp.enabled", half),
    DEPENDENT("amp.*"),
    REFUSED("torch_autocast.enabled", half),
    DEPENDENT("torch_autocast.dtype"),
    DEPENDENT("torch_autocast.lower_precision_safe_modules"),
    ONLY("data_types.grad_accum_dtype", "[\"fp32\"]", float32),
    ONLY("data_types.param_dtype", "[\"fp32\"]", float32),
    ONLY("data_types.buffer_dtype", "[\"fp32\"]", float32),

    SUPPORTED("gradient_clipping"),

    SUPPORTED_ONLY(
        "zero_optimization.stage", "[0, 1, 2]",
        "stage 3 cuts the weights over the trainers, which here hold all of "
        "them; allowed: 0, 1, 2"),
    BY_DESIGN("zero_optimization.allgather_partitions", same_sums),
    SUPPORTED("zero_optimization.allgather_bucket_size"),
    SUPPORTED("zero_optimization.overlap_comm"),
    BY_DESIGN("zero_optimization.reduce_scatter", same_sums),
    SUPPORTED("zero_optimization.reduce_bucket_size"),
    BY_DESIGN("zero_optimization.contiguous_gradients",
              "gradients are contiguous in memory"),
    BY_DESIGN("zero_optimization.use_multi_rank_bucket_allreduce", collectives),
    BY_DESIGN("zero_optimization.round_robin_gradients", collectives),
    BY_DESIGN("zero_optimization.legacy_stage1", collectives),
    BY_DESIGN("zero_optimization.load_from_fp32_weights", float32),
    BY_DESIGN("zero_optimization.elastic_checkpoint",
              "a checkpoint loads with any number of ps and workers"),
    BY_DESIGN("zero_optimization.ignore_unused_parameters",
              "every declared parameter has a gradient"),
    SUPPORTED_ONLY(
        "zero_optimization.offload_optimizer.device", "[\"none\", \"cpu\"]",
        "the optimiser's state lives in the memory of ps and trainers; "
        "allowed: "
        "\"none\", \"cpu\""),
    DEPENDENT("zero_optimization.offload_optimizer.nvme_path"),
    DEPENDENT("zero_optimization.offload_optimizer.buffer_count"),
    DEPENDENT("zero_optimization.offload_optimizer.pin_memory"),
    DEPENDENT("zero_optimization.offload_optimizer.pipeline"),
    DEPENDENT("zero_optimization.offload_optimizer.pipeline_read"),
    DEPENDENT("zero_optimization.offload_optimizer.pipeline_write"),
    DEPENDENT("zero_optimization.offload_optimizer.fast_init"),
    DEPENDENT("zero_optimization.offload_optimizer.ratio"),
    DEPENDENT("zero_optimization.offload_optimizer.super_offload"),
    DEPENDENT("zero_optimization.offload_optimizer.cpuadam_cores_perc"),
    ONLY("zero_optimization.offload_param.device", "[\"none\"]",
         "the weights live in the memory of ps and trainers: take \"none\""),
    DEPENDENT("zero_optimization.offload_param.*"),
    SUPPORTED("zero_optimization.cpu_offload"),
    BY_DESIGN("zero_optimization.cpu_offload_use_pin_memory", host_memory),
    REFUSED(
        "zero_optimization.cpu_offload_params",
        "the weights live in the memory of ps and trainers: set it to false"),
    REFUSED(
        "zero_optimization.cpu_offload_param",
        "the weights live in the memory of ps and trainers: set it to false"),
    BY_DESIGN("zero_optimization.sub_group_size", stage3),
    BY_DESIGN("zero_optimization.stage3_max_live_parameters", stage3),
    BY_DESIGN("zero_optimization.stage3_max_reuse_distance", stage3),
    BY_DESIGN("zero_optimization.stage3_prefetch_bucket_size", stage3),
    BY_DESIGN("zero_optimization.stage3_param_persistence_threshold", stage3),
    BY_DESIGN("zero_optimization.stage3_model_persistence_threshold", stage3),
    BY_DESIGN("zero_optimization.stage3_module_granularity_threshold", stage3),
    BY_DESIGN("zero_optimization.stage3_use_all_reduce_for_fetch_params",
              stage3),
    BY_DESIGN("zero_optimization.stage3_gather_16bit_weights_on_model_save",
              stage3),
    BY_DESIGN("zero_optimization.stage3_gather_fp16_weights_on_model_save",
              stage3),
    BY_DESIGN("zero_optimization.memory_efficient_linear", stage3),
    BY_DESIGN("zero_optimization.override_module_apply", stage3),
    BY_DESIGN("zero_optimization.pipeline_loading_checkpoint", stage3),
    BY_DESIGN("zero_optimization.mics_shard_size", stage3),
    BY_DESIGN("zero_optimization.mics_hierarchical_params_gather", stage3),
    BY_DESIGN("zero_optimization.zero_hpz_partition_size", stage3),
    REFUSED("zero_optimization.zero_quantized_weights", quantised),
    REFUSED("zero_optimization.zero_quantized_nontrainable_weights", quantised),
    REFUSED("zero_optimization.zero_quantized_gradients", quantised),
    REFUSED("zero_optimization.zeropp_loco_param", quantised),
    BY_DESIGN("zero_allow_untested_optimizer",
              "each rule works on any part of the state"),
    BY_DESIGN("zero_force_ds_cpu_optimizer", fast_rules),

    SUPPORTED("steps_per_print"),
    BY_DESIGN("wall_clock_breakdown", "the summary says where the time went"),
    BY_DESIGN("dump_state", "each checkpoint's manifest holds the whole job"),
    REFUSED("memory_breakdown", "memory is not reported: set it to false"),
    BY_DESIGN("log_level", "there is one log level"),
    BY_DESIGN("disable_python_gc", "there is no Python"),
    BY_DESIGN("vocabulary_size", "there are no tensor cores to align it for"),
    RENAMED("dataloader_drop_last", "data.drop_last"),

    REFUSED("autotuning.enabled",
            "there is no autotuning: set it to false and give the sizes"),
    DEPENDENT("autotuning.*"),
    REFUSED("flops_profiler.enabled",
            "operations are not counted: set it to false"),
    DEPENDENT("flops_profiler.recompute_fwd_factor"),
    DEPENDENT("flops_profiler.profile_step"),
    DEPENDENT("flops_profiler.module_depth"),
    DEPENDENT("flops_profiler.top_modules"),
    DEPENDENT("flops_profiler.detailed"),
    DEPENDENT("flops_profiler.output_file"),
    REFUSED("comms_logger.enabled",
            "messages are not logged one by one: set it to false"),
    DEPENDENT("comms_logger.*"),

    SUPPORTED("activation_checkpointing.number_checkpoints"),
    BY_DESIGN(
        "activation_checkpointing.partition_activations",
        "it partitions them over the devices of one layer, and a layer has one "
        "device here"),
    REFUSED(
        "activation_checkpointing.cpu_checkpointing",
        "a kept activation stays on the trainer's device: set it to false; a "
        "smaller number_checkpoints keeps fewer"),
    BY_DESIGN("activation_checkpointing.contiguous_memory_optimization",
              contiguous),
    BY_DESIGN("activation_checkpointing.synchronize_checkpoint_boundary",
              "a device runs its operations in order"),
    REFUSED("activation_checkpointing.profile",
            "recomputation is not timed separately: set it to false"),
    REFUSED("sparse_attention", transformer),
    REFUSED("pipeline", "a model is not partitioned into stages: leave it out"),
    REFUSED("tensor_parallel",
            "a layer is not partitioned over devices: leave it out"),
    ONLY("sequence_parallel_size", "[1]", transformer),
    REFUSED("use_data_before_expert_parallelism", transformer),
    REFUSED("hybrid_engine.enabled", transformer),
    DEPENDENT("hybrid_engine.*"),
    REFUSED("progressive_layer_drop.enabled", transformer),
    DEPENDENT("progressive_layer_drop.*"),
    REFUSED("eigenvalue.enabled", quantised_training),
    DEPENDENT("eigenvalue.*"),

    REFUSED("data_efficiency.enabled", curriculum),
    DEPENDENT("data_efficiency.*"),
    REFUSED("curriculum_learning.enabled", curriculum),
    DEPENDENT("curriculum_learning.*"),
    ONLY("compression_training", "[{}]", quantised_training),
    REFUSED("quantize_training.enabled", quantised_training),
    DEPENDENT("quantize_training.*"),
    ONLY("weight_quantization", "[{}]", quantised_training),

    SUPPORTED("tensorboard.enabled"),
    SUPPORTED("tensorboard.output_path"),
    SUPPORTED("tensorboard.job_name"),
    REFUSED("csv_monitor.enabled", tracker),
    DEPENDENT("csv_monitor.output_path"),
    DEPENDENT("csv_monitor.job_name"),
    REFUSED("wandb.enabled", tracker),
    DEPENDENT("wandb.group"),
    DEPENDENT("wandb.team"),
    DEPENDENT("wandb.project"),
    REFUSED("comet.enabled", tracker),
    DEPENDENT("comet.*"),

    REFUSED(
        "elasticity.enabled",
        "the batch equation counts the trainers of the plan, living or not: "
        "set "
        "it to false and give the sizes"),
    DEPENDENT("elasticity.*"),
    BY_DESIGN("checkpoint.tag_validation",
              "all files of a checkpoint carry the same step and run"),
    BY_DESIGN("checkpoint.load_universal",
              "a checkpoint loads with any number of ps and workers"),
    BY_DESIGN(
        "checkpoint.use_node_local_storage",
        "whether checkpoint.dir is shared between hosts is detected at the "
        "start"),
    BY_DESIGN("checkpoint.parallel_write.pipeline_stage",
              "each ps writes its own part"),
    BY_DESIGN("checkpoint.writer", "each ps writes its own part"),
    REFUSED("nebula.enabled",
            "checkpoints go to checkpoint.dir: set it to false"),
    DEPENDENT("nebula.*"),
    BY_DESIGN("aio.*", "nothing is offloaded to a disk"),
};

const struct deepspeed_key *deepspeed_keys(size_t *count) {
    *count = sizeof keys / sizeof *keys;
    return keys;
}
