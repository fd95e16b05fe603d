# SPDX-License-Identifier: Apache-2.0
# keras_mnist_plain.py with Capstan, started with TF_CONFIG or a launcher:
# capstan local --ps 1 --workers 2 -- python keras_mnist.py
import argparse

import keras
import tensorflow as tf

import capstan.keras
from capstan.examples.images import read

parser = argparse.ArgumentParser()
parser.add_argument("--samples", type=int, default=60000)
arguments = parser.parse_args()
run = capstan.init()
images = tf.data.Dataset.from_tensor_slices(read("train", arguments.samples))
images = images.shard(run.size, run.rank).shuffle(10000).batch(64)
model = keras.Sequential([
    keras.Input((28, 28)),
    keras.layers.Reshape((28, 28, 1)),
    keras.layers.Conv2D(32, 3, activation="relu"),
    keras.layers.MaxPooling2D(),
    keras.layers.Flatten(),
    keras.layers.Dense(128, activation="relu"),
    keras.layers.Dense(10),
])  # fmt: skip
model.compile(
    optimizer=capstan.keras.DistributedOptimizer(keras.optimizers.SGD(0.05)),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
model.fit(
    images,
    epochs=3,
    verbose=2 if run.rank == 0 else 0,
    callbacks=[capstan.keras.Callback()],
)
