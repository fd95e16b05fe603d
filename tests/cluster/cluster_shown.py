# SPDX-License-Identifier: Apache-2.0
"""The blocks of output in README.md and docs/ against what a run prints.

cluster_shown.py CAPSTAN FOLDER: runs the demo in FOLDER, and there the commands
that the blocks show or that OTHERS names; what a block has must be printed, but
for times, rates, pids and ports. "..." stands for any lines.
cluster_shown.py CAPSTAN FOLDER write: writes what was printed into the blocks.
"""
import difflib
import glob
import os
import re
import shutil
import subprocess
import sys

capstan, folder = map(os.path.abspath, sys.argv[1:3])
tree, home = os.getcwd(), "/home/me/capstan"

# The commands of blocks that show only what they print, by file and first words.
OTHERS = {
    ("README.md", "+ build/capstan local"): f"{tree}/deploy/demo.sh build/capstan",
    ("docs/first-hour.md", "+ build/capstan local"):
        f"{tree}/deploy/demo.sh build/capstan",
    ("docs/first-hour.md", "error: deploy/"):
        "build/capstan run deploy/fashion-mnist.json --set optimizer.params.lr="
        "fast --set optimizer.params.mometum=0.9 2>&1 | grep -v ' chief: '",
    ("docs/first-hour.md", '{"exit":0'):
        "build/capstan local --ps 2 --workers 2 --json deploy/fashion-mnist.json "
        "--set checkpoint.resume=never 2> /dev/null",
    ("docs/job.md", "ok, 2820 steps"): "capstan schema job.json",
    ("docs/predict.md", '{"step":2820'): "capstan eval --json job.json 2> /dev/null",
}

# Blocks that are not run, by the begin of their first command.
LEFT_OUT = {
    "capstan local --ps 0 --workers 2 --deepspeed_config": "a file of the reader's",
    "capstan cluster --check": "hosts that are not here",
    "capstan compare --ps": "measures",
    "capstan compare --steps": "measures",
    "capstan bench --simulate": "measures",
    "capstan ckpt diff": "two runs of the reader's",
    "capstan local --ps 1 --workers 2 --metrics-port": "a moment of a run",
    "capstan data peek --rows 1": "data of the reader's",
    "capstan local --set strategy.ty": "keys of the shell",
    "cc linear.c": "cluster_build_test builds it",
    "curl": "a container", "make": "packages", "docker": "images", "helm": "a cluster",
    "systemctl": "services", "journalctl": "services", "export DMLC": "two hosts",
}

# What differs from run to run.
VARIES = [
    (r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}", "TIME"),
    (r"(chief): (epoch .*, step).*", r"\1: \2"),
    (r"(chief): (largest|no) cause of lost time.*", r"\1: CAUSE"),
    (r"[\d.]+k? (examples|steps)/s", r"N \1/s"),
    (r"\bfrom \S+, pid \d+", "from HOST, pid N"),
    (r"\bhost \S+, pid \d+", "host HOST, pid N"),
    (r"\bport \d+", "port N"),
    (r"\bcapstan-[0-9a-f]{16}\.", "capstan-RUN."),
    (r"\bin [\d.]+ s\b", "in N s"),
    (r" +\d+ s$", " N s"),
    (r'"((?:steps|examples)_per_second|wall_seconds|input|compute|update'
     r'|waiting_for_\w+)":[\d.e-]+', r'"\1":N'),
]
# The models' last digits depend on how oneDNN sums, which is the CPU's.
ROUNDED = (r"\b(accuracy|loss|test_accuracy|test_loss|train_loss)(\"?:| )[\d.]+",
           r"\1\2N")


def masked(line):
    for pattern, by in VARIES + ([] if avx512 else [ROUNDED]):
        line = re.sub(pattern, by, line)
    return line


