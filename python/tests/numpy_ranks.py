# SPDX-License-Identifier: Apache-2.0
"""What the processes of test_numpy.py do."""

import atexit
import contextlib
import ctypes
import faulthandler
import functools
import glob
import itertools
import json
import os
import signal
import sys
import threading
import time

import numpy as np
import processes

import capstan
from capstan import _library, process_hooks

SGD = {"type": "SGD", "params": {"lr": 0.1, "momentum": 0.9}}
BATCH = 12  # of all ranks together
SIZES = (5, 7, 3)


def data(steps):
    """Inputs (steps, BATCH, 5) and targets (steps, BATCH, 3)."""
    random = np.random.default_rng(1)
    x = random.standard_normal((steps, BATCH, SIZES[0]))
    return x.astype(np.float32), np.tanh(x[:, :, : SIZES[2]]).astype(
        np.float32
    )


def weights(seed):
    random = np.random.default_rng(seed)
    shapes = [(a, b) for a, b in zip(SIZES, SIZES[1:])]
    return [random.standard_normal(s).astype(np.float32) / 2 for s in shapes]


def gradients(w, x, y):
    """Loss and gradients of a network of two layers, mean squared error."""
    hidden = np.tanh(x @ w[0])
    error = hidden @ w[1] - y
    out = 2 * error / error.size
    back = out @ w[1].T * (1 - hidden**2)
    return float((error**2).mean()), [x.T @ back, hidden.T @ out]


def adam_change(state, gradient, step):
    """What Adam adds to a weight; STATE is changed."""
    state[0] += 0.1 * (gradient - state[0])
    state[1] += 0.001 * (gradient**2 - state[1])
    scale = np.sqrt(state[1] / (1 - 0.999**step)) + 1e-8
    return (-0.01 / (1 - 0.9**step) * state[0] / scale).astype(np.float32)


def changes(steps, strategy, bad=0):
    """Adam of this rank's own with staleness; a NaN at step BAD."""
    run = capstan.init(strategy=strategy, steps=steps)
    run.set_optimizer("None")
    w = weights(0)
    alone = weights(0)
    numbers = [run.declare(f"w{i}", a) for i, a in enumerate(w)]
    run.start()
    x, y = data(steps)
    states = [
        [[np.zeros_like(a), np.zeros_like(a)] for a in w] for _ in range(2)
    ]
    for step in range(steps):
        loss, found = gradients(w, x[step], y[step])
        for number, state, g in zip(numbers, states[0], found):
            change = adam_change(state, g, step + 1)
            if step + 1 == bad and number == 1:
                change[0, 0] = np.nan
            run.push(number, change)
        run.step(loss, BATCH)
        run.wait()
        _, found = gradients(alone, x[step], y[step])
        for a, state, g in zip(alone, states[1], found):
            a += adam_change(state, g, step + 1)
    away = sum(((a - b) ** 2).sum() for a, b in zip(w, alone))
    norm = sum((b**2).sum() for b in alone)
    print(json.dumps({"distance": float(np.sqrt(away / norm))}), flush=True)


def train(steps, sleep=0.0, at=-1, do=None, loop=0, **keys):
    """Trains; before step AT rank 1 calls DO(run, numbers)."""
    run = capstan.init(optimizer=SGD, **keys)
    w = weights(run.rank)
    numbers = [run.declare(f"w{i}", a) for i, a in enumerate(w)]
    run.start()
    first = [a.tolist() for a in w]
    print("started", flush=True)
    x, y = data(loop or steps)
    share = BATCH // run.size
    part = slice(run.rank * share, (run.rank + 1) * share)
    begin = run.position.step
    for step in run.steps(loop or steps):
        if step == at and run.rank == 1 and do:
            do(run, numbers)
        loss, grads = gradients(w, x[step, part], y[step, part])
        for number, gradient in zip(reversed(numbers), reversed(grads)):
            run.push(number, gradient.astype(np.float32))
        run.step(loss, share)
        run.wait()
        time.sleep(sleep)
    result = {
        "weights": [a.tolist() for a in w],
        "first": first,
        "begin": begin,
    }
    print(
        json.dumps({**result, "rank": run.rank, "size": run.size}), flush=True
    )


