#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""AUC of TensorFlow's DNNLinearCombinedClassifier on a click log.

    pip install tensorflow-cpu==2.15.1   (the last with tf.estimator)
    tf_wide_deep.py TRAIN.tsv TEST.tsv [EPOCHS]

Wide: the 26 categories, by Ftrl. Deep: their embeddings of dim 8 and log1p of
the 13 numbers, layers of 64 and 32, by Adagrad. docs/sparse.md has what Capstan
reaches with the same.
"""

import sys

import tensorflow as tf

NUMBERS = [f"I{i}" for i in range(1, 14)]
WORDS = [f"C{i}" for i in range(1, 27)]
BATCH, BUCKETS = 1024, 100_000


def parse(lines):
    kinds = [0.0] + [0.0] * len(NUMBERS) + [""] * len(WORDS)
    label, *fields = tf.io.decode_csv(
        lines, kinds, field_delim="\t", use_quote_delim=False
    )
    features = dict(zip(NUMBERS + WORDS, fields))
    for name in NUMBERS:
        features[name] = tf.math.log1p(tf.maximum(features[name], 0.0))
    return features, label


def records(path, epochs, shuffles):
    data = tf.data.TextLineDataset(path)
    if shuffles:
        data = data.shuffle(65536, seed=1)
    return data.repeat(epochs).batch(BATCH).map(parse).prefetch(4)


def main():
    train, test = sys.argv[1:3]
    epochs = int(sys.argv[3]) if len(sys.argv) > 3 else 1
    column = tf.feature_column
    words = [
        column.categorical_column_with_hash_bucket(name, BUCKETS)
        for name in WORDS
    ]
    model = tf.estimator.DNNLinearCombinedClassifier(
        linear_feature_columns=words,
        linear_optimizer=tf.keras.optimizers.legacy.Ftrl(0.1),
        dnn_feature_columns=[column.embedding_column(w, 8) for w in words]
        + [column.numeric_column(name) for name in NUMBERS],
        dnn_hidden_units=[64, 32],
        dnn_optimizer=tf.keras.optimizers.legacy.Adagrad(
            0.05, initial_accumulator_value=0.1
        ),
        config=tf.estimator.RunConfig(tf_random_seed=1),
    )
    model.train(lambda: records(train, epochs, True))
    found = model.evaluate(lambda: records(test, 1, False))
    print(f"AUC {found['auc']:.5f}, loss {found['average_loss']:.5f}")


if __name__ == "__main__":
    main()
