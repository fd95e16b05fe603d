# SPDX-License-Identifier: Apache-2.0
"""Capstan trains a model by parameter server or by all-reduce.

The script computes gradients; Capstan exchanges them, applies the update rule,
writes checkpoints and handles failures:

    import capstan, numpy as np

    run = capstan.init(optimizer={"type": "SGD", "params": {"lr": 0.5}})
    weight = np.zeros(3, np.float32)
    w = run.declare("weight", weight)
    run.start()
    for step in range(200):
        loss, gradient = compute(weight)  # gradient: np.float32 of shape (3,)
        run.push(w, gradient)
        run.step(loss, samples=32)
        run.wait(w)                       # weight has its new values

capstan.torch has the optimiser for PyTorch.
"""

from .errors import ConfigError, Error, Failed, Interrupted, PeerLost
from .run import (
    EMPTY,
    ENDS,
    FULL,
    GOES_ON,
    REWOUND,
    VOID,
    ZERO,
    Contribution,
    Outcome,
    Position,
    Run,
    current,
    init,
    version,
)
from .tables import Bags

__all__ = [
    "Bags",
    "ConfigError",
    "Contribution",
    "EMPTY",
    "ENDS",
    "Error",
    "FULL",
    "Failed",
    "GOES_ON",
    "Interrupted",
    "Outcome",
    "PeerLost",
    "Position",
    "REWOUND",
    "Run",
    "VOID",
    "ZERO",
    "current",
    "init",
    "version",
]
__version__ = version()