def rewound(steps, own=False, **keys):
    """Gradients depend on a generator; not with OWN: a loop that follows REWOUND
    itself, whose state is kept with the first push.
    Prints rank, weights and the generator's next number."""
    run = capstan.init(optimizer=SGD, **keys)
    w = weights(0)
    numbers = [run.declare(f"w{i}", a) for i, a in enumerate(w)]
    run.start()
    np.random.seed(run.rank)
    run.keep(rewinds=own)
    x, y = data(50)
    part = slice(run.rank * BATCH // 2, (run.rank + 1) * BATCH // 2)

    def step(number):
        noise = 0 if own else np.random.standard_normal(SIZES[0])
        batch = x[number % 50, part] + noise
        loss, found = gradients(w, batch, y[number % 50, part])
        for tensor, gradient in zip(numbers, found):
            run.push(tensor, gradient.astype(np.float32))
        outcome = run.step(loss, BATCH // 2)
        run.wait()
        time.sleep(0.002)
        return number + 1 if outcome != capstan.REWOUND else run.position.step

    if own:
        number = run.position.step
        while number < steps:
            number = step(number)
    else:
        for number in run.steps(steps):
            step(number)
    result = [run.rank, [a.tolist() for a in w], np.random.rand()]
    os.write(1, (json.dumps(result) + "\n").encode())


def planned(steps, loop, early=False, **keys):
    """The run has STEPS, the script's loop others; EARLY: the ranks say so."""
    real, capstan.init = capstan.init, lambda **keys: real(steps=steps, **keys)
    train(steps, loop=loop, **keys)
    if early:
        capstan.current().close(early=True)


def complete(checkpoint, first="push"):
    """A loop that does not ask where the run is, which begins with FIRST, and
    prints behind it."""
    run = capstan.init(optimizer=SGD, steps=6, checkpoint=checkpoint)
    table = run.table("rows", 2, {"type": "SGD", "params": {"lr": 0.1}})
    number = run.declare("w", np.zeros(3, np.float32))
    run.start()
    if first == "step" and run.position.step == 6:
        run.step()
        print("a step", flush=True)
    for _ in range(10):
        rows = table.lookup([1, 2])
        if first == "rows":
            table.push([1, 2], rows + 1)
            print("a step", flush=True)
        run.push(number, np.ones(3, np.float32))
        if first != "rows":
            print("a step", flush=True)
        run.step()
        run.wait()
    print("after the loop", flush=True)


def led(steps, **keys):
    """The chief only coordinates."""
    train(steps, **processes.led(100), **keys)


def led_rewound(steps, own=False):
    rewound(steps, own, **processes.led(100))


ROWS, DIM, BAG = 50, 3, 4
NO_ROWS = 20  # a step that looks none up; its errors are 1


def bags(steps):
    """Ids (steps, BATCH, BAG), some alike, and targets (steps, BATCH, DIM)."""
    random = np.random.default_rng(2)
    ids = random.integers(0, ROWS, (steps, BATCH, BAG))
    targets = random.standard_normal((steps, BATCH, DIM))
    return ids.astype(np.uint64) * 2**57, targets


def weighted_bags(ids):
    """IDS [bags, BAG] whose rows' mean is a BAG-th of their sum."""
    weights = np.full(ids.size, 2)
    offsets = np.arange(0, ids.size, BAG)
    return capstan.Bags(ids.reshape(-1), "mean", offsets, weights)


def embedded(
    steps, rule, init_range=0.5, ahead=None, staleness=0, bagged=False, clip=0
):
    """Sums of rows are to be the targets: mean squared error. AHEAD "after" or
    "before" the lookup of a step: rows of the next are asked for, once others
    than those that are read, and once those of the step after the next, which
    reads none. BAGGED: rows are combined. CLIP: the other tensor has no bytes."""
    keys = weighted_bags if bagged else lambda ids: ids

    def ask_ahead(step):
        next = {7: 7, NO_ROWS - 1: NO_ROWS + 1}.get(step, step + 1)
        if next < steps:
            table.prefetch(keys(ids[next, part]))

    run = capstan.init(
        optimizer=SGD, strategy={"staleness": staleness}, clip=clip
    )
    table = run.table("rows", DIM, rule, init_range=init_range)
    run.declare("other", np.zeros(1, np.float32))
    run.start()
    all_ids = np.arange(ROWS, dtype=np.uint64) * 2**57
    first = table.lookup(all_ids).tolist()
    ids, targets = bags(steps)
    share = BATCH // run.size
    part = slice(run.rank * share, (run.rank + 1) * share)
    for step in run.steps(steps):
        error = np.ones((share, DIM))
        before = ahead == "before" and step > 0
        if before:
            ask_ahead(step)
        if step != NO_ROWS:
            found = table.lookup(keys(ids[step, part]))
            found = BAG * found if bagged else found.sum(1)
            error = found - targets[step, part]
        if ahead and not before and step != NO_ROWS:
            ask_ahead(step)
        gradient = 2 * error / error.size
        if bagged:
            gradient = BAG * gradient
        else:
            gradient = np.repeat(gradient[:, None], BAG, axis=1)
        table.push(keys(ids[step, part]), gradient.astype(np.float32))
        if clip:
            run.push(0, contribution=capstan.ZERO)
        else:
            run.push(0, np.zeros(1, np.float32))
        run.step(float((error**2).mean()), share)
        run.wait()
    last = table.lookup(all_ids).tolist()
    print(json.dumps({"first": first, "last": last}), flush=True)


def first_rows():
    """Ids and rows that rank 0 writes before the start, two of them equal."""
    ids = np.arange(0, ROWS, 2)
    ids = np.append(ids, ids[3])
    rows = np.random.default_rng(3).standard_normal((len(ids), DIM))
    return ids, rows.astype(np.float32)


def step_rows(step, rank):
    """Ids and rows that RANK writes in STEP, and those whose gradients it
    pushes: multiples of 4, so that sums, means and updates are exact."""
    random = np.random.default_rng([step, rank])
    written = random.integers(0, ROWS, step % 3 * 4)
    pushed = random.integers(0, ROWS, step % 5 * 3)
    rows = random.integers(-9, 9, (len(written), DIM))
    gradients = random.integers(-9, 9, (len(pushed), DIM))
    return written, 4 * rows, pushed, 4 * gradients


def await_checkpoint(keys):
    """Waits until one is complete, if KEYS are those of some."""
    while keys and not glob.glob(f"{keys['dir']}/step-*/manifest.json"):
        time.sleep(0.01)


def written(
    steps, staleness=0, checkpoint=None, kill=None, idle=None, rewinds=False,
    pause=0, holds=None, **keys,
):
    """Rows that are written before the start and in steps: prints those of the
    start, then those at the end. KILL: [rank, step], which kills itself in it,
    -1 before it reads the first rows, unless it comes back; where there are to
    be checkpoints not before there is one. HOLDS: rank 0 waits in that step until there is a
    file "back". IDLE: a rank whose contributions are EMPTY, and which writes
    none."""
    run = capstan.init(
        optimizer=SGD, strategy={"staleness": staleness}, checkpoint=checkpoint,
        **keys,
    )
    rule = {"type": "SGD", "params": {"lr": 0.5}}
    table = run.table("rows", DIM, rule, admit=2)
    other = run.table("other", 1, rule, init_range=1)
    run.declare("dense", np.zeros(1, np.float32))
    table.write(*(first_rows() if run.rank == 0 else ([], [])))
    if kill == [run.rank, -1]:
        os.kill(os.getpid(), signal.SIGKILL)
    run.start()
    if rewinds:
        run.keep()
    all_ids = np.arange(ROWS)
    print(json.dumps(table.lookup(all_ids).tolist()), flush=True)
    for step in run.steps(steps):
        ids, rows, pushed, gradients = step_rows(step, run.rank)
        if run.rank == idle:
            run.push(0, contribution=capstan.EMPTY)
        else:
            table.write(ids, rows)
            last = {int(id): row for id, row in zip(ids, rows.tolist())}
            found = table.lookup(list(last)).tolist()
            assert rewinds or found == list(last.values()), (found, last)
            if len(pushed):
                table.push(pushed, gradients)
            run.push(0, np.zeros(1, np.float32))
        if kill == [run.rank, step]:
            await_checkpoint(checkpoint)
            os.kill(os.getpid(), signal.SIGKILL)
        if run.rank == 0 and step == holds:
            await_path("back")
        run.step()
        run.wait()
        time.sleep(pause)
    found = json.dumps(table.ids(ROWS).tolist())
    os.write(1, (found + "\n").encode())
    result = json.dumps(table.lookup(all_ids).tolist())
    other.lookup([1])
    os.write(1, (result + "\n").encode())


def written_at_overflow(folder, resumed=False):
    """Step 5, of which a delta is, overflows and writes rows; RESUMED: prints
    them."""
    checkpoint = {"dir": folder, "every_steps": 4, "delta_every_steps": 1}
    timeouts = {"peer": 2, "chief": 1}  # its death is to end the run
    run = capstan.init(
        optimizer=SGD, checkpoint=checkpoint, timeouts=timeouts
    )
    rule = {"type": "SGD", "params": {"lr": 0.5}}
    table = run.table("rows", DIM, rule)
    run.declare("dense", np.zeros(1, np.float32))
    run.start()
    if resumed:
        print(json.dumps([run.position.step, table.lookup([7, 8]).tolist()]))
        run.close(early=True)
        return
    for step in range(5):
        if step < 4:
            table.push([7], np.ones((1, DIM), np.float32))
        else:
            table.write([7, 8], np.full((2, DIM), 42, np.float32))
        void = capstan.VOID if step == 4 else capstan.ZERO
        run.push(0, contribution=void)
        run.step()
        run.wait()
        written = f"{folder}/step-{step + 1:09d}/manifest.json"
        while not os.path.exists(written):
            time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGKILL)


def written_with_init(weights, **keys):
    """Rows to begin with, in a run that begins with WEIGHTS."""
    run = capstan.init(optimizer=SGD, init=weights, **keys)
    rule = {"type": "SGD", "params": {"lr": 0.5}}
    table = run.table("rows", DIM, rule)
    run.declare("dense", np.zeros(1, np.float32))
    table.write([7], np.ones((1, DIM), np.float32))
    run.start()


def momentum_of_one():
    """Rank 1 alone has a momentum."""
    run = capstan.init(strategy={"staleness": 4})
    run.set_optimizer("SGD")
    run.set_group(0, "momentum", 0.9 * run.rank)
    run.declare("dense", np.zeros(1, np.float32))
    run.start()


def momentum_of_tables():
    """A table follows the first group, which gets a momentum in mid-run."""
    run = capstan.init()
    run.set_optimizer("SGD")
    run.set_group(1, "momentum", 0.9)
    run.table("rows", DIM, None)
    run.declare("dense", np.zeros(1, np.float32), group=1)
    run.start()
    run.set_group(0, "momentum", 0.9)


def listed_twice():
    """A listing that was left in the middle; prints what the next gives."""
    run = capstan.init(optimizer=SGD)
    table = run.table("rows", 1, {"type": "SGD", "params": {"lr": 0.5}})
    run.declare("dense", np.zeros(1, np.float32))
    count = 100_000
    table.write(np.arange(count), np.ones((count, 1), np.float32))
    run.start()
    first, found = np.empty(count, np.uint64), ctypes.c_size_t()
    again = _library.capstan.capstan_ids(
        *(run._handle, table.number, first.ctypes.data, count),
        *(ctypes.byref(found), 0.0),
    )
    run.push(0, np.zeros(1, np.float32))
    run.step()
    run.wait()
    ids = np.sort(table.ids(count))
    print(json.dumps([again, bool((ids == np.arange(count)).all())]))


def written_wrongly(wrong):
    """Rank 1 alone does it WRONG, before the start or after it."""
    run = capstan.init(optimizer=SGD)
    table = run.table("rows", DIM, {"type": "SGD", "params": {"lr": 0.1}})
    run.declare("other", np.zeros(1, np.float32))
    if run.rank and wrong == "others":
        table.write([1], np.zeros((1, DIM)))
    run.start()
    if run.rank and wrong == "ahead":
        table.lookup([1])
        table.prefetch([2])
    if run.rank and wrong == "bags":
        table.write(capstan.Bags([[1]]), np.zeros((1, DIM)))
    table.write([1, 2], np.zeros((1 if run.rank and wrong == "shape" else 2, DIM)))
    run.push(0, np.zeros(1, np.float32))
    run.step()
    run.wait()
    if wrong == "many":
        table.ids(1)


def asked_twice():
    """A lookup between the prefetch for the next step and the step's end."""
    run = capstan.init(optimizer=SGD)
    table = run.table("rows", DIM, {"type": "SGD", "params": {"lr": 0.1}})
    run.declare("other", np.zeros(1, np.float32))
    run.start()
    table.lookup([1, 2])
    table.prefetch([3])
    table.lookup([3])


def tampered_bags():
    """Offsets that only the library can find."""
    run = capstan.init(optimizer=SGD)
    table = run.table("rows", DIM, {"type": "SGD", "params": {"lr": 0.1}})
    run.declare("other", np.zeros(1, np.float32))
    run.start()
    bags = capstan.Bags([1, 2, 3], offsets=[0, 1])
    bags.offsets[2] = 9
    table.lookup(bags)


def boom(run, numbers):
    raise ValueError("boom at step 5")


def lose(run, numbers):
    """As a collective without a rank that was lost; a framework wraps it."""
    try:
        raise capstan.PeerLost("rank 7 was lost", "PEER_LOST", 138)
    except capstan.PeerLost as error:
        raise RuntimeError("in a callback") from error


def circle(run, numbers):
    error = ValueError("a circle")
    raise error from error


def boom_after_sigterm(run, numbers):
    """As a DataLoader does for its workers, which the signal ends too."""
    os.kill(os.getpid(), signal.SIGTERM)
    boom(run, numbers)


def boom_within_a_step(run, numbers):
    run.push(numbers[0], contribution=capstan.ZERO)
    boom_after_sigterm(run, numbers)


def infinite(run, numbers):
    run.push(numbers[1], np.full(run._values[numbers[1]][0].shape, np.inf, "f"))
    run.push(numbers[0], contribution=capstan.ZERO)
    run.step()


def second_init(run, numbers):
    capstan.init()


def registered():
    """The end is an error, and what is registered before and after it."""
    atexit.register(print, "early", flush=True)
    capstan.init()
    atexit.register(print, "late", flush=True)


def dtype(run, numbers):
    run.push(numbers[0], np.zeros((5, 7)))


def shape(run, numbers):
    run.push(numbers[0], np.zeros((7, 5), np.float32))


def strides(run, numbers):
    run.push(numbers[0], np.zeros((7, 5), np.float32).T)


def twice(run, numbers):
    run.push(numbers[0], contribution=capstan.ZERO)
    run.push(numbers[0], contribution=capstan.ZERO)


def never(run, numbers):
    run.push(numbers[0], contribution=capstan.ZERO)
    run.step(1.0, 1)


def waits_within(run, numbers):
    run.push(numbers[0], contribution=capstan.ZERO)
    run.wait(numbers[1])  # of the step before
    run.wait()


def ends_within(run, numbers):
    run.push(numbers[0], contribution=capstan.ZERO)
    run.close()


def ends_early_within(run, numbers):
    run.push(numbers[0], contribution=capstan.ZERO)
    run.close(early=True)


def nan(run, numbers):
    for number in numbers:
        run.push(number, contribution=capstan.ZERO)
    run.step(float("nan"), 1)


def kill(run, numbers):
    os.kill(os.getpid(), signal.SIGKILL)


def early(run, numbers):
    run.close(early=True)
    raise SystemExit(0)


def done(run, numbers):
    run.close()


def ahead(early=False, **keys):
    """Rank 1 ends after 5 steps; prints the steps of rank 0 that were complete,
    and the code of the error with which it ended."""
    run = capstan.init(optimizer=SGD, **keys)
    w = np.zeros(3, np.float32)
    number, done = run.declare("w", w), 0
    run.start()
    try:
        for step in run.steps(5 if run.rank else 12):
            run.push(number, np.ones(3, np.float32))
            run.step()
            run.wait()
            done += 1
        run.close(early=early)
        print(json.dumps({"done": done}), flush=True)
    except capstan.Error as error:
        print(json.dumps({"done": done, "code": error.code}), flush=True)
        raise


def fork(run, numbers):
    child = os.fork()
    if not child:
        try:
            run.push(numbers[0], contribution=capstan.ZERO)
        except capstan.ConfigError as error:
            os._exit(7 if "parent" in str(error) else 8)
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 7:
        raise RuntimeError("the child used the run")


def trouble(kind, within=False, **keys):
    """Trains 20 steps; rank 1 does what KIND names before step 5. WITHIN: the
    run stands in a `with`."""
    with contextlib.ExitStack() as stack:
        if within:
            init = capstan.init
            capstan.init = lambda **keys: stack.enter_context(init(**keys))
        train(20, at=5, do=globals()[kind], **keys)


def await_path(path, seconds=processes.DEADLINE):
    """Waits until there is a file of that PATH, and no longer than SECONDS."""
    end = time.monotonic() + seconds
    while not os.path.exists(path) and time.monotonic() < end:
        time.sleep(0.01)


def waiting():
    """Rank 0 waits for rank 1 while another thread of it counts, and rank 1
    until that has counted."""
    run = capstan.init()
    w = np.zeros(3, np.float32)
    number = run.declare("w", w)
    run.start()
    waits, count = threading.Event(), [0]

    def tick():
        waits.wait()
        while count[0] < 50:
            count[0] += 1
            time.sleep(0.001)
        open("counted", "w").close()

    if run.rank == 0:
        threading.Thread(target=tick, daemon=True).start()
    else:
        await_path("counted", 30)
    run.push(number, np.ones(3, np.float32))
    run.step(1.0, 1)
    waits.set()
    run.wait()
    print(json.dumps({"count": count[0], "rank": run.rank}))


def memory(steps):
    """Python's objects before and after many steps."""
    run = capstan.init()
    w = np.zeros(3, np.float32)
    number = run.declare("w", w)
    run.start()
    gradient = np.ones(3, np.float32)
    for step in run.steps(steps):
        if step == steps // 2:
            before = sys.getallocatedblocks()
        run.push(number, gradient)
        run.step(1.0, 1)
        run.wait()
    print(json.dumps({"grown": sys.getallocatedblocks() - before}))


def other_model():
    run = capstan.init()
    run.declare("a", np.zeros(3, np.float32))
    run.declare("b", np.zeros(4 + run.rank, np.float32))
    run.start()


def declared_twice():
    run = capstan.init()
    run.declare("a", np.zeros(3, np.float32))
    run.declare("a", np.zeros(3, np.float32))
    run.start()


def after_end():
    train(3)
    run = capstan.current()
    run.close()
    run.push(0, contribution=capstan.ZERO)


def thread_after_end():
    """A thread goes on after the script's end; prints its error."""
    train(3)
    run = capstan.current()

    def go_on():
        while not run.is_closed:
            time.sleep(0.01)
        try:
            run.push(0, contribution=capstan.ZERO)
        except capstan.ConfigError as error:
            print(json.dumps(str(error)))

    threading.Thread(target=go_on).start()


def run_after_run(**keys):
    train(3, **keys)
    capstan.current().close()
    train(3, **keys)


def environment():
    run = capstan.init()
    found = [name for name in os.environ if name == "TF_CONFIG"]
    run.declare("a", np.zeros(3, np.float32))
    run.start()
    print(json.dumps({"left": found, "ranks": [run.rank, run.size]}))


def missed(variable, keep=False):
    """Reads a launcher's variable after init(), which has it as an integer."""
    os.environ[variable] = "3"
    run = capstan.init(keep_env=keep)
    print(int(os.environ[variable]), flush=True)
    run.declare("a", np.zeros(3, np.float32))
    run.start()


def caught():
    """The run ends with its exception, which the script handles."""
    try:
        train(20, at=5, do=boom)
    except capstan.Failed as error:
        print(json.dumps({"code": error.code, "status": error.status}))
        capstan.current().close()


def stopped(plain):
    """Ctrl-C, which the script handles; PLAIN: a loop that goes on."""
    run = capstan.init(optimizer=SGD)
    number = run.declare("w", np.zeros(3, np.float32))
    run.start()
    try:
        print("started", flush=True)
        for _ in itertools.count() if plain else run.steps(10**9):
            run.push(number, np.ones(3, np.float32))
            run.step()
            run.wait()
            time.sleep(0.01)
        print("after the loop", flush=True)
    except KeyboardInterrupt as error:
        assert isinstance(error, capstan.Interrupted)
        print(json.dumps({"status": error.status}), flush=True)


def reported():
    """Prints the report after a step."""
    with capstan.init() as run:
        number = run.declare("a", np.zeros(3, np.float32))
        run.start()
        for _ in run.steps(2):
            run.push(number, np.ones(3, np.float32))
            run.step()
            run.wait()
            if run.position.step == 1:
                time.sleep(1)  # what it tells is up to 0.1 s old
                print(run.report(), end="", flush=True)
    print(f"over: {run.report()!r}")


def one_step(do=lambda: None):
    with capstan.init() as run:
        run.declare("a", np.zeros(3, np.float32))
        run.start()
        do()
        run.push(0, np.ones(3, np.float32))
        run.step()
        run.wait()


def handled():
    """Who handles SIGQUIT in a run and after it."""
    quit_by = functools.partial(process_hooks._handler_of, signal.SIGQUIT)
    faulthandler.register(signal.SIGQUIT)
    theirs = quit_by()
    one_step(lambda: print("faulthandler's" if quit_by() == theirs else "?"))
    faulthandler.unregister(signal.SIGQUIT)
    one_step(lambda: faulthandler.register(signal.SIGQUIT))
    print("later" if quit_by() == theirs else "?")
    faulthandler.unregister(signal.SIGQUIT)
    signal.signal(signal.SIGQUIT, print)
    one_step(lambda: print("script's" * (signal.getsignal(3) is print)))
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)
    found = []
    one_step(lambda: found.append(quit_by()))
    print("default" if found[0] and not quit_by() else "?")


