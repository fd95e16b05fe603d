# SPDX-License-Identifier: Apache-2.0
# A script for MultiWorkerMirroredStrategy, started with TF_CONFIG.
import argparse

import keras
import tensorflow as tf

from capstan.examples.images import read

parser = argparse.ArgumentParser()
parser.add_argument("--samples", type=int, default=60000)
arguments = parser.parse_args()
strategy = tf.distribute.MultiWorkerMirroredStrategy()
size = strategy.num_replicas_in_sync
images = tf.data.Dataset.from_tensor_slices(read("train", arguments.samples))
images = images.shuffle(10000).batch(64 * size)
with strategy.scope():
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
        optimizer=keras.optimizers.SGD(0.05),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
model.fit(images, epochs=3, verbose=2)
