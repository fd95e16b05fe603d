#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a power cut leaves of a checkpoint directory, at every moment of a run.

Usage: power_cut.py CAPSTAN FOLDER NAME TRACE CUTS SEED

TRACE has the calls that changed FOLDER in the order of time (traced_disk.c); NAME is
the checkpoint directory in it, which the run has made. After a cut, what was synced is there; of what was not, a name may be or not, and a file
has any part of what it was to have, then zeros. So each moment is cut three times
and more, up to CUTS: with all names and none of the contents that were not synced,
without any such name, and by chance.

After each, `capstan ckpt verify` finds no checkpoint that is damaged, and each that
was complete before the cut and is not being removed.
"""
import json
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple, Optional


class Call(NamedTuple):
    number: int
    begin: int
    name: str
    path: str
    other: str
    content: bytes


class Node:
    """A file or folder. What was synced, and what is there."""

    def __init__(self, is_folder):
        self.is_folder = is_folder
        self.synced = b""
        self.content = b""  # of a file, at its last sync to come
        self.entries = {}  # of a folder: by name
        self.pending = []  # changes of entries: (number, name, node or None)


def read_calls(trace):
    for path in sorted(p for p in Path(trace).iterdir() if p.name.isdigit()):
        begin, name, first, other, content = path.read_bytes().split(b"\n", 4)
        if name != b"failed":
            call = name.decode(), first.decode(), other.decode()
            yield Call(int(path.name), int(begin), *call, content)


class Disk:
    """The calls so far, on a disk that had the empty folder ROOT."""

    def __init__(self, root):
        self.root = root
        self.folder = Node(True)
        self.complete = {}  # steps whose manifest and its name are synced

    def find(self, path) -> Optional[Node]:
        node = self.folder
        for part in Path(path).relative_to(self.root).parts:
            node = self.entries_of(node).get(part) if node else None
        return node

    def entries_of(self, folder):
        """As the kernel has them."""
        entries = dict(folder.entries)
        for _, name, node in folder.pending:
            entries.pop(name, None)
            if node:
                entries[name] = node
        return entries

    def change(self, call, path, node):
        folder = self.find(Path(path).parent)
        folder.pending.append((call.number, Path(path).name, node))

    def take(self, call):
        if call.name in ("create", "mkdir"):
            if not self.find(call.path):
                self.change(call, call.path, Node(call.name == "mkdir"))
        elif call.name == "link":
            self.change(call, call.other, self.find(call.path))
        elif call.name == "rename":
            self.change(call, call.other, self.find(call.path))
            self.change(call, call.path, None)
            self.forget(call.path)
        elif call.name == "remove":
            self.change(call, call.path, None)
            self.forget(call.path)
        elif call.name == "sync":
            self.sync(call)

    def forget(self, path):
        """A checkpoint is being removed, or set aside."""
        for step, manifest in list(self.complete.items()):
            if manifest == path or manifest.startswith(f"{path}/"):
                del self.complete[step]

    def sync(self, call):
        node = self.find(call.path)
        if not node:
            return
        if not node.is_folder:
            node.synced = call.content
            return
        done = [c for c in node.pending if c[0] <= call.begin]
        node.pending = [c for c in node.pending if c[0] > call.begin]
        for _, name, entry in done:
            node.entries.pop(name, None)
            if entry:
                node.entries[name] = entry
            if entry and name == "manifest.json":
                step = Path(call.path).name
                self.complete[step] = f"{call.path}/{name}"


def write(folder, node, chance):
    """NODE's entries as a cut leaves them: CHANCE is a random.Random, or how many
    of the names that were not synced are there."""
    entries = dict(node.entries)
    count = len(node.pending)
    kept = chance.randint(0, count) if isinstance(chance, random.Random) else chance
    for _, name, entry in node.pending[: count if kept is None else kept]:
        entries.pop(name, None)
        if entry:
            entries[name] = entry
    for name, entry in sorted(entries.items()):
        path = folder / name
        if entry.is_folder:
            path.mkdir()
            write(path, entry, chance)
            continue
        content = entry.synced
        if isinstance(chance, random.Random) and content != entry.content:
            content = entry.content[: chance.randint(0, len(entry.content))]
            content += bytes(chance.randint(0, 1) * 4096)
        path.write_bytes(content)


def contents_to_come(calls, root):
    """Of each file, by the number of its creation, what it is to have."""
    disk, made, found = Disk(root), {}, {}
    for call in calls:
        before = disk.find(call.path) if call.name == "create" else None
        disk.take(call)
        if call.name == "create" and not before:
            made[disk.find(call.path)] = call.number
        if call.name == "sync" and disk.find(call.path) in made:
            found[made[disk.find(call.path)]] = call.content
    return found


def check(capstan, folder, complete, text):
    if not folder.exists():
        if complete:
            sys.exit(f"{text}: {folder} is lost, with {sorted(complete)}")
        return
    done = subprocess.run(
        [capstan, "ckpt", "verify", "--json", str(folder)],
        capture_output=True,
        text=True,
    )
    if done.returncode not in (0, 1):
        sys.exit(f"{text}: verify ends with {done.returncode}: {done.stderr}")
    found = json.loads(done.stdout)["checkpoints"] if done.stdout else []
    damaged = [c["step"] for c in found if not c["ok"]]
    lost = {int(name[5:]) for name in complete} - {c["step"] for c in found}
    if damaged or lost:
        sys.exit(f"{text}: damaged {damaged}, lost {sorted(lost)}: {done.stderr}")


def main(capstan, root, name, trace, cuts, seed):
    calls = list(read_calls(trace))
    to_come = contents_to_come(calls, root)
    chances = random.Random(int(seed))
    times = max(3, -(-int(cuts) // max(1, len(calls))))
    disk, folder, count = Disk(root), Path(trace, "cut"), 0
    for call in calls:
        before = disk.find(call.path) if call.name == "create" else None
        disk.take(call)
        if call.name == "create" and not before:
            disk.find(call.path).content = to_come.get(call.number, b"")
        for turn in range(times):
            chance = [0, None, chances][min(turn, 2)]
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            write(folder, disk.folder, chance)
            text = f"call {call.number} ({call.name} {call.path}), cut {turn}"
            check(capstan, folder / name, set(disk.complete), text)
            count += 1
    print(f"{count} cuts at {len(calls)} calls", file=sys.stderr)


if __name__ == "__main__":
    main(*sys.argv[1:])