def within():
    with capstan.init() as run:
        run.declare("a", np.zeros(3, np.float32))
        run.start()
        if run.rank == 1:
            sys.exit(3)
        run.push(0, np.zeros(3, np.float32))
        run.step()
        run.wait()


NUMBERS = ("float16", "float32", "float64", "int8", "int16", "int32", "int64")
REDUCTIONS = ("sum", "mean", "min", "max", "product")


def numbers(dtype, rank, count=700001):
    """More than a part of what travels at once."""
    found = np.random.default_rng(rank).standard_normal(count) * 9
    found[:2] = np.nan if rank == 1 and dtype.startswith("float") else 2
    with np.errstate(invalid="ignore"):
        return found.astype(dtype)


def collectives(strategy, late=0):
    """Before the model is declared, and between steps."""
    run = capstan.init(strategy=strategy, steps=3)
    time.sleep(late * run.rank)
    run.barrier()
    gathered = run.all_gather(np.array([[run.rank, 7]], np.int16))
    objects = run.all_gather_object({"rank": run.rank, "text": "x" * run.rank})
    sent = run.broadcast_object("from 1" if run.rank == 1 else None, root=1)
    same = [
        np.array_equal(
            run.all_reduce(numbers(dtype, run.rank), op),
            reduced(dtype, op, run.size),
            equal_nan=dtype.startswith("float"),
        )
        for dtype in NUMBERS
        for op in REDUCTIONS
        if op != "mean" or dtype.startswith("float")
    ]
    w = np.zeros(2, np.float32)
    run.declare("w", w)
    run.start()
    while not run.ended:
        run.push(0, np.ones(2, np.float32))
        run.step()
        run.wait()
        total = run.all_reduce(np.float64(run.rank + 0.5))
    empty = run.all_reduce(np.zeros(0)).size
    run.close()
    print(json.dumps([gathered.tolist(), objects, sent, total.item(), empty]))
    print(json.dumps([len(same), all(same)]))


