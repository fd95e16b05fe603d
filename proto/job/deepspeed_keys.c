/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/job/deepspeed.h"

#define SUPPORTED(name)                                                        \
    { .path = name, .support = DEEPSPEED_SUPPORTED }
#define SUPPORTED_ONLY(name, values, reason)                                   \
    {                                                                          \
        .path = name, .support = DEEPSPEED_SUPPORTED, .text = reason,          \
        .allowed = values                                                      \
    }
#define RENAMED(name, to)                                                      \
    { .path = name, .support = DEEPSPEED_RENAMED, .text = to }
#define ONLY(name, values, reason)                                             \
    {                                                                          \
        .path = name, .support = DEEPSPEED_REFUSED, .text = reason,            \
        .allowed = values                                                      \
    }
#define BY_DESIGN(name)                                                        \
    { .path = name, .support = DEEPSPEED_BY_DESIGN }
#define OFF_ONLY(name, reason) ONLY(name, NULL, reason)
#define REFUSED(name)                                                          \
    OFF_ONLY(name, "there is no such feature: set it to false or leave it out")
#define DEPENDENT(name)                                                        \
    { .path = name, .support = DEEPSPEED_DEPENDENT }

static const char float32[] = "weights, gradients and messages are float32";
static const char half[] =
    "mixed precision is set by fp16.enabled or bf16.enabled: set it to false";
static const char quantised_training[] =
    "weights are not compressed: leave it out";
static const char tracker[] =
    "metrics are written only for TensorBoard: set tensorboard.enabled";

/* Keys with an effect, another name, or one value that is accepted; then those
 * that only have to be known, each list with one sentence (deepspeed.h,
 * docs/job.md). Each in the order of DeepSpeed's documentation. A feature's
 * key stands before the "feature.*" that removes the rest. */
