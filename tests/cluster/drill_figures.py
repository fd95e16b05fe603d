#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the deaths of a drill cost: rows as in the table of docs/failures.md, and a
figure by gnuplot.

Usage: drill_figures.py CAPSTAN FOLDER STEPS SECONDS > rows
       drill_figures.py CAPSTAN FOLDER shards > rows
       drill_figures.py CAPSTAN FOLDER goodput MINUTES SECONDS LEAST

Runs STEPS steps without a drill, with one of ps, of the chief and of workers, a kill
about each SECONDS, then with copies in memory without a drill and with one of ps, and
writes FOLDER/failures.svg. Two ps, two workers, a chief that
coordinates, a perceptron of 784, 512, 512 and 10 units, batch 256, synchronous, a
checkpoint each 2 s.

With the word shards: how soon a run goes on after a ps's death, over the size of a
shard. Two ps, a worker, batch 8, from checkpoints and from copies in memory.

With the word goodput: the same job for about MINUTES, a process drawn evenly killed
about each SECONDS, between two short runs without kills. Ends with 1 if less than LEAST
% of the samples that its rate between kills gives in its time are in the weights: the
rate of other runs is another one on a machine that has other work.
"""
import json
import re
import shutil
import statistics
import subprocess
import sys
from datetime import datetime
from pathlib import Path

DATA = "/usr/share/datasets/fashion-mnist"
JOB = {
    "model": {"type": "mlp", "layers": [784, 512, 512, 10], "activation": "relu"},
    "data": {
        "format": "idx",
        "train": ["train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"],
        "dir": DATA,
    },
    "seed": 1,
    "train_batch_size": 256,
    "steps_per_print": 10,
    "optimizer": {"type": "SGD", "params": {"lr": 0.05}},
    "checkpoint": {"every_seconds": 2, "keep": 2},
}
BIN = 0.5  # seconds
UNDISTURBED_STEPS = 3000
RECOVERED = 5  # seconds after a kill its traces are gone
SHARDS = [  # units of both hidden layers, steps, steps between copies, seconds
    (7000, 260, 20, "12"),
    (12000, 220, 10, "12"),
    (22000, 80, 5, "25"),
]
LINE = re.compile(r"^(\S+ \S+) (\S+?): (.*)$")


def run(capstan, folder, name, steps, flags):
    """The summary, and the log as (seconds, text)."""
    folder = Path(folder, name)
    folder.mkdir(parents=True)
    job = {**JOB, "steps": steps}
    job["checkpoint"] = {**JOB["checkpoint"], "dir": str(folder / "checkpoint")}
    (folder / "job.json").write_text(json.dumps(job))
    if "--workers" not in flags:
        flags = ["--workers", "2", *flags]
    command = [capstan, "local", "--ps", "2", *flags, "--json"]
    done = subprocess.run(
        [*command, str(folder / "job.json")], capture_output=True, text=True
    )
    (folder / "log").write_text(done.stderr)
    if done.returncode:
        sys.exit(f"{name} ended with {done.returncode}: {folder}/log")
    log = []
    for line in done.stderr.splitlines():
        found = LINE.match(line)
        if found:
            log.append((datetime.fromisoformat(found[1]).timestamp(), found[3]))
    return json.loads(done.stdout), log


def points_of(log):
    """(seconds, step) of each line that tells a step."""
    found = [(at, re.match(r"step (\d+)/", text)) for at, text in log]
    return [(at, int(step[1])) for at, step in found if step]


def returns_of(log):
    """Of each kill: seconds to the first step after it, and to the return."""
    found = []
    points = points_of(log)
    for at, text in log:
        killed = re.match(r"warning: drill: kills (\S+ \d+|chief) ", text)
        if not killed:
            continue
        chief = killed[1] == "chief"
        there = "listening on" if chief else f"{killed[1]} joined from "
        back = next(
            (b for b, t in log if b > at and t.startswith(there)),
            None,
        )
        again = next(
            (b for b, t in log if b > at and t.startswith("the run goes on after step")),
            None,
        )
        begin = again if chief or killed[1].startswith("ps") else at
        first = next((p for p, _ in points if begin and p > begin), None)
        if back and first:
            found.append((first - at, back - at))
    return found


def rates_of(log):
    """(seconds since the first step, steps a second) of each BIN."""
    points = points_of(log)
    begin, bins = points[0][0], {}
    for (_, before), (at, step) in zip(points, points[1:]):
        place = int((at - begin) / BIN)
        bins[place] = bins.get(place, 0) + max(0, step - before)
    last = int((points[-1][0] - begin) / BIN)
    return [(i * BIN, bins.get(i, 0) / BIN) for i in range(last)]


def row(name, summary, log, rate):
    kills = sum("drill: kills" in text for _, text in log)
    points = points_of(log)
    wall = points[-1][0] - points[0][0]
    steps = points[-1][1] - points[0][1]
    lost = summary["untrained_samples"] / JOB["train_batch_size"]
    found = returns_of(log)
    columns = [name, f"{kills}", f"{wall:.1f} s"]
    if found:
        first = [f for f, _ in found]
        columns += [
            f"{statistics.median(first):.2f} s, {max(first):.2f} s",
            f"{statistics.median(b for _, b in found):.2f} s",
        ]
    else:
        columns += ["", ""]
    columns += [
        f"{summary['steps_again']}",
        f"{summary['untrained_samples']}",
        f"{100 * (steps - lost) / (rate * wall):.1f} %",
    ]
    print("| " + " | ".join(columns) + " |")


def draw(folder, curves):
    """failures.svg: a curve below the other."""
    script = ["set terminal svg size 960,480", f"set output '{folder}/failures.svg'"]
    script += [f"set multiplot layout {len(curves)},1", "set yrange [0:*]"]
    script += ["set ylabel 'steps/s'", "set key top right"]
    for name, rates in curves.items():
        path = Path(folder, f"{name.replace(' ', '-')}.txt")
        path.write_text("".join(f"{at} {rate}\n" for at, rate in rates))
        if name == list(curves)[-1]:
            script.append("set xlabel 'seconds'")
        script.append(f"plot '{path}' using 1:2 with steps title '{name}'")
    subprocess.run(["gnuplot"], input="\n".join(script), text=True, check=True)


def shard(capstan, folder, units, steps, every, seconds, copies):
    """The row of a run in which ps are killed."""
    sizes = [784, units, units, 10]
    JOB["model"]["layers"] = sizes
    JOB.update(train_batch_size=8, steps_per_print=1)
    JOB["optimizer"]["params"]["lr"] = 0.001
    when = {"every_seconds": 600} if copies else {"every_steps": every}
    JOB["checkpoint"] = {**when, "keep": 2}
    flags = ["--workers", "1", "--kill-every", seconds, "--kill", "ps"]
    if copies:
        flags += ["--set", "strategy.replicas=1"]
        flags += ["--set", f"strategy.buddy_steps={every}"]
    name = f"{units}-{'copies' if copies else 'checkpoints'}"
    _, log = run(capstan, folder, name, steps, flags)
    shutil.rmtree(Path(folder, name, "checkpoint"))
    points, goes_on, first = points_of(log), [], []
    for at, text in log:
        if not text.startswith("warning: drill: kills ps"):
            continue
        again = (b for b, t in log if b > at and t.startswith("the run goes on"))
        back = next(again, None)
        step = next((p for p, _ in points if back and p > back), None)
        if step:
            goes_on.append(back - at)
            first.append(step - at)
    one = statistics.median(b - a for (a, _), (b, _) in zip(points, points[1:]))
    megabytes = sum(a * b for a, b in zip(sizes, sizes[1:])) * 4 / 2e6
    print(
        f"| {megabytes:.0f} MB | {'copies' if copies else 'checkpoints'} | {one:.2f} s "
        f"| {len(first)} | {statistics.median(goes_on):.2f} s, {max(goes_on):.2f} s "
        f"| {statistics.median(first):.2f} s, {max(first):.2f} s |",
        flush=True,
    )


def rate_of(log):
    """Steps a second from the first told step to the last."""
    points = points_of(log)
    return (points[-1][1] - points[0][1]) / (points[-1][0] - points[0][0])


def rate_between_kills(log):
    """Steps a second of the bins that no kill is near."""
    points = points_of(log)
    begin = points[0][0]
    kills = [at - begin for at, text in log if "drill: kills" in text]
    return statistics.mean(
        rate
        for at, rate in rates_of(log)
        if all(at + BIN < kill or at > kill + RECOVERED for kill in kills)
    )


def goodput(capstan, folder, minutes, seconds, least):
    def undisturbed(name):
        return rate_of(run(capstan, folder, name, UNDISTURBED_STEPS, [])[1])

    rates = [undisturbed("before")]
    steps = int(rates[0] * float(minutes) * 60)
    flags = ["--kill-every", seconds, "--kill", "any"]
    summary, log = run(capstan, folder, "drill", steps, flags)
    rates.append(undisturbed("after"))
    kills = sum("drill: kills" in text for _, text in log)
    batch, rate = JOB["train_batch_size"], rate_between_kills(log)
    counted = 1 - summary["untrained_samples"] / batch / steps
    share = 100 * counted * rate_of(log) / rate
    print(
        f"{steps} steps with {kills} kills, {summary['steps_again']} computed again, "
        f"{summary['untrained_samples']} of {steps * batch} samples not trained: "
        f"{rate_of(log):.1f} steps/s, and {rate:.1f} between kills ({rates[0]:.1f} in "
        f"a run without kills before, {rates[1]:.1f} in one after): {share:.1f} % of "
        "the samples that the rate between kills gives count"
    )
    if not kills or share < float(least):
        sys.exit(f"{kills} kills, {share:.1f} %, of at least {least}: see {folder}")


def main(capstan, folder, steps, *more):
    seconds = more[0] if more else ""
    if steps == "goodput":
        goodput(capstan, folder, *more)
        return
    if steps == "shards":
        for row_of in SHARDS:
            for copies in [False, True] if row_of[0] < 20000 else [False]:
                shard(capstan, folder, *row_of, copies)
        return
    cases = {"no kill": []}
    for role in "ps", "chief", "worker":
        cases[f"a {role}"] = ["--kill-every", seconds, "--kill", role]
    copies = ["--set", "strategy.replicas=1"]
    cases["no kill, copies"] = copies
    cases["a ps, copies"] = [*copies, *cases["a ps"]]
    curves, rate = {}, None
    for name, flags in cases.items():
        place = re.sub(r"\W+", "-", name)
        summary, log = run(capstan, folder, place, int(steps), flags)
        points = points_of(log)
        if rate is None:
            rate = rate_of(log)
        row(name, summary, log, rate)
        curves[name] = rates_of(log)
    draw(folder, curves)


if __name__ == "__main__":
    main(*sys.argv[1:])
