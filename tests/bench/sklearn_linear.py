#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Capstan's `linear` beside scikit-learn's models, on data sets of its own.

    pip install scikit-learn
    sklearn_linear.py [CAPSTAN]   (build/capstan)

Breast cancer, from .npz: AUC beside LogisticRegression, whose penalty is a
weight decay of 1/rows. Diabetes, from CSV: mean squared error beside
LinearRegression. Both have the same quarter of the rows as test set, and
features standardised by the training rows. docs/sparse.md has what came out.
"""

import json
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
from sklearn import datasets, linear_model, metrics, model_selection
from sklearn.preprocessing import StandardScaler

STEPS = 2000


def split(data, classes):
    """x_train, x_test, y_train, y_test"""
    parts = model_selection.train_test_split(
        data.data,
        data.target,
        test_size=0.25,
        random_state=0,
        stratify=data.target if classes else None,
    )
    scaler = StandardScaler().fit(parts[0])
    return *map(scaler.transform, parts[:2]), *parts[2:]


def train(capstan, folder, job, rows, decay):
    """All rows are the batch. The summary of the run."""
    job = job | {
        "steps": STEPS,
        "train_batch_size": rows,
        "optimizer": {
            "type": "SGD",
            "params": {"lr": 0.1, "momentum": 0.9, "weight_decay": decay},
        },
    }
    path = folder / "job.json"
    path.write_text(json.dumps(job))
    command = [capstan, "local", "--json", path]
    run = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    return json.loads(run.stdout)


def breast_cancer(capstan, folder):
    data = datasets.load_breast_cancer()
    x_train, x_test, y_train, y_test = split(data, True)
    np.savez(folder / "train.npz", x=x_train, label=y_train)
    np.savez(folder / "test.npz", x=x_test, label=y_test)
    job = {
        "model": {"type": "linear", "features": ["x"]},
        "features": {"x": {"type": "numeric", "shape": x_train.shape[1]}},
        "data": {"format": "npz", "train": "train.npz", "test": "test.npz"},
    }
    found = train(capstan, folder, job, len(y_train), 1 / len(y_train))
    model = linear_model.LogisticRegression().fit(x_train, y_train)
    scores = model.decision_function(x_test)
    print(
        f"breast cancer: AUC {found['test_auc']:.5f},"
        f" logloss {found['test_logloss']:.5f};"
        f" scikit-learn: {metrics.roc_auc_score(y_test, scores):.5f},"
        f" {metrics.log_loss(y_test, model.predict_proba(x_test)):.5f}"
    )


def diabetes(capstan, folder):
    data = datasets.load_diabetes()
    x_train, x_test, y_train, y_test = split(data, False)
    names = list(data.feature_names)
    for name, x, y in (("train", x_train, y_train), ("test", x_test, y_test)):
        np.savetxt(
            folder / f"{name}.csv",
            np.column_stack([x, y]),
            delimiter=",",
            header=",".join(names + ["label"]),
            comments="",
        )
    job = {
        "model": {"type": "linear", "features": names, "loss": "mse"},
        "features": {name: {"type": "numeric"} for name in names},
        "data": {
            "format": "csv",
            "header": True,
            "train": "train.csv",
            "test": "test.csv",
        },
    }
    found = train(capstan, folder, job, len(y_train), 0)
    model = linear_model.LinearRegression().fit(x_train, y_train)
    error = metrics.mean_squared_error(y_test, model.predict(x_test))
    print(
        f"diabetes: mse {found['test_loss']:.2f}; scikit-learn: {error:.2f}"
    )


def main():
    capstan = sys.argv[1] if len(sys.argv) > 1 else "build/capstan"
    capstan = pathlib.Path(capstan).resolve()
    for compare in (breast_cancer, diabetes):
        with tempfile.TemporaryDirectory() as folder:
            compare(capstan, pathlib.Path(folder))


if __name__ == "__main__":
    main()