def bash(command):
    """What COMMANDS, run one after the other, print: a list of lines for each."""
    clean = {name: value for name, value in os.environ.items()
             if name in ("LANG", "TERM", "LD_LIBRARY_PATH")}
    path = f"{folder}/build:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", "\n".join(f"{one}\necho @@end@@" for one in command)],
        cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL, timeout=300,
        env={**clean, "PATH": path, "HOME": folder})
    parts = done.stdout.replace(folder, home).split("@@end@@\n")
    return [part.splitlines() for part in parts[:-1]]


def is_whole(command):
    return not subprocess.run(["bash", "-n", "-c", command],
                              capture_output=True).returncode \
        and not command.endswith("\\")


def sections(lines):
    """The commands of a block, and the lines shown after each."""
    found, command = [], None
    for line in lines:
        if command is not None:
            command += "\n" + line
        elif line.startswith("$ "):
            command = line[2:]
        elif found:
            found[-1][1].append(line)
        if command is not None and is_whole(command):
            found.append((command, []))
            command = None
    return found


def has_gaps(shown):
    return any(line.strip() == "..." for line in shown)


def refreshed(shown, printed):
    """SHOWN with the lines of PRINTED in place of its own, or NULL."""
    if not has_gaps(shown):
        return printed
    fresh, shape = [], lambda line: re.sub(r"[\d.]+k?", "#", line)
    for line in shown:
        alike = [other for other in printed if masked(other) == masked(line)] or \
            [other for other in printed if shape(other) == shape(line)]
        fresh += difflib.get_close_matches(line, alike, 1, 0) or [line]
    return fresh


def differences(shown, printed):
    if has_gaps(shown):
        there = {masked(line) for line in printed}
        return [line for line in shown
                if line.strip() not in ("...", "") and masked(line) not in there]
    if [masked(line) for line in shown] == [masked(line) for line in printed]:
        return []
    return ["is not what is printed:"] + printed


def commands_of(path, lines):
    for (file, begin), command in OTHERS.items():
        if file == path and lines[0].startswith(begin):
            return [(command, lines)]
    found = sections(lines)
    if not any(shown for _, shown in found) or not lines[0].startswith("$ "):
        return []
    return [] if any(found[0][0].startswith(begin) for begin in LEFT_OUT) else found


def check(path, text, write):
    """TEXT of PATH with fresh blocks, how many are run, and what differs."""
    count, problems = 0, []

    def block(match):
        nonlocal count
        lines = match[2].splitlines()
        found = commands_of(path, lines) if lines else []
        if not found:
            return match[0]
        count += 1
        results = bash([command for command, _ in found])
        whole = []
        for (command, shown), printed in zip(found, results):
            if shown is not lines:
                whole += ("$ " + command).splitlines()
            whole += refreshed(shown, printed)
            for line in differences(shown, printed):
                problems.append(f"{path}: after {command.splitlines()[0]}: {line}")
        return match[1] + "\n".join(whole) + "\n```" if write else match[0]

    text = re.sub(r"^(```\w*\n)(.*?)^```", block, text, flags=re.S | re.M)
    return text, count, problems


def prepare():
    os.makedirs(f"{folder}/deploy")
    os.symlink(os.path.dirname(capstan), f"{folder}/build")
    os.symlink("deploy/run", f"{folder}/run")
    for name in ("deploy/fashion-mnist.json", "job.json"):
        shutil.copy(f"{tree}/deploy/fashion-mnist.json", f"{folder}/{name}")


def main():
    write, blocks, wrong = sys.argv[3:] == ["write"], 0, []
    prepare()
    for path in ["README.md"] + sorted(glob.glob("docs/*.md")):
        with open(path, encoding="utf-8") as file:
            text = file.read()
        fresh, count, problems = check(path, text, write)
        blocks += count
        wrong += problems
        if write and fresh != text:
            with open(path, "w", encoding="utf-8") as file:
                file.write(fresh)
    print(f"{blocks} blocks of output are run")
    if wrong and not write:
        sys.exit("\n".join(wrong))


avx512 = "avx512dq" in open("/proc/cpuinfo", encoding="ascii").read()
main()
