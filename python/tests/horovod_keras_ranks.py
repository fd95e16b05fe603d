# SPDX-License-Identifier: Apache-2.0
"""What the processes of test_horovod_keras.py do."""

import json

import frameworks
import numpy as np
import processes
import tensorflow as tf

import capstan.horovod.tensorflow.keras as hvd

EPOCHS, STEPS = 2, frameworks.STEPS
RATE = 0.2  # of all ranks


def tell(found):
    print(json.dumps(found), flush=True)


def refusal(call, *arguments, **named):
    """The text of CALL's error."""
    try:
        return call(*arguments, **named)
    except RuntimeError as error:
        return f"refused: {error}"


def network(seed=0):
    tf.keras.utils.set_random_seed(seed)
    return tf.keras.Sequential(
        [
            tf.keras.layers.Dense(16, activation="tanh"),
            tf.keras.layers.Dense(frameworks.CLASSES),
        ]
    )


def compiled(net, optimizer):
    net.build((None, frameworks.INPUTS))
    net.compile(
        optimizer=optimizer,
        loss=tf.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return net


def dataset(rank=0, size=1):
    data = tf.data.Dataset.from_tensor_slices(frameworks.samples())
    return data.shard(size, rank).batch(frameworks.BATCH // size)


def weights(net):
    return np.concatenate([w.ravel() for w in net.get_weights()]).tolist()


class Rates(tf.keras.callbacks.Callback):
    """RATE times what FACTOR gives for the number of a step, from 0."""

    def __init__(self, factor):
        super().__init__()
        self.factor, self.step = factor, 0

    def on_train_batch_begin(self, batch, logs=None):
        self.model.optimizer.learning_rate = RATE * self.factor(self.step)
        self.step += 1


def warmed(step):
    """Of two ranks, in an epoch; then the whole rate."""
    return min((1 + (step + 1) / STEPS) / 2, 1.0)


def plain():
    """One process with the rates of the warmup, and whole batches."""
    net = compiled(network(), tf.optimizers.SGD(RATE, momentum=0.5))
    net.fit(dataset(), epochs=EPOCHS, verbose=0, callbacks=[Rates(warmed)])
    tell(weights(net))


class Told(tf.keras.callbacks.Callback):
    """The logs of each epoch, as a later callback has them."""

    def __init__(self):
        super().__init__()
        self.logs = []

    def on_epoch_end(self, epoch, logs=None):
        self.logs.append({k: float(v) for k, v in logs.items()})


def train(**keys):
    """The calls of Horovod's example, in their order."""
    hvd.init(**keys)
    net = network(hvd.rank())
    optimizer = hvd.DistributedOptimizer(
        tf.optimizers.SGD(RATE, momentum=0.5),
        backward_passes_per_step=1,
        average_aggregated_gradients=True,
    )
    net = compiled(net, optimizer)
    own, told = Told(), Told()
    callbacks = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        own,
        hvd.callbacks.MetricAverageCallback(),
        hvd.callbacks.LearningRateWarmupCallback(
            initial_lr=RATE,
            warmup_epochs=1,
            momentum_correction=False,
            verbose=1,
        ),
        told,
    ]
    if hvd.rank() == 0:
        callbacks.append(tf.keras.callbacks.ModelCheckpoint("saved.keras"))
    data = dataset(hvd.rank(), hvd.size())
    net.fit(data, epochs=EPOCHS, callbacks=callbacks, verbose=0)
    hvd.broadcast([0.0], 0)  # rank 0 has saved
    loaded = hvd.load_model("saved.keras")
    found = {"own": own.logs, "told": told.logs, "weights": weights(net)}
    found["loaded"] = weights(loaded)
    found["class"] = type(loaded.optimizer).__mro__[1].__name__
    found["rate"] = float(np.array(loaded.optimizer.learning_rate))
    tell(found)


def momentum(kind, corrects):
    """One weight with a gradient of 1, whose rate doubles by epoch."""
    hvd.init()
    net = tf.keras.Sequential([tf.keras.layers.Dense(1, use_bias=False)])
    net.build((None, 1))
    optimizer = getattr(tf.optimizers, kind)(0.1, momentum=0.5)
    net.compile(hvd.DistributedOptimizer(optimizer), lambda y, p: p)
    callbacks = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.LearningRateScheduleCallback(
            0.1, 2.0, momentum_correction=corrects
        ),
    ]
    first = float(net.get_weights()[0][0, 0])
    ones = np.ones((4, 1), np.float32)
    net.fit(ones, ones, 2, epochs=3, callbacks=callbacks, verbose=0)
    tell(float(net.get_weights()[0][0, 0]) - first)