static const struct deepspeed_key keys[] = {
    SUPPORTED("train_batch_size"),
    SUPPORTED("train_micro_batch_size_per_gpu"),
    SUPPORTED("gradient_accumulation_steps"),
    ONLY("managed_gradient_accumulation", "[true]",
         "a push always closes one accumulation group: set it to true"),
    SUPPORTED("optimizer.type"),
    SUPPORTED("optimizer.params"),
    SUPPORTED("optimizer.params.adam_w_mode"),
    ONLY("optimizer.params.bias_correction", "[true]",
         "Adam corrects the bias, as in its paper: set it to true"),
    ONLY("optimizer.params.max_grad_norm", "[0]",
         "the norm is bounded by gradient_clipping: put the value there"),
    SUPPORTED("scheduler.type"),
    SUPPORTED("scheduler.params"),
    ONLY("scheduler.params.last_batch_iteration", "[-1]",
         "a run resumes from its checkpoint (checkpoint.resume)"),
    ONLY("communication_data_type", "[\"fp32\"]", float32),
    ONLY("seq_parallel_communication_data_type", "[\"fp32\"]", float32),
    ONLY("gradient_allreduce_op", "[\"mean\"]",
         "gradients of a round are averaged: take \"mean\""),
    SUPPORTED("fp16.enabled"),
    SUPPORTED("fp16.loss_scale"),
    SUPPORTED("fp16.initial_scale_power"),
    SUPPORTED("fp16.loss_scale_window"),
    SUPPORTED("fp16.hysteresis"),
    SUPPORTED("fp16.consecutive_hysteresis"),
    SUPPORTED("fp16.min_loss_scale"),
    SUPPORTED("bf16.enabled"),
    SUPPORTED("bf16.check_overflow"),
    RENAMED("bfloat16.enabled", "bf16.enabled"),
    OFF_ONLY("amp.enabled", half),
    OFF_ONLY("torch_autocast.enabled", half),
    ONLY("data_types.grad_accum_dtype", "[\"fp32\"]", float32),
    ONLY("data_types.param_dtype", "[\"fp32\"]", float32),
    ONLY("data_types.buffer_dtype", "[\"fp32\"]", float32),
    SUPPORTED("gradient_clipping"),
    SUPPORTED_ONLY(
        "zero_optimization.stage", "[0, 1, 2]",
        "stage 3 cuts the weights over the trainers, which here hold all of "
        "them; allowed: 0, 1, 2"),
    SUPPORTED("zero_optimization.allgather_bucket_size"),
    SUPPORTED("zero_optimization.overlap_comm"),
    SUPPORTED("zero_optimization.reduce_bucket_size"),
    SUPPORTED_ONLY(
        "zero_optimization.offload_optimizer.device", "[\"none\", \"cpu\"]",
        "the optimiser's state lives in the memory of ps and trainers; "
        "allowed: "
        "\"none\", \"cpu\""),
    ONLY("zero_optimization.offload_param.device", "[\"none\"]",
         "the weights live in the memory of ps and trainers: take \"none\""),
    SUPPORTED("zero_optimization.cpu_offload"),
    SUPPORTED("steps_per_print"),
    RENAMED("dataloader_drop_last", "data.drop_last"),
    SUPPORTED("activation_checkpointing.number_checkpoints"),
    OFF_ONLY(
        "activation_checkpointing.cpu_checkpointing",
        "a kept activation stays on the trainer's device: set it to false; a "
        "smaller number_checkpoints keeps fewer"),
    ONLY("sequence_parallel_size", "[1]", "the models have no sequences"),
    ONLY("compression_training", "[{}]", quantised_training),
    ONLY("weight_quantization", "[{}]", quantised_training),
    SUPPORTED("tensorboard.enabled"),
    SUPPORTED("tensorboard.output_path"),
    SUPPORTED("tensorboard.job_name"),
    OFF_ONLY("csv_monitor.enabled", tracker),
    OFF_ONLY("wandb.enabled", tracker),
    OFF_ONLY("comet.enabled", tracker),

    BY_DESIGN("optimizer.legacy_fusion"),
    BY_DESIGN("optimizer.params.torch_adam"),
    BY_DESIGN("optimizer.params.fused"),
    BY_DESIGN("optimizer.params.foreach"),
    BY_DESIGN("optimizer.params.set_grad_none"),
    BY_DESIGN("optimizer.params.capturable"),
    BY_DESIGN("prescale_gradients"),
    BY_DESIGN("gradient_predivide_factor"),
    BY_DESIGN("disable_allgather"),
    BY_DESIGN("fp32_allreduce"),
    BY_DESIGN("fp16.auto_cast"),
    BY_DESIGN("bf16.immediate_grad_update"),
    BY_DESIGN("bfloat16.immediate_grad_update"),
    BY_DESIGN("zero_optimization.allgather_partitions"),
    BY_DESIGN("zero_optimization.reduce_scatter"),
    BY_DESIGN("zero_optimization.contiguous_gradients"),
    BY_DESIGN("zero_optimization.use_multi_rank_bucket_allreduce"),
    BY_DESIGN("zero_optimization.round_robin_gradients"),
    BY_DESIGN("zero_optimization.legacy_stage1"),
    BY_DESIGN("zero_optimization.load_from_fp32_weights"),
    BY_DESIGN("zero_optimization.elastic_checkpoint"),
    BY_DESIGN("zero_optimization.ignore_unused_parameters"),
    BY_DESIGN("zero_optimization.cpu_offload_use_pin_memory"),
    BY_DESIGN("zero_optimization.sub_group_size"),
    BY_DESIGN("zero_optimization.stage3_max_live_parameters"),
    BY_DESIGN("zero_optimization.stage3_max_reuse_distance"),
    BY_DESIGN("zero_optimization.stage3_prefetch_bucket_size"),
    BY_DESIGN("zero_optimization.stage3_param_persistence_threshold"),
    BY_DESIGN("zero_optimization.stage3_model_persistence_threshold"),
    BY_DESIGN("zero_optimization.stage3_module_granularity_threshold"),
    BY_DESIGN("zero_optimization.stage3_use_all_reduce_for_fetch_params"),
    BY_DESIGN("zero_optimization.stage3_gather_16bit_weights_on_model_save"),
    BY_DESIGN("zero_optimization.stage3_gather_fp16_weights_on_model_save"),
    BY_DESIGN("zero_optimization.memory_efficient_linear"),
    BY_DESIGN("zero_optimization.override_module_apply"),
    BY_DESIGN("zero_optimization.pipeline_loading_checkpoint"),
    BY_DESIGN("zero_optimization.mics_shard_size"),
    BY_DESIGN("zero_optimization.mics_hierarchical_params_gather"),
    BY_DESIGN("zero_optimization.zero_hpz_partition_size"),
    BY_DESIGN("zero_allow_untested_optimizer"),
    BY_DESIGN("zero_force_ds_cpu_optimizer"),
    BY_DESIGN("wall_clock_breakdown"),
    BY_DESIGN("dump_state"),
    BY_DESIGN("log_level"),
    BY_DESIGN("disable_python_gc"),
    BY_DESIGN("vocabulary_size"),
    BY_DESIGN("activation_checkpointing.partition_activations"),
    BY_DESIGN("activation_checkpointing.contiguous_memory_optimization"),
    BY_DESIGN("activation_checkpointing.synchronize_checkpoint_boundary"),
    BY_DESIGN("checkpoint.tag_validation"),
    BY_DESIGN("checkpoint.load_universal"),
    BY_DESIGN("checkpoint.use_node_local_storage"),
    BY_DESIGN("checkpoint.parallel_write.pipeline_stage"),
    BY_DESIGN("checkpoint.writer"),
    BY_DESIGN("aio.*"),

    REFUSED("optimizer.params.differentiable"),
    REFUSED("optimizer.params.freeze_step"),
    REFUSED("sparse_gradients"),
    REFUSED("fp16.fp16_master_weights_and_grads"),
    REFUSED("bf16.bf16_master_weights_and_grads"),
    REFUSED("bf16.bf16_optimizer_states"),
    REFUSED("zero_optimization.cpu_offload_params"),
    REFUSED("zero_optimization.cpu_offload_param"),
    REFUSED("zero_optimization.zero_quantized_weights"),
    REFUSED("zero_optimization.zero_quantized_nontrainable_weights"),
    REFUSED("zero_optimization.zero_quantized_gradients"),
    REFUSED("zero_optimization.zeropp_loco_param"),
    REFUSED("memory_breakdown"),
    REFUSED("autotuning.enabled"),
    REFUSED("flops_profiler.enabled"),
    REFUSED("comms_logger.enabled"),
    REFUSED("activation_checkpointing.profile"),
    REFUSED("sparse_attention"),
    REFUSED("pipeline"),
    REFUSED("tensor_parallel"),
    REFUSED("use_data_before_expert_parallelism"),
    REFUSED("hybrid_engine.enabled"),
    REFUSED("progressive_layer_drop.enabled"),
    REFUSED("eigenvalue.enabled"),
    REFUSED("data_efficiency.enabled"),
    REFUSED("curriculum_learning.enabled"),
    REFUSED("quantize_training.enabled"),
    REFUSED("elasticity.enabled"),
    REFUSED("nebula.enabled"),

    DEPENDENT("amp.*"),
    DEPENDENT("torch_autocast.dtype"),
    DEPENDENT("torch_autocast.lower_precision_safe_modules"),
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
    DEPENDENT("zero_optimization.offload_param.*"),
    DEPENDENT("autotuning.*"),
    DEPENDENT("flops_profiler.recompute_fwd_factor"),
    DEPENDENT("flops_profiler.profile_step"),
    DEPENDENT("flops_profiler.module_depth"),
    DEPENDENT("flops_profiler.top_modules"),
    DEPENDENT("flops_profiler.detailed"),
    DEPENDENT("flops_profiler.output_file"),
    DEPENDENT("comms_logger.*"),
    DEPENDENT("hybrid_engine.*"),
    DEPENDENT("progressive_layer_drop.*"),
    DEPENDENT("eigenvalue.*"),
    DEPENDENT("data_efficiency.*"),
    DEPENDENT("curriculum_learning.*"),
    DEPENDENT("quantize_training.*"),
    DEPENDENT("csv_monitor.output_path"),
    DEPENDENT("csv_monitor.job_name"),
    DEPENDENT("wandb.group"),
    DEPENDENT("wandb.team"),
    DEPENDENT("wandb.project"),
    DEPENDENT("comet.*"),
    DEPENDENT("elasticity.*"),
    DEPENDENT("nebula.*"),
};

const struct deepspeed_key *deepspeed_keys(size_t *count) {
    *count = sizeof keys / sizeof *keys;
    return keys;
}
