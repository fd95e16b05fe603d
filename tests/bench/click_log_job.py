#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints a job that learns what tests/bench/click_log.h plants.

    build/bench/click_log --rows 10000000 train.tsv
    build/bench/click_log --rows 500000 --first 10000000 test.tsv
    click_log_job.py deepfm|dlrm [ROWS] > job.json

ROWS (10000000) is that of train.tsv: the learning rate falls to 0 over it.
docs/sparse.md has what came out.
"""

import json
import sys

NUMBERS = [f"I{i}" for i in range(1, 14)]
WORDS = [f"C{i}" for i in range(1, 27)]
BATCH = 1024

# A missing number counts as the mean of the logarithms of the others.
number = {"type": "numeric", "transform": "log1p", "default_value": 65.7}


def embedding(word):
    return {
        "type": "embedding",
        "of": word,
        "dim": 6,
        "init_range": 0.02,
        "admit": {"count": 200},
    }


def deepfm():
    model = {"features": NUMBERS + WORDS, "dim": 4, "hidden": [32]}
    return model, {}


def dlrm():
    model = {"bottom": [16, 6], "top": [64], "init": "he_uniform"}
    return model, {f"e{word[1:]}": embedding(word) for word in WORDS}


# Epochs, Adagrad's rate, and its initial_accumulator_value, which holds back rows
# that few samples have.
SETTINGS = {
    "deepfm": (deepfm, 1, 0.1, 1.5e-4),
    "dlrm": (dlrm, 2, 0.2, 1.2e-4),
}


def main():
    kind = sys.argv[1]
    rows = int(sys.argv[2]) if len(sys.argv) > 2 else 10_000_000
    describe, epochs, rate, begin = SETTINGS[kind]
    model, embeddings = describe()
    optimizer = {"lr": rate, "initial_accumulator_value": begin}
    schedule = {
        "warmup_max_lr": rate,
        "warmup_num_steps": 50,
        "total_num_steps": -(-rows // BATCH) * epochs,
    }
    job = {
        "model": {"type": kind} | model,
        "features": dict.fromkeys(NUMBERS, number)
        | dict.fromkeys(WORDS, {"type": "hash_bucket"})
        | embeddings,
        "data": {"format": "criteo", "train": "train.tsv", "test": "test.tsv"},
        "seed": 1,
        "epochs": epochs,
        "train_batch_size": BATCH,
        "optimizer": {"type": "Adagrad", "params": optimizer},
        "scheduler": {"type": "WarmupDecayLR", "params": schedule},
    }
    print(json.dumps(job, indent=2))


if __name__ == "__main__":
    main()
