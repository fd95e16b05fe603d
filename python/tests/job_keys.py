# SPDX-License-Identifier: Apache-2.0
"""Writes capstan/job_keys.py, of `capstan schema`: run it when keys change."""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
import textwrap
from pathlib import Path
from typing import Any

from processes import PROGRAM, TESTS

FILE = TESTS.parent / "capstan" / "job_keys.py"
# Also taken as the value of one of their keys (overrides.py).
SHORT = {"strategy": "type", "checkpoint": "dir", "optimizer": "type"}
TYPES = {
    "boolean": "bool",
    "integer": "int",
    "number": "float",
    "object": "dict[str, Any]",
    "string": "str",
}
HEAD = '''# SPDX-License-Identifier: Apache-2.0
"""The job's keys as arguments of init(), by python/tests/job_keys.py."""

from __future__ import annotations

import os
from typing import Any, Literal, TypedDict


class JobKeys(TypedDict, total=False):
    """The types of the keys, for init(**keys: Unpack[JobKeys])."""
'''


def known() -> list[str]:
    """The keys that the job of a script's model may have."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "job.json"
        path.write_text('{"model": {"type": "external"}, "no_such_key": 1}')
        done = subprocess.run(
            [str(PROGRAM), "schema", str(path)], capture_output=True, text=True
        )
    names = re.search("known: (.*)", done.stderr)
    assert names, done.stderr
    return [name for name in names[1].split(", ") if name != "model"]


def type_of(name: str, schema: dict[str, Any]) -> str:
    found = []
    for part in schema.get("anyOf", [schema]):
        if "enum" in part:
            found.append(f"Literal{json.dumps(part['enum'])}")
        kinds = part.get("type", [])
        kinds = [kinds] if isinstance(kinds, str) else kinds
        if "pattern" in part and "anyOf" in schema:
            continue  # the same words in upper or lower case
        found += [TYPES[kind] for kind in kinds if kind in TYPES]
    if name in SHORT:
        found = ["str", "os.PathLike[str]", *found]
    return " | ".join(dict.fromkeys([*found, "None"]))


def text() -> str:
    """What the file has."""
    done = subprocess.run(
        [str(PROGRAM), "schema"], capture_output=True, text=True, check=True
    )
    properties = json.loads(done.stdout)["properties"]
    types, sentences = [], []
    rows = {name: properties[name] for name in known()}
    rows["clip"] = {
        **rows["gradient_clipping"],
        "description": "the same as gradient_clipping",
    }
    for name, schema in rows.items():
        types.append(f"    {name}: {type_of(name, schema)}")
        sentence = schema["description"]
        if name in SHORT:
            sentence += f"; a word: its {SHORT[name]}"
        lines = textwrap.wrap(sentence, 66, drop_whitespace=False)
        quoted = "\n        ".join(json.dumps(line) for line in lines)
        sentences.append(f'    "{name}": (\n        {quoted}\n    ),')
    return "\n".join(
        [
            HEAD,
            *types,
            "",
            "",
            "SENTENCES: dict[str, str] = {",
            *sentences,
            "}",
            "",
        ]
    )


if __name__ == "__main__":
    FILE.write_text(text())
