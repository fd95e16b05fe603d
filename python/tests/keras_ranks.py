# SPDX-License-Identifier: Apache-2.0
"""What the processes of test_keras.py do."""

import json
import os
import signal
import time

import frameworks
import keras
import numpy as np
import processes
import tensorflow as tf

import capstan.keras


def layers_of(seed, norm):
    """NORM: with statistics, and with frozen weights."""
    keras.utils.set_random_seed(seed)
    more = [keras.layers.Dense(16, trainable=False)]
    more.append(keras.layers.BatchNormalization())
    return [
        *(more if norm else []),
        keras.layers.Dense(16, activation="tanh"),
        keras.layers.Dense(frameworks.CLASSES),
    ]


def network(seed=0, norm=False):
    layers = [keras.Input((frameworks.INPUTS,)), *layers_of(seed, norm)]
    return keras.Sequential(layers)


class Subclassed(keras.Model):
    """LAYERS, whose variables the first call makes, and one that none uses."""

    def __init__(self, layers):
        super().__init__()
        self.parts = layers
        self.unused = keras.layers.Dense(3)

    def call(self, x):
        for part in self.parts:
            x = part(x)
        return x


def built_by_fit(kind, steps, own=False, eager=False, **keys):
    """As train(), of a model that fit() builds; OWN: capstan.keras.fit()."""
    run = capstan.init(**keys)
    layers = layers_of(run.rank, kind == "norm")
    made = keras.Sequential if kind == "sequential" else Subclassed
    optimizer = capstan.keras.DistributedOptimizer(sgd())
    net = compiled(made(layers), optimizer)
    net.run_eagerly = eager
    data = dataset().shard(run.size, run.rank)
    data = data.batch(frameworks.BATCH // run.size, drop_remainder=True)
    if own:
        capstan.keras.fit(net, data.take(steps), 1, verbose=0)
    else:
        callback = capstan.keras.Callback()
        net.fit(data.take(steps), callbacks=[callback], verbose=0)
    found = {"weights": weights(net), "step": run.position.step}
    print(json.dumps(found), flush=True)


def sgd():
    return keras.optimizers.SGD(0.5, momentum=0.9, global_clipnorm=0.8)


def compiled(net, optimizer):
    net.compile(
        optimizer,
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=True,
    )
    return net


def fit(net, data, batch, first, last, callbacks=()):
    net.fit(
        data.batch(batch).skip(first).take(last - first),
        callbacks=list(callbacks),
        verbose=0,
    )


def dataset():
    return tf.data.Dataset.from_tensor_slices(frameworks.samples())


def weights(net):
    return np.concatenate([w.ravel() for w in net.get_weights()]).tolist()


class Pause(keras.callbacks.Callback):
    def __init__(self, run, step):
        super().__init__()
        self.run, self.at = run, step

    def on_train_batch_begin(self, batch, logs=None):
        if batch == self.at and self.run.rank == 1:
            print("pauses", flush=True)
            signal.pause()


def plain():
    net = compiled(network(), sgd())
    fit(net, dataset(), frameworks.BATCH, 0, frameworks.STEPS)
    print(json.dumps(weights(net)))


def train(
    steps, save=None, resume=None, pause=None, norm=False, start=True, **keys
):
    run = capstan.init(**keys)
    net, first = network(run.rank, norm), 0
    optimizer = capstan.keras.DistributedOptimizer(sgd())
    if resume:
        net = keras.models.load_model(f"{resume}.keras")
        first = int(net.optimizer.iterations)
        optimizer = capstan.keras.DistributedOptimizer(net.optimizer)
    net = compiled(net, optimizer)
    if "checkpoint" in keys:
        capstan.keras.start(net)
        first = run.position.step
    fit(
        net,
        dataset().shard(run.size, run.rank),
        frameworks.BATCH // run.size,
        first,
        steps,
        [capstan.keras.Callback()] * start + [Pause(run, pause)],
    )
    if save and run.rank == 0:
        net.save(f"{save}.keras")
    print(json.dumps(weights(net)), flush=True)


def complete(checkpoint):
    """fit() that does not ask where the run is, twice."""
    run = capstan.init(steps=6, checkpoint=checkpoint)
    made = capstan.keras.DistributedOptimizer(sgd())
    net = compiled(network(run.rank), made)
    tell = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: print("a step", flush=True)
    )
    for _ in range(2):
        fit(net, dataset(), 16, 0, 8, [capstan.keras.Callback(), tell])
    print("after the loop", flush=True)


def alone(steps, how):
    """Trains STEPS without the others, and prints how many; then with them."""
    run = capstan.init()
    optimizer = sgd()
    net = compiled(network(), optimizer)
    wrapped = capstan.keras.DistributedOptimizer(sgd())
    data = dataset().repeat()
    try:
        if how == "fit":
            net.fit(data.batch(1), steps_per_epoch=steps, verbose=0)
        for _ in range(steps if how == "loop" else 0):
            variables = net.trainable_variables
            ones = [tf.ones(v.shape) for v in variables]
            optimizer.apply(ones, variables)
    finally:
        print(json.dumps([int(optimizer.iterations)]), flush=True)
    net = compiled(network(), wrapped)
    fit(net, data, 1, 0, 200, [capstan.keras.Callback()])
    run.close()


class Die(keras.callbacks.Callback):
    """Rank 1 is killed in epoch 2, in its first life."""

    def on_train_batch_begin(self, batch, logs=None):
        run = capstan.current()
        time.sleep(0.05)
        if run.rank == 1 and run.position.epoch == 2 and batch == 3:
            if not os.path.exists("lived"):
                open("lived", "w").close()
                os.kill(os.getpid(), signal.SIGKILL)


class Losses(keras.callbacks.Callback):
    """Every epoch that is trained has a loss."""

    def on_epoch_end(self, epoch, logs=None):
        logs["loss"]


def epochs(count, die=False, **keys):
    """Prints the step at the end too."""
    if die:
        keys.update(chief="coordinate", timeouts={"peer": 2})
    run = capstan.init(**keys)
    net = network()
    net = compiled(net, capstan.keras.DistributedOptimizer(sgd()))
    data = dataset().shard(run.size, run.rank).batch(8)
    callbacks = [Losses(), *([Die()] if die else [])]
    capstan.keras.fit(net, data, count, callbacks=callbacks, verbose=0)
    found = {"step": run.position.step, "weights": weights(net)}
    print(json.dumps(found), flush=True)


def other_rates():
    run = capstan.init()
    rate = 0.1 if run.rank else 0.5
    made = capstan.keras.DistributedOptimizer(keras.optimizers.SGD(rate))
    callback = capstan.keras.Callback()
    fit(compiled(network(), made), dataset(), 16, 0, 8, [callback])


if __name__ == "__main__":
    processes.main(globals())