def reduced(dtype, op, size):
    """By NumPy, in the order of ranks."""
    wide = np.float32 if dtype == "float16" else np.dtype(dtype)
    parts = [numbers(dtype, rank).astype(wide) for rank in range(size)]
    by = {"min": np.minimum, "max": np.maximum, "product": np.multiply}
    with np.errstate(invalid="ignore", over="ignore"):
        found = functools.reduce(by.get(op, np.add), parts)
        if op == "mean":
            found = found / wide(size) if dtype == "float16" else found / size
        return found.astype(dtype)


def sockets():
    """How many sockets of TCP this process has: one listens no more once two
    ranks are connected."""
    own = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            own.add(os.readlink(f"/proc/self/fd/{name}"))
        except FileNotFoundError:
            pass  # of the listing itself
    rows = [
        line.split()
        for family in ("tcp", "tcp6")
        for line in open(f"/proc/self/net/{family}").readlines()[1:]
    ]
    return sum(f"socket:[{row[9]}]" in own for row in rows)


def ports():
    """Prints the sockets of this process in training, and after a collective."""
    run = capstan.init(steps=3)
    found = []
    w = np.zeros(2, np.float32)
    run.declare("w", w)
    run.start()
    for _ in run.steps(3):
        run.push(0, np.ones(2, np.float32))
        run.step()
        run.wait()
        found.append(sockets())
    run.barrier()
    found.append(sockets())
    run.close()
    print(json.dumps(found))


