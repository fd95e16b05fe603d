#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Circles of the product's source files by the functions that they call.

Usage: circles.py [check]

A file calls another if it names a function that the other defines and exports.
Prints each circle (strongly connected component) of more than one file, the
largest first, with its calls. check: prints a line for each call in the chief
against the order of its rooms, and the circles only if there are more, or larger
ones, than are allowed. Run from the root.
"""
import re
import subprocess
import sys

# What is left. Both only fall.
MOST_CIRCLES, MOST_FILES = 2, 3

# The chief's rooms around run.h, which all include: a room calls itself and those
# before it.
CHIEF = {"chief/run": 0, "chief/run_series": 0, "chief/control": 0, "chief/plan": 1,
         "chief/snapshot": 2, "chief/report": 3, "chief/shutdown": 4,
         "chief/chief": 4}

NOISE = re.compile(
    r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'|"
    r"^[ \t]*#[ \t]*include[^\n]*", re.S | re.M)
DEFINITION = re.compile(
    r"^(?!static\b|typedef\b|else\b)[A-Za-z_][\w \t*]*?[ *\n]"
    r"([A-Za-z_]\w*)\((?:[^(){};]|\([^(){};]*\))*\)\s*\{", re.M)
# A field or a type of that name is not the function.
NAME = re.compile(r"(?<![\w.>])(?<!struct )(?<!union )(?<!enum )([A-Za-z_]\w*)")


def product():
    """The code of each source file, without comments and literals."""
    listed = subprocess.run(
        ["git", "ls-files", "*.c", "*.cc", "*.cu", ":!tests"],
        check=True, capture_output=True, text=True).stdout.split()
    return {path: NOISE.sub(" ", open(path).read()) for path in listed}


def calls_between(code):
    """By file: the functions of each other file that it names."""
    home = {name: path for path, text in code.items()
            for name in DEFINITION.findall(text)}
    calls = {path: {} for path in code}
    for path, text in code.items():
        for name in set(NAME.findall(text)):
            if home.get(name, path) != path:
                calls[path].setdefault(home[name], set()).add(name)
    return calls


def circles(calls):
    """Tarjan's strongly connected components of more than one file."""
    index, low, stack, found = {}, {}, [], []

    def visit(path):
        index[path] = low[path] = len(index)
        stack.append(path)
        for other in calls[path]:
            if other not in index:
                visit(other)
            if other in stack:
                low[path] = min(low[path], low[other])
        if low[path] == index[path]:
            at = stack.index(path)
            if len(stack) - at > 1:
                found.append(sorted(stack[at:]))
            del stack[at:]

    sys.setrecursionlimit(10000)
    for path in calls:
        if path not in index:
            visit(path)
    return sorted(found, key=lambda files: (-len(files), files))


def place(path):
    """Of a file in the chief's order; None: it has none."""
    return CHIEF.get(path.rpartition(".")[0], CHIEF.get(path.rpartition("/")[0]))


def upward(calls):
    """A line for each call against the order of the chief's rooms."""
    for path, others in calls.items():
        for other, names in others.items():
            places = place(path), place(other)
            if None not in places and places[0] < places[1]:
                yield (f"{path}: calls {', '.join(sorted(names))} of {other}, "
                       "which is later in the order of the chief's rooms")


def describe(found, calls):
    yield (f"{len(found)} circles by calls, of "
           + ", ".join(str(len(files)) for files in found) + " files")
    for files in found:
        yield " ".join(files)
        for path in files:
            for other, names in sorted(calls[path].items()):
                if other in files:
                    yield f"    {path} -> {other}: {', '.join(sorted(names))}"


def main():
    calls = calls_between(product())
    found = circles(calls)
    lines = []
    if "check" in sys.argv:
        lines += upward(calls)
    if ("check" not in sys.argv or len(found) > MOST_CIRCLES
            or any(len(files) > MOST_FILES for files in found)):
        lines += describe(found, calls)
    print(*lines, sep="\n", end="\n" if lines else "")


main()
