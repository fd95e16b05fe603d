# SPDX-License-Identifier: Apache-2.0
# The calls of TensorFlow's tutorial of MultiWorkerMirroredStrategy, in their
# order, started with TF_CONFIG; keras_mnist.py is the same with Capstan.
import argparse

import tensorflow as tf

from capstan.examples.images import read

parser = argparse.ArgumentParser()
parser.add_argument("--samples", type=int, default=60000)
parser.add_argument("--steps_per_epoch", type=int, default=300)
arguments = parser.parse_args()


def mnist_dataset(batch_size):
    images = tf.data.Dataset.from_tensor_slices(
        read("train", arguments.samples)
    )
    return images.shuffle(60000).repeat().batch(batch_size)


def build_and_compile_cnn_model():
    model = tf.keras.Sequential([
        tf.keras.layers.InputLayer((28, 28)),
        tf.keras.layers.Reshape((28, 28, 1)),
        tf.keras.layers.Conv2D(32, 3, activation="relu"),
        tf.keras.layers.MaxPooling2D(),
        tf.keras.layers.Flatten(),
        tf.keras.layers.Dense(128, activation="relu"),
        tf.keras.layers.Dense(10),
    ])  # fmt: skip
    model.compile(
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        optimizer=tf.keras.optimizers.SGD(0.05),
        metrics=["accuracy"],
    )
    return model


strategy = tf.distribute.MultiWorkerMirroredStrategy()
images = mnist_dataset(64 * strategy.num_replicas_in_sync)
with strategy.scope():
    model = build_and_compile_cnn_model()
model.fit(
    images,
    epochs=3,
    steps_per_epoch=arguments.steps_per_epoch,
    verbose=2,
)
worker = strategy.cluster_resolver.task_id or 0
model.save(f"mnist-{worker}.keras")  # only that of worker 0 is used
if worker == 0:
    loaded = tf.keras.models.load_model("mnist-0.keras")
    loaded.evaluate(images, steps=10)