def mine(rows=4):
    return np.arange(2.0 * rows, dtype=np.float32).reshape(
        rows, 2
    ) + np.float32(10 * hvd.rank())


def of(tensor):
    assert isinstance(tensor, tf.Tensor)
    return tensor.numpy().tolist()


def half():
    found = hvd.allreduce(mine(), compression=hvd.Compression.fp16)
    return [found.dtype.name, of(found)]


# What is done with each name of Horovod, and printed.
USES = {
    "Average": lambda: of(hvd.allreduce(mine(), op=hvd.Average)),
    "Compression": half,
    "DistributedOptimizer": lambda: [
        refusal(hvd.DistributedOptimizer, None, op=hvd.Sum),
        refusal(hvd.DistributedOptimizer, None, backward_passes_per_step=2),
        refusal(
            hvd.DistributedOptimizer, None, compression=hvd.Compression.fp16
        ),
        refusal(
            hvd.DistributedOptimizer, None, gradient_predivide_factor=0.0
        ),
    ],
    "ProcessSet": lambda: hvd.ProcessSet([0]).included(),
    "Sum": lambda: of(hvd.allreduce(mine(), op=hvd.Sum)),
    "add_process_set": lambda: refusal(hvd.add_process_set, [0]),
    "allgather": lambda: of(hvd.allgather(mine(hvd.rank() + 1))),
    "allreduce": lambda: of(hvd.allreduce(1.5 * (hvd.rank() + 1))),
    "broadcast": lambda: of(hvd.broadcast(mine(), 1)),
    "broadcast_global_variables": lambda: refusal(
        hvd.broadcast_global_variables, 0
    ),
    "callbacks": lambda: [
        refusal(hvd.callbacks.BestModelCheckpoint),
        refusal(hvd.callbacks.BroadcastGlobalVariablesCallback, 1),
    ],
    "ccl_built": lambda: hvd.ccl_built(),
    "cross_rank": lambda: hvd.cross_rank(),
    "cross_size": lambda: hvd.cross_size(),
    "cuda_built": lambda: hvd.cuda_built(),
    "ddl_built": lambda: hvd.ddl_built(),
    "elastic": lambda: refusal(lambda: hvd.elastic.KerasState(None)),
    "global_process_set": lambda: hvd.global_process_set.size(),
    "gloo_built": lambda: hvd.gloo_built(),
    "gloo_enabled": lambda: hvd.gloo_enabled(),
    "init": lambda: hvd.init() is hvd.init(),
    "is_initialized": lambda: hvd.is_initialized(),
    "load_model": lambda: refusal(
        hvd.load_model, "saved.keras", legacy_opts=True
    ),
    "local_rank": lambda: hvd.local_rank(),
    "local_size": lambda: hvd.local_size(),
    "mpi_built": lambda: hvd.mpi_built(),
    "mpi_enabled": lambda: hvd.mpi_enabled(),
    "mpi_threads_supported": lambda: hvd.mpi_threads_supported(),
    "nccl_built": lambda: hvd.nccl_built(),
    "rank": lambda: hvd.rank(),
    "reducescatter": lambda: of(hvd.reducescatter(mine(3), op=hvd.Sum)),
    "remove_process_set": lambda: hvd.remove_process_set(
        hvd.global_process_set
    ),
    "rocm_built": lambda: hvd.rocm_built(),
    "size": lambda: hvd.size(),
    "start_timeline": lambda: refusal(hvd.start_timeline, "timeline.json"),
    "stop_timeline": lambda: refusal(hvd.stop_timeline),
    "shutdown": lambda: [hvd.shutdown(), hvd.is_initialized()],
}


def names():
    """Prints what the use of each name gives; the last is shutdown."""
    hvd.init()
    tell({name: use() for name, use in USES.items()})


if __name__ == "__main__":
    processes.main(globals())
