# SPDX-License-Identifier: Apache-2.0
"""What the processes of test_keras.py do."""

import importlib
import json
import os
import signal
import time

import frameworks
import numpy as np
import processes
import tensorflow as tf

import capstan.keras

keras = importlib.import_module(os.environ.get("KERAS", "keras"))


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


class Stepped(Subclassed):
    """With a train_step of its own, which counts by a metric of its own."""

    def __init__(self, layers):
        super().__init__(layers)
        self.error = loss_function()
        self.mean = keras.metrics.Mean()

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.error(y, self(x, training=True))
        variables = self.trainable_variables
        gradients = tape.gradient(loss, variables)
        self.optimizer.apply_gradients(zip(gradients, variables))
        self.mean.update_state(loss)
        return {"loss": self.mean.result()}


KINDS = {"sequential": keras.Sequential, "stepped": Stepped}


def built_by_fit(kind, steps, own=False, eager=False, **keys):
    """As train(), of a model that fit() builds; OWN: capstan.keras.fit()."""
    run = capstan.init(**keys)
    layers = layers_of(run.rank, kind == "norm")
    optimizer = sgd()
    if kind == "scaled":
        optimizer = keras.mixed_precision.LossScaleOptimizer(optimizer)
    optimizer = capstan.keras.DistributedOptimizer(optimizer)
    net = compiled(KINDS.get(kind, Subclassed)(layers), optimizer)
    net.run_eagerly = eager
    data = dataset().shard(run.size, run.rank)
    data = data.batch(frameworks.BATCH // run.size, drop_remainder=True)
    if own:
        capstan.keras.fit(net, data.take(steps), 1, verbose=0)
    else:
        callback = capstan.keras.Callback()
        net.fit(data.take(steps), callbacks=[callback], verbose=0)
    own = [np.array(v) for v in net.weights if "total" in v.name]
    net = net.parts if kind == "stepped" else [net]
    found = [w for part in net for w in weights(part)]
    found = {"weights": found, "step": run.position.step}
    found["own"] = [float(value) for value in own]
    print(json.dumps(found), flush=True)


def loss_function():
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def sgd():
    return keras.optimizers.SGD(0.5, momentum=0.9, global_clipnorm=0.8)


def compiled(net, optimizer):
    net.compile(optimizer, loss_function(), jit_compile=True)
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


def executions(steps, per, loop=False, **keys):
    """fit() of 8 batches, PER in a graph, in a run of STEPS; LOOP: the script's
    own, of a graph a step. Prints weights and the optimiser's state."""
    run = capstan.init(steps=steps, **keys)
    net = network(run.rank, norm=True)
    optimizer = capstan.keras.DistributedOptimizer(sgd())
    net.compile(optimizer, loss_function(), steps_per_execution=per)
    data = dataset().shard(run.size, run.rank)
    data = data.batch(frameworks.BATCH // run.size)
    if loop:
        own_loop(net, optimizer, data)
    else:
        net.fit(data, callbacks=[capstan.keras.Callback()], verbose=0)
    state = [np.array(v, float).ravel() for v in optimizer.variables]
    found = [weights(net), np.concatenate(state).tolist()]
    print(json.dumps(found), flush=True)


def own_loop(net, optimizer, data):
    capstan.keras.start(net)

    @tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = loss_function()(y, net(x, training=True))
        variables = net.trainable_variables
        gradients = tape.gradient(loss, variables)
        optimizer.apply_gradients(zip(gradients, variables))

    for x, y in data:
        step(x, y)
        print("a step", flush=True)


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
            optimizer.apply_gradients(zip(ones, variables))
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


def epochs(count, die=False, slow=False, **keys):
    """Prints the step at the end too."""
    if die:
        keys.update(chief="coordinate", timeouts={"peer": 2})
    run = capstan.init(**keys)
    if slow:
        push = run.push

        def pushes(*arguments, **named):
            time.sleep(0.01)
            push(*arguments, **named)

        run.push = pushes
    net = network()
    net = compiled(net, capstan.keras.DistributedOptimizer(sgd()))
    data = dataset().shard(run.size, run.rank).batch(8)
    callbacks = [Losses(), *([Die()] if die else [])]
    capstan.keras.fit(net, data, count, callbacks=callbacks, verbose=0)
    found = {"step": run.position.step, "weights": weights(net)}
    found["iterations"] = int(net.optimizer.iterations)
    print(json.dumps(found), flush=True)


def led_epochs():
    epochs(8, slow=True, **processes.led(5))


def tutorial(steps):
    """The calls of TensorFlow's tutorial of MultiWorkerMirroredStrategy, in
    their order; prints the weights of what was saved in each way."""
    run = capstan.init()
    options = tf.data.Options()
    off = tf.data.experimental.AutoShardPolicy.OFF
    options.experimental_distribute.auto_shard_policy = off
    data = dataset().shard(run.size, run.rank).repeat()
    data = data.batch(frameworks.BATCH // run.size).with_options(options)
    net = keras.Sequential(
        [
            keras.layers.InputLayer((frameworks.INPUTS,)),
            *layers_of(run.rank, False),
        ]
    )
    optimizer = capstan.keras.DistributedOptimizer(sgd())
    net.compile(optimizer, loss_function(), metrics=["accuracy"])
    callbacks = [capstan.keras.Callback()]
    epochs = {"epochs": 2, "steps_per_epoch": steps // 2, "verbose": 0}
    net.fit(data, callbacks=callbacks, **epochs)
    net.evaluate(data, steps=2, verbose=0)
    folder = f"rank{run.rank}"
    os.mkdir(folder)
    found = [weights(net)]
    names = ["net.keras"] + ["saved"] * keras.__version__.startswith("2.")
    for name in names:
        net.save(f"{folder}/{name}")
        loaded = keras.models.load_model(f"{folder}/{name}")
        found.append(weights(loaded))
        loaded.fit(data, epochs=1, steps_per_epoch=1, verbose=0)
    checkpoint = tf.train.Checkpoint(model=net)
    manager = tf.train.CheckpointManager(checkpoint, folder, max_to_keep=1)
    manager.save()
    net.set_weights([np.zeros_like(w) for w in net.get_weights()])
    checkpoint.restore(tf.train.latest_checkpoint(folder))
    found.append(weights(net))
    print(json.dumps(found), flush=True)


def text_of(function, *arguments):
    try:
        function(*arguments)
    except capstan.ConfigError as error:
        return str(error)
    return ""


def refused():
    """Prints what each is refused with."""
    wrap, start = capstan.keras.DistributedOptimizer, capstan.keras.start
    sgd_1 = tf.compat.v1.train.GradientDescentOptimizer(0.1)
    found = {"Estimator": text_of(wrap, sgd_1), "object": text_of(start, 1)}
    if keras.__version__.startswith("2."):
        legacy = keras.optimizers.legacy.Adam()
        found["legacy"] = text_of(wrap, legacy)
    found["again"] = text_of(wrap, wrap(sgd()))
    strategies = tf.distribute.MirroredStrategy, tf.distribute.OneDeviceStrategy
    for number, kind in enumerate(strategies):
        with kind(*["cpu:0"][:number]).scope():
            net = compiled(network(), sgd())
        found[kind.__name__] = text_of(start, net)
    print(json.dumps(found), flush=True)


def compiled_anew():
    """Prints what training in two parts is refused with: by an optimiser of its
    own, and by that of the first part."""
    capstan.init()
    wrap = capstan.keras.DistributedOptimizer
    net, first = network(), wrap(sgd())
    net.layers[0].trainable = False
    data = dataset().batch(4).take(2)

    def train(optimizer):
        compiled(net, optimizer).fit(
            data, callbacks=[capstan.keras.Callback()], verbose=0
        )

    train(first)
    net.layers[0].trainable = True
    found = [text_of(train, wrap(sgd()))]
    try:
        train(first)
    except Exception as error:  # Keras 3 has one of its own
        found.append(f"{type(error).__name__}: {error}")
    print(json.dumps(found), flush=True)


class Write(keras.callbacks.Callback):
    """Writes a weight, of all that are trained the first, after a batch."""

    def __init__(self, value):
        super().__init__()
        self.value = value

    def on_train_batch_end(self, batch, logs=None):
        variable = self.model.trainable_weights[0]
        variable.assign(tf.fill(variable.shape, self.value))


def stale(what):
    """Prints what ends a run with staleness in which WHAT is done."""
    run = capstan.init(strategy={"staleness": 2})
    optimizer, callbacks = sgd(), [capstan.keras.Callback()]
    if what == "scale":
        optimizer = keras.mixed_precision.LossScaleOptimizer(optimizer)
    if what == "ema":
        more = {"use_ema": True, "ema_overwrite_frequency": 2}
        optimizer = keras.optimizers.SGD(0.5, **more)
    if what == "write":
        callbacks.append(Write(0.5))
    data = dataset()
    if what == "explode":
        data = data.map(lambda x, y: (x * float("nan"), y))
    net = compiled(network(), capstan.keras.DistributedOptimizer(optimizer))
    fit(net, data, frameworks.BATCH, 0, 8, callbacks)


def own_weights():
    """Rank 1 writes a variable after its first batch."""
    run = capstan.init()
    made = capstan.keras.DistributedOptimizer(sgd())
    callbacks = [capstan.keras.Callback(), *[Write(0.5)] * run.rank]
    fit(compiled(network(), made), dataset(), 16, 0, 8, callbacks)


def other_rates():
    run = capstan.init()
    rate = 0.1 if run.rank else 0.5
    made = capstan.keras.DistributedOptimizer(keras.optimizers.SGD(rate))
    callback = capstan.keras.Callback()
    fit(compiled(network(), made), dataset(), 16, 0, 8, [callback])


if __name__ == "__main__":
    processes.main(globals())
