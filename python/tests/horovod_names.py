# SPDX-License-Identifier: Apache-2.0
"""The public names of Horovod 0.28.1: what its modules import or define for
scripts. test_horovod.py and test_horovod_keras.py use each."""

COMMON = """
    Average Sum ProcessSet add_process_set ccl_built cross_rank cross_size
    cuda_built ddl_built elastic global_process_set gloo_built gloo_enabled init
    is_initialized local_rank local_size mpi_built mpi_enabled
    mpi_threads_supported nccl_built rank remove_process_set rocm_built shutdown
    size start_timeline stop_timeline Compression DistributedOptimizer
    allgather allreduce broadcast reducescatter
""".split()

# horovod.torch, with is_homogeneous of its mpi_ops
TORCH = [
    *COMMON,
    *"""
    Adasum HorovodInternalError Max Min Product SyncBatchNorm allgather_async
    allgather_object allreduce_ allreduce_async allreduce_async_ alltoall
    alltoall_async barrier broadcast_ broadcast_async broadcast_async_
    broadcast_object broadcast_optimizer_state broadcast_parameters
    grouped_allgather grouped_allgather_async grouped_allreduce
    grouped_allreduce_ grouped_allreduce_async grouped_allreduce_async_
    grouped_reducescatter grouped_reducescatter_async is_homogeneous join poll
    reducescatter_async sparse_allreduce_async synchronize
    """.split(),
]
TORCH_ELASTIC = "TorchState ElasticSampler run".split()

# horovod.tensorflow.keras
KERAS = [*COMMON, *"callbacks broadcast_global_variables load_model".split()]
KERAS_CALLBACKS = """
    BroadcastGlobalVariablesCallback MetricAverageCallback
    LearningRateScheduleCallback LearningRateWarmupCallback BestModelCheckpoint
""".split()
KERAS_ELASTIC = """
    KerasState CommitStateCallback UpdateBatchStateCallback
    UpdateEpochStateCallback run
""".split()