def late(first):
    """Rank 2 does not come to the collective that follows FIRST, if any, and
    rank 1 comes later than rank 0."""
    run = capstan.init(timeouts={"step": 4, "peer": 30})
    if first:
        run.barrier()
    try:
        if run.rank == 2:
            signal.pause()
        if run.rank == 1:
            await_path("called")
            time.sleep(0.5)
        open("called", "w").close()
        run.all_reduce(np.zeros(3))
    except capstan.Error as error:
        print(json.dumps([type(error).__name__, error.code, str(error)]))
        sys.stdout.flush()
    os._exit(0)


def stays_away():
    """Rank 1 never comes to the first collective."""
    run = capstan.init(timeouts={"step": 600})
    print("calls", flush=True)
    if run.rank == 1:
        signal.pause()
    run.barrier()


def rejoins(again=False, early=False):
    """Calls a collective after each step, and EARLY before the start. Rank 2
    kills itself and is started AGAIN; prints the first error, and what five
    calls after the last gave."""
    run = capstan.init(timeouts={"step": 12, "peer": 5})
    if early:
        run.barrier()
    w = np.zeros(2, np.float32)
    run.declare("w", w)
    run.start()
    lost, sums = [], []
    while len(sums) < 5:
        run.push(0, np.ones(2, np.float32))
        run.step()
        run.wait()
        if run.rank == 2 and not again and sums:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            sum = run.all_reduce(np.array(run.rank + 1.0)).item()
        except capstan.Error as error:
            if not lost:
                lost = [type(error).__name__, str(error)]
                print("lost", flush=True)
            sums.clear()
            time.sleep(0.02)
            continue
        if again or lost or run.rank == 2:
            sums.append(sum)
    run.close()
    print(json.dumps([lost, sums]))


