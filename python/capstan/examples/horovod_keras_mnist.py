# SPDX-License-Identifier: Apache-2.0
# Horovod's tensorflow2_keras_mnist.py, shortened; the import line is changed.
# capstan local --ps 1 --workers 2 -- python horovod_keras_mnist.py
import argparse

import tensorflow as tf

import capstan.horovod.tensorflow.keras as hvd  # horovod.tensorflow.keras
from capstan.examples.images import read

parser = argparse.ArgumentParser()
parser.add_argument("--samples", type=int, default=60000)
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--steps", type=int, default=500)  # of all ranks together
arguments = parser.parse_args()

hvd.init()
tf.random.set_seed(hvd.rank())
x, y = read("train", arguments.samples)
dataset = tf.data.Dataset.from_tensor_slices((x[..., None], y))
dataset = dataset.repeat().shuffle(10000, seed=hvd.rank()).batch(128)

model = tf.keras.Sequential(
    [
        tf.keras.layers.Conv2D(16, 3, activation="relu"),
        tf.keras.layers.MaxPooling2D(),
        tf.keras.layers.Flatten(),
        tf.keras.layers.Dense(64, activation="relu"),
        tf.keras.layers.Dropout(0.5),
        tf.keras.layers.Dense(10, activation="softmax"),
    ]
)
rate = 0.001 * hvd.size()
optimizer = hvd.DistributedOptimizer(
    tf.optimizers.Adam(rate),
    backward_passes_per_step=1,
    average_aggregated_gradients=True,
)
model.compile(
    loss=tf.losses.SparseCategoricalCrossentropy(),
    optimizer=optimizer,
    metrics=["accuracy"],
)
callbacks = [
    hvd.callbacks.BroadcastGlobalVariablesCallback(0),
    hvd.callbacks.MetricAverageCallback(),
    hvd.callbacks.LearningRateWarmupCallback(
        initial_lr=rate, warmup_epochs=2, verbose=1
    ),
]
if hvd.rank() == 0:
    callbacks.append(
        tf.keras.callbacks.ModelCheckpoint("checkpoint-{epoch}.keras")
    )
model.fit(
    dataset,
    steps_per_epoch=arguments.steps // hvd.size(),
    callbacks=callbacks,
    epochs=arguments.epochs,
    verbose=2 if hvd.rank() == 0 else 0,
)
x, y = read("t10k", arguments.samples)
loss, accuracy = model.evaluate(x[..., None], y, verbose=0)
if hvd.rank() == 0:
    print(f"loss {loss:.4f}, accuracy {accuracy:.4f}")
