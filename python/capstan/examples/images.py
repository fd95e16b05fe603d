# SPDX-License-Identifier: Apache-2.0
"""The images of the examples: Fashion-MNIST, or patterns made here."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np

FOLDER = Path("/usr/share/datasets/fashion-mnist")


def read(
    part: str = "train", count: int | None = None, folder: Path = FOLDER
) -> tuple[np.ndarray, np.ndarray]:
    """COUNT images, float32 of shape (count, 28, 28) in 0..1, and classes.

    PART is "train" or "t10k". Where FOLDER has no files, each class is a
    pattern with noise.
    """
    path = folder / f"{part}-images-idx3-ubyte.gz"
    if not path.exists():
        return _patterns(count or 4096)
    images = gzip.decompress(path.read_bytes())
    path = folder / f"{part}-labels-idx1-ubyte.gz"
    classes = gzip.decompress(path.read_bytes())
    x = np.frombuffer(images, np.uint8, offset=16).reshape(-1, 28, 28)
    y = np.frombuffer(classes, np.uint8, offset=8).astype(np.int64)
    return x[:count] / np.float32(255), y[:count].copy()


def _patterns(count: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    y = random.integers(10, size=count)
    pattern = random.random((10, 28, 28), np.float32)
    noise = random.random((count, 28, 28), np.float32)
    return (pattern[y] + noise) / 2, y
