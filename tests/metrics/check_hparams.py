# SPDX-License-Identifier: Apache-2.0
"""`capstan compare --tensorboard` against TensorBoard itself, for `make check-metrics`.

check_hparams.py BUILD, with TensorBoard from PyPI: its server reads what a comparison has
written, and its tab HParams gets each case, with the figures of the comparison's own JSON.
"""
import json
import math
import os
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

BUILD = os.path.abspath(sys.argv[1])
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
POINTS = os.path.join(ROOT, "deploy", "kubernetes", "common")
JOB = {
    "model": {"type": "mlp", "layers": [4, 16, 3], "activation": "relu"},
    "data": {"format": "csv", "train": "points.csv", "test": "points.csv",
             "header": True, "dir": POINTS},
    "optimizer": {"type": "Adam", "params": {"lr": 0.02}}, "epochs": 1,
    "train_micro_batch_size_per_gpu": 10,
}
LIMIT = 120  # seconds until TensorBoard has read the files


def ask(port, route, **request):
    message = urllib.request.Request(
        f"http://127.0.0.1:{port}/data/plugin/hparams/{route}",
        json.dumps({"experimentName": "", **request}).encode(),
        {"Content-Type": "application/json"})
    with urllib.request.urlopen(message, timeout=30) as answer:
        return json.load(answer)


def sessions(port):
    """What the tab shows: {run: its only session's group}."""
    groups = ask(port, "session_groups", startIndex=0, sliceSize=100, colParams=[],
                 allowedStatuses=["STATUS_UNKNOWN", "STATUS_SUCCESS", "STATUS_FAILURE",
                                  "STATUS_RUNNING"])["sessionGroups"]
    return {group["name"]: group for group in groups}


def wait_for_sessions(port, count):
    end = time.monotonic() + LIMIT
    while time.monotonic() < end:
        try:
            found = sessions(port)
            if len(found) == count:
                return found
        except (OSError, urllib.error.URLError):
            pass
        time.sleep(0.5)
    sys.exit(f"check_hparams: TensorBoard has no {count} sessions after {LIMIT} s")


def compare(folder):
    with open(os.path.join(folder, "job.json"), "w", encoding="utf-8") as file:
        json.dump(JOB, file)
    done = subprocess.run(
        [os.path.join(BUILD, "capstan"), "compare", "--json", "--steps", "50",
         "--repeats", "1", "--ps", "1,2", "--tensorboard", "board", "job.json"],
        cwd=folder, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout)


def same(name, shown, told):
    """A figure is a float32 in an event file."""
    assert math.isclose(shown, told, rel_tol=1e-6), (name, shown, told)


def check_case(case, group):
    told = group["hparams"]
    expected = {"job": "job.json", "mode": case["mode"], "workers": case["workers"],
                "ps": case["ps"],
                "batch": 10 if case["mode"] == "ps-async" else 10 * case["replicas"]}
    assert told == expected, (told, expected)
    assert [one["status"] for one in group["sessions"]] == ["STATUS_SUCCESS"]
    shown = {one["name"]["tag"]: one["value"] for one in group["metricValues"]}
    same("rate", shown["examples_per_second_mean"], case["examples_per_second"]["mean"])
    for key in ("train_loss", "test_accuracy", "bound_examples_per_second"):
        same(key, shown[key], case[key])
    same("compute", shown["compute_s"], case["seconds_per_step"]["compute"])


def main():
    with tempfile.TemporaryDirectory(prefix="check-hparams-") as folder:
        result = compare(folder)
        board = subprocess.Popen(
            [sys.executable, "-m", "tensorboard.main", "--logdir", "board",
             "--load_fast=false", "--host=127.0.0.1", "--port=0"],
            cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        try:
            line = next(line for line in board.stderr if "http://127.0.0.1:" in line)
            port = int(line.split("http://127.0.0.1:")[1].split("/")[0])
            groups = wait_for_sessions(port, len(result["cases"]))
            for case in result["cases"]:
                ps = f"{case['ps']}-" if case["ps"] else ""
                name = (f"{result['date']}/{case['workers']}-workers-{ps}"
                        f"{case['mode']}")
                check_case(case, groups[name])
                print(f"ok: {name}")
            infos = ask(port, "experiment")["metricInfos"]
            assert "examples/s" in [one["displayName"] for one in infos], infos
        finally:
            board.terminate()
            board.wait()
    print(f"TensorBoard shows {len(groups)} cases as the comparison tells them")


if __name__ == "__main__":
    main()
