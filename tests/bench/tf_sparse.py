#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Examples/s of a TensorFlow job by legacy parameter server, for docs/bench.md.

One ps and two asynchronous workers on this machine train a logistic regression
whose weights (ftrl, dim 1) or embeddings (adagrad, dim 16) are rows of one
partitioned variable, by the ids of 39 fields, which are ready in memory, or which
tf.data reads from a LIBSVM file (--libsvm). TensorFlow comes from PyPI, in an
environment of its own:

    python3 -m venv /tmp/tf && /tmp/tf/bin/pip install tensorflow-cpu
    /tmp/tf/bin/python tests/bench/tf_sparse.py

Prints the median over intervals of each worker's examples/s after the warm-up.
"""
import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import time

RULES = {"ftrl": 1, "adagrad": 16}  # and the rows' width
BATCHES = 64  # different ones, in turn


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rule", choices=RULES, help="one of them; default: both")
    parser.add_argument("--rows", type=int, default=1000000)
    parser.add_argument("--fields", type=int, default=39)
    parser.add_argument("--exponent", type=float, default=1.15, help="of Zipf's law")
    parser.add_argument("--libsvm", help="file of ids and values to read; dim 1")
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--partitions", type=int, default=1)
    parser.add_argument("--warm-up", type=float, default=5, help="seconds")
    parser.add_argument("--intervals", type=int, default=10)
    parser.add_argument("--interval", type=float, default=1, help="seconds")
    return parser.parse_args()


def draw_batches(options, seed):
    """Ids [BATCHES, batch * fields] and clicks [BATCHES, batch]."""
    import numpy as np

    random = np.random.default_rng(seed)
    shares = np.arange(1, options.rows + 1, dtype=np.float64) ** -options.exponent
    sums = np.cumsum(shares / shares.sum())
    count = options.batch * options.fields
    ranks = np.searchsorted(sums, random.random((BATCHES, count)))
    ids = np.minimum(ranks, options.rows - 1)
    # Frequent ids lie anywhere in the variable, as hashed ones do.
    places = np.random.default_rng(0).permutation(options.rows)
    clicks = random.random((BATCHES, options.batch)) < 0.25
    return places[ids].astype(np.int64), clicks.astype(np.float32)


def read_libsvm(tf, options):
    """The next batch of a file: ids and values, as sparse tensors, and clicks."""

    def parse(lines):
        words = tf.strings.split(lines, " ").to_sparse()
        first = tf.equal(words.indices[:, 1], 0)
        labels = tf.strings.to_number(tf.boolean_mask(words.values, first))
        where = tf.boolean_mask(words.indices, ~first)
        pairs = tf.strings.split(tf.boolean_mask(words.values, ~first), ":")
        pairs = tf.reshape(pairs.values, [-1, 2])
        ids = tf.strings.to_number(pairs[:, 0], tf.int64) % options.rows
        values = tf.strings.to_number(pairs[:, 1])
        return labels, where, ids, values

    data = tf.compat.v1.data.TextLineDataset(options.libsvm).repeat()
    data = data.batch(options.batch, drop_remainder=True)
    data = data.map(parse, num_parallel_calls=tf.data.experimental.AUTOTUNE)
    iterator = tf.compat.v1.data.make_one_shot_iterator(data.prefetch(4))
    labels, where, ids, values = iterator.get_next()
    shape = [options.batch, tf.reduce_max(where[:, 1]) + 1]
    return (tf.SparseTensor(where, ids, shape), tf.SparseTensor(where, values, shape),
            labels)


def ready_batches(tf, options, ids, clicks):
    """The next of the batches in memory, as read_libsvm."""
    import numpy as np

    samples = np.repeat(np.arange(options.batch), options.fields)
    fields = np.tile(np.arange(options.fields), options.batch)
    turn = tf.compat.v1.get_variable(
        "turn", [], tf.int32, tf.compat.v1.zeros_initializer(), trainable=False,
        collections=[tf.compat.v1.GraphKeys.LOCAL_VARIABLES])
    batch = tf.compat.v1.assign_add(turn, 1) % BATCHES
    sparse = tf.SparseTensor(np.stack([samples, fields], 1).astype(np.int64),
                             tf.gather(tf.constant(ids), batch),
                             [options.batch, options.fields])
    return sparse, None, tf.gather(tf.constant(clicks), batch)


def build(tf, options, batch):
    """The training step of a worker, on its next batch."""
    dim = RULES[options.rule]
    sparse, weights, labels = batch
    bound = 0.0 if dim == 1 else 0.05
    rows = tf.compat.v1.get_variable(
        "rows", [options.rows, dim],
        initializer=tf.compat.v1.random_uniform_initializer(-bound, bound),
        partitioner=tf.compat.v1.fixed_size_partitioner(options.partitions))
    sums = tf.compat.v1.nn.safe_embedding_lookup_sparse(
        rows, sparse, weights, combiner="sum")
    if dim > 1:
        sums = tf.matmul(sums, tf.compat.v1.get_variable("output", [dim, 1]))
    bias = tf.compat.v1.get_variable("bias", [1])
    loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(
        labels=labels[:, None], logits=sums + bias))
    optimizer = (tf.compat.v1.train.FtrlOptimizer(0.1) if options.rule == "ftrl"
                 else tf.compat.v1.train.AdagradOptimizer(0.05))
    step = tf.compat.v1.train.get_or_create_global_step()
    return optimizer.minimize(loss, global_step=step), loss


def measure(session, train, options):
    """Examples/s of each interval after the warm-up."""
    rates = []
    end = time.monotonic() + options.warm_up
    while time.monotonic() < end:
        session.run(train)
    for _ in range(options.intervals):
        begin, steps = time.monotonic(), 0
        while time.monotonic() < begin + options.interval:
            session.run(train)
            steps += 1
        rates.append(steps * options.batch / (time.monotonic() - begin))
    return rates


def play(options, cluster, job, index):
    """A process of the cluster; a worker prints its rates."""
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
    import tensorflow as tf

    tf.compat.v1.disable_v2_behavior()
    server = tf.distribute.Server(tf.train.ClusterSpec(cluster), job_name=job,
                                  task_index=index)
    if job == "ps":
        server.join()
    distinct = 0
    if not options.libsvm:
        ids, clicks = draw_batches(options, index + 1)
        distinct = sum(len(set(batch.tolist())) for batch in ids) / len(ids)
    here = f"/job:worker/task:{index}"
    with tf.compat.v1.device(tf.compat.v1.train.replica_device_setter(
            worker_device=here, cluster=tf.train.ClusterSpec(cluster))):
        train, loss = build(tf, options, read_libsvm(tf, options) if options.libsvm
                            else ready_batches(tf, options, ids, clicks))
    with tf.compat.v1.train.MonitoredTrainingSession(
            master=server.target, is_chief=index == 0,
            config=tf.compat.v1.ConfigProto(device_filters=["/job:ps", here])
    ) as session:
        first = float(session.run(loss))
        rates = measure(session, train, options)
        result = {"rates": rates, "distinct": distinct, "first": first,
                  "last": float(session.run(loss)), "version": tf.__version__}
    print(json.dumps(result), flush=True)


def free_port():
    with socket.socket() as listener:
        listener.bind(("localhost", 0))
        return listener.getsockname()[1]


def run(rule, options):
    """Starts the cluster and prints a line for each worker."""
    cluster = {"ps": [f"localhost:{free_port()}"],
               "worker": [f"localhost:{free_port()}"
                          for _ in range(options.workers)]}

    def start(job, index):
        config = {"cluster": cluster, "task": {"type": job, "index": index}}
        return subprocess.Popen(
            [sys.executable, __file__, *sys.argv[1:], "--rule", rule],
            stdout=subprocess.PIPE, text=True,
            env={**os.environ, "TF_CONFIG": json.dumps(config)})

    ps = start("ps", 0)
    workers = [start("worker", index) for index in range(options.workers)]
    try:
        for index, worker in enumerate(workers):
            output, _ = worker.communicate()
            if worker.returncode:
                sys.exit(f"worker {index} ended with {worker.returncode}")
            result = json.loads(output.splitlines()[-1])
            print(f"TensorFlow {result['version']}, {rule}, dim {RULES[rule]}, "
                  f"worker {index}: {statistics.median(result['rates']):,.0f} "
                  f"examples/s ({min(result['rates']):,.0f} to "
                  f"{max(result['rates']):,.0f}); "
                  + (f"{result['distinct']:,.0f} distinct ids a batch; "
                     if result["distinct"] else "") +
                  f"loss {result['first']:.4f}, then "
                  f"{result['last']:.4f}", flush=True)
    finally:
        for process in [ps, *workers]:
            process.kill()
            process.wait()


def main():
    options = arguments()
    config = os.environ.get("TF_CONFIG")
    if config and options.rule:
        config = json.loads(config)
        task = config["task"]
        play(options, config["cluster"], task["type"], task["index"])
        return
    if options.libsvm:
        options.rule = "ftrl"
    for rule in [options.rule] if options.rule else RULES:
        run(rule, options)


if __name__ == "__main__":
    main()
