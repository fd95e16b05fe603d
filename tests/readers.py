#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What users or peers send has a reader: prints what has none.

A flag's member of struct options (flag_rows.h; a KEY's value goes to the job),
the field of a key of the job (job_schema.c, mlp.c, ranker_keys.c), and a control
message in the files that control.proto names behind its kind, and in no others.
Run from the root.
"""
import os
import re
import subprocess
import sys

CONTROL = "proto/messages/control.proto"
SCHEMAS = ["proto/job/job_schema.c", "worker/models/mlp.c",
           "worker/models/ranker_keys.c"]
FIELD = (r"\b(?:(?:FIELD|BOOL|U32|U64|REAL|CHOICE|REALS|PARAMETERS|BOOL_WORD|PATH|"
         r"COUNTS|MLP_KEY|MLP_CHOICE)\(|(?:OF|NAMES)\(\w+, )(?:\w+\.)*(\w+)")
# Documented as accepted but not used.
UNUSED = {"pin_memory"}
NOISE = re.compile(r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"", re.S)


def product():
    """The code of each source file, without comments and literals."""
    listed = subprocess.run(
        ["git", "ls-files", "*.c", "*.h", "*.cc", "*.cu", ":!tests"],
        check=True, capture_output=True, text=True).stdout.split()
    return {path: NOISE.sub(" ", open(path).read()) for path in listed
            if os.path.exists(path)}


def members(code):
    """By member that a table fills: the files of the table."""
    flags = re.findall(r"^FLAG\((?!KEY,)\w+, (\w+),", code["commands/cli/flag_rows.h"],
                       re.M)
    found = dict.fromkeys(flags, "a flag")
    for path in SCHEMAS:
        found.update(dict.fromkeys(re.findall(FIELD, code[path]), "a key of the job"))
    return found


def unread_members(code):
    """A line for each member that is written only."""
    reads = set()
    for path, text in code.items():
        if path != SCHEMAS[0] and not path.startswith("commands/cli/flag_rows"):
            text = text.replace(".given.", "->given_")
            reads.update(re.findall(r"(?:->|\.)\s*(\w+)\b(?!\s*=[^=])", text))
    return [f"{member}: {what} that nothing reads"
            for member, what in members(code).items()
            if member not in reads | UNUSED]


def unreceived(code):
    """A line for each kind whose readers are others than control.proto says."""
    kinds = re.findall(r"^    (\w+) (\w+) = \d+;(?:  // (.*))?$",
                       open(CONTROL).read().split("oneof body")[1].split("}")[0], re.M)
    body = re.compile(r"(?<!body_case = )CAPSTAN__CONTROL__BODY_([A-Z_]+)\b")
    readers = {}
    for path, text in code.items():
        if path != "proto/messages/message.c":
            for name in body.findall(" ".join(text.split())):
                readers.setdefault(name.lower(), set()).add(os.path.basename(path))
    for _, name, named in kinds:
        named = set(named.split())
        if not named or named != readers.get(name, set()):
            yield (f"control.proto: {name} is read by "
                   f"{' '.join(sorted(readers.get(name, set()))) or 'no file'}")


CODE = product()
LINES = unread_members(CODE) + list(unreceived(CODE))
print(*LINES, sep="\n", end="\n" if LINES else "")
sys.exit(bool(LINES))