def gathers():
    """Calls a collective after each step until the file `done` is there, and
    prints what it gave."""
    run = capstan.init(timeouts={"step": 600, "peer": 3}, **processes.led(100))
    w = np.zeros(2, np.float32)
    run.declare("w", w)
    run.start()
    sum = 0
    while sum < 100:
        run.push(0, np.ones(2, np.float32))
        run.step()
        run.wait()
        own = run.rank + 1 + (100 if os.path.exists("done") else 0)
        try:
            sum = run.all_reduce(np.array(float(own))).item()
            print("sum", sum, flush=True)
        except capstan.Error:
            time.sleep(0.02)
    run.close()


def gathers_late():
    """Calls a collective once the file `done` is there, which rank 0 tells the
    others by the weights."""
    run = capstan.init(optimizer=SGD, **processes.led(100))
    w = np.zeros(2, np.float32)
    run.declare("w", w)
    run.start()
    while not w.any():
        done = run.rank == 0 and os.path.exists("done")
        run.push(0, np.full(2, done, np.float32))
        run.step()
        run.wait()
        time.sleep(0.002)
    print("calls", flush=True)
    print(run.all_reduce(np.array(run.rank + 1.0)).item())
    run.close()


def differ(kind):
    """Ranks that do not call the same."""
    run = capstan.init(timeouts={"step": 2, "peer": 2})
    run.barrier()
    open(f"met{run.rank}", "w").close()
    try:
        if kind == "other":
            if run.rank:
                run.all_reduce(np.zeros(2), "max")
            else:
                run.barrier()
        if run.rank and kind == "killed":
            await_path("met0")  # its barrier may end after this rank's
            os.kill(os.getpid(), signal.SIGKILL)
        if run.rank and kind == "absent":
            signal.pause()
        run.all_gather(np.zeros(3))
    except capstan.Error as error:
        print(json.dumps([type(error).__name__, error.code, str(error)]))
        sys.stdout.flush()
    os._exit(0)


class Bytes:
    """What a script keeps: COUNT bytes."""

    def __init__(self, count):
        self.count = count

    def state_dict(self):
        return bytes(self.count)

    def load_state_dict(self, state):
        self.count = len(state)


def pushes(optimizer, floats, kept=0):
    """Steps of one tensor, by OPTIMIZER; each rank keeps KEPT bytes."""
    run = capstan.init()
    values = np.zeros(floats, np.float32)
    tensor = run.declare("w", values)
    run.set_optimizer(optimizer)
    run.start()
    if kept:
        run.keep(Bytes(kept))
    while not run.ended:
        run.push(tensor, np.ones(floats, np.float32))
        run.step()
        run.wait()


if __name__ == "__main__":
    processes.main(globals())
