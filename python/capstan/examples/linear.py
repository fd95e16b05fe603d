# SPDX-License-Identifier: Apache-2.0
"""Linear regression with NumPy: y = 2 x0 - 3 x1 + 1.

capstan local --ps 1 --workers 2 -- python -m capstan.examples.linear
"""

import numpy as np

import capstan

STEPS, BATCH = 200, 32


def main() -> None:
    run = capstan.init(optimizer={"type": "SGD", "params": {"lr": 0.5}})
    weight, bias = np.zeros(2, np.float32), np.zeros((), np.float32)
    w, b = run.declare("weight", weight), run.declare("bias", bias)
    run.start()
    random = np.random.default_rng(run.rank)
    for _ in run.steps(STEPS):
        x = random.random((BATCH, 2), np.float32)
        error = (
            x @ weight + bias - (x @ np.array([2, -3], np.float32) + 1)
        )  # (BATCH,)
        run.push(w, 2 * error @ x / BATCH)
        run.push(b, np.float32(2 * error.mean()))
        run.step(np.square(error).mean(), BATCH)
        run.wait()
    run.close()
    print(weight.round(3), bias.round(3))


if __name__ == "__main__":
    main()
