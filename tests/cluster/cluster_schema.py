# SPDX-License-Identifier: Apache-2.0
"""The JSON Schema of `capstan schema` against what the program accepts.

cluster_schema.py CAPSTAN FOLDER examples: both accept every job in the tree.
cluster_schema.py CAPSTAN FOLDER SEED COUNT: they judge COUNT mutations of jobs
alike. A job that only the program refuses must break one of RULES, which a
schema cannot say; their numbers are printed.
"""
import copy
import glob
import json
import random
import re
import subprocess
import sys

import jsonschema

capstan, folder = sys.argv[1:3]

# The sentences of the rules that compare numbers of two places, that are about
# names of features and columns, and about what a model's tables can do.
RULES = {
    "fewer": r"checkpoint\.delta_every_steps: found \d+; allowed: fewer than "
             r"checkpoint\.every_steps",
    "ascending": r"(compare\.(ps|workers)|features\..*\.boundaries): found \[.*"
                 r"that ascend$",
    "from a to b": r"(model\.(init|factors_init)|features\..*\.init): found "
                   r"\{.*\"uniform\"",
    "no feature": r"features: found \{(\".*\":null,?)+\} \(an object\)",
    "column": r"features\.[^ ]*: found .*; allowed: (a feature that gives ids, "
              r"or )?a column: ",
    "ids": r"features\..*\.of: found .*; allowed: (a feature that gives ids|"
           r"crosses in crosses)",
    "features of a model":
        r"model\.[a-z]*: found (\".*\"|no [^;]*)( of dim \d+)?; allowed: "
        r"(features? that give|at least one|dim \d)",
    "all together": r"features: found \d+ numbers of all together",
    "rows": r"optimizers?: found .* for table ",
}

# A job of each kind of model, of data, of optimizer and of scheduler.
IDX = {"train": ["images", "labels"]}
CSV = {"format": "csv", "train": "a.csv", "header": True}
IDS = {"f": {"type": "hash_bucket", "size": 100, "of": "c"},
       "e": {"type": "embedding", "of": "f", "dim": 4},
       "n": {"type": "numeric"}}
SIZES = {"epochs": 1, "train_micro_batch_size_per_gpu": 8}


def job(model, data, kind="SGD", params=None, **more):
    whole = {"model": model, "data": data, "optimizer": {"type": kind}, **SIZES}
    if params:
        whole["optimizer"]["params"] = params
    return copy.deepcopy({**whole, **more})


def bases():
    wide = {"type": "wide_deep", "wide": ["f"], "deep": ["n", "e"],
            "hidden": [4]}
    own = {"wide": {"type": "Ftrl", "params": {"lr": 0.1}},
           "deep": {"type": "Adagrad"}}
    mlp = {"layers": [4, 2]}
    yield job(mlp, IDX, params={"momentum": 0.9, "nesterov": True})
    yield job(mlp, IDX, "Adam", fp16={"enabled": True},
              scheduler={"type": "WarmupLR"})
    yield job(mlp, IDX, "AdamW", strategy={"type": "allreduce"},
              zero_optimization={"stage": 2},
              scheduler={"type": "WarmupDecayLR",
                         "params": {"total_num_steps": 9}})
    yield job(mlp, IDX, "RMSprop", scale_lr="linear", checkpoint={
        "dir": "c", "every_steps": 5, "delta_every_steps": 2, "resume": 5})
    yield job(mlp, IDX, tf32=True, device="cuda")
    yield job(mlp, IDX, "Adagrad", compare={"ps": [1, 2], "plot": "a.svg"})
    yield job({"type": "external"}, None, "None")
    yield job({"type": "linear"}, {"format": "libsvm", "train": "a"}, "Ftrl")
    yield job({"type": "linear", "features": ["n"]}, CSV, features=IDS)
    yield job({"type": "fm", "dim": 4}, {
        "format": "csv", "train": ["a", "b"], "columns": ["c", "n", "label"]},
        features={"f": IDS["f"]})
    yield job({"type": "deepfm", "dim": 4, "hidden": [4, 2]},
              {"format": "criteo", "train": "a", "bad_lines": "skip"},
              features={"f": {"type": "hash_bucket", "of": "C1"}})
    yield {**job(wide, CSV, features=IDS), "optimizer": None,
           "optimizers": copy.deepcopy(own)}
    yield job({"type": "dlrm", "bottom": [4], "top": [4, 2]},
              {"format": "tfrecord", "train": "a", "label": "y"}, features=IDS)
    yield job({"type": "matrix_factorization", "user": "f", "item": "g",
               "dim": 2}, {"format": "npz", "train": "a"},
              features={"f": IDS["f"], "g": {"type": "identity", "size": 9}})


def jobs_of_the_tree():
    for path in glob.glob("deploy/*.json") + ["deploy/kubernetes/common/job.json",
                                           "tests/data/one-hot/job.json"]:
        with open(path) as file:
            yield path, json.load(file)
    for path in ["README.md"] + glob.glob("docs/*.md"):
        with open(path) as file:
            text = file.read()
        for block in re.findall("```json\n(.*?)```", text, re.S):
            if block[0] == "{" and '"optimizer"' in block:
                yield path, json.loads(block)


class Refusal:
    def __init__(self, validator, whole):
        self.schema = [error.message for error in validator.iter_errors(whole)]
        with open(f"{folder}/mutation.json", "w") as file:
            json.dump(whole, file)
        ended = subprocess.run([capstan, "schema", file.name],
                               capture_output=True, text=True)
        assert ended.returncode in (0, 2), ended
        self.lines = [line.strip() for line in ended.stderr.splitlines()
                      if line.startswith("  ")]
        if ended.returncode == 2 and not self.lines: # a single one
            self.lines = [ended.stderr.split(".json: ", 1)[-1].strip()]


def paths_of(schema, before=()):
    """Each key of the schema with the schema of its value."""
    keys = list(schema.get("properties", {}).items())
    keys += [(pattern.strip("^$"), below) for pattern, below
             in schema.get("patternProperties", {}).items()]
    for name, below in keys:
        yield before + (name,), below
        yield from paths_of(below, before + (name,))


def offered(schema, before=""):
    """The path and the schema of each key that an editor offers."""
    for name, below in schema.get("properties", {}).items():
        yield before + name, below
        yield from offered(below, before + name + ".")


def check_offers(schema):
    """Each has a sentence; no key of DeepSpeed is offered that may only be off."""
    for path, below in offered(schema):
        if not below.get("description"):
            sys.exit(f"{path}: no description")
        values = [value for value in below.get("enum", ["one", "other"])
                  if value not in (None, "auto")]
        if below.keys() <= {"description"} or values in ([False], [True], [0]):
            sys.exit(f"{path}: an editor offers a key without a choice")


def values_for(schema, chance):
    """A value that SCHEMA may take, or is just beyond."""
    schema = chance.choice(schema.get("anyOf", [schema]))
    if "enum" in schema:
        word = chance.choice(schema["enum"])
        change = chance.choice([str, str.upper, str.lower, str.title])
        return change(word) if isinstance(word, str) else word
    if "const" in schema:
        return schema["const"]
    kind = schema.get("type")
    kind = chance.choice(kind) if isinstance(kind, list) else kind
    if kind in ("integer", "number"):
        ends = [schema.get("minimum", -1), schema.get("maximum", 9)]
        return chance.choice(ends + [ends[0] - 1, ends[1] * 2, 1, 2, 3.0])
    if kind == "boolean":
        return chance.random() < 0.5
    if kind == "array":
        one = values_for(schema.get("items", {}), chance)
        return [one] * chance.choice([1, 2, 2, 3])
    if kind == "string":
        return chance.choice(["", "n", "f", "x.npz", "y.safetensors", ","])
    if kind == "object" and "required" in schema:
        return {name: values_for(schema["properties"][name], chance)
                for name in schema["required"]}
    return None if kind == "null" else {}


ANY = [None, True, False, 0, 1, -1, 0.5, 64.0, 1e31, "", "auto", "inf", "x",
       [], {}, [1, 2], [2, 1], ["f", "n"], [0.9, 0.99], [1, 1],
       {"type": "normal", "std": 1}, {"type": "uniform", "a": 1, "b": 0},
       "ones", "kaiming_normal", {"f": {"type": "numeric"}}]


def put(whole, path, value):
    for name in path[:-1]:
        if not isinstance(whole.get(name), dict):
            whole[name] = {}
        whole = whole[name]
    whole[path[-1]] = copy.deepcopy(value)


def objects_in(whole):
    yield whole
    for below in whole.values():
        if isinstance(below, dict):
            yield from objects_in(below)


def mutate(whole, paths, chance):
    for _ in range(chance.choice([1, 1, 1, 2, 3])):
        kind = chance.random()
        path, schema = chance.choice(paths)
        some = chance.choice(list(objects_in(whole)))
        if kind < 0.5:
            put(whole, path, values_for(schema, chance))
        elif kind < 0.7:
            put(whole, path, chance.choice(ANY))
        elif kind < 0.85 and some:
            del some[chance.choice(list(some))]
        elif kind < 0.9:
            some[chance.choice(["layer", "typ", "$schema", "a.b"])] = 1
        elif some:
            put(some, [chance.choice(list(some))], chance.choice(ANY))
    return whole


def fail(title, whole, refusal):
    print(f"{title}: {json.dumps(whole)}\nschema: {refusal.schema}\n"
          f"program: {refusal.lines}")
    sys.exit(1)


def judge(title, whole, validator, broken):
    refusal = Refusal(validator, whole)
    if bool(refusal.schema) == bool(refusal.lines):
        return bool(refusal.lines)
    if refusal.schema:
        fail(f"{title}: only the schema refuses", whole, refusal)
    for line in refusal.lines:
        rules = [r for r in RULES if re.match(RULES[r], line)]
        if not rules:
            fail(f"{title}: only the program refuses", whole, refusal)
        broken[rules[0]] = broken.get(rules[0], 0) + 1
    return True


def main():
    schema = json.loads(subprocess.check_output([capstan, "schema"]))
    jsonschema.Draft7Validator.check_schema(schema)
    validator = jsonschema.Draft7Validator(schema)
    jobs = list(bases())
    if sys.argv[3] == "examples":
        check_offers(schema)
        check_offers(schema["properties"]["features"]["additionalProperties"])
        named = list(jobs_of_the_tree()) + [("a base", job) for job in jobs]
        for name, whole in named:
            refusal = Refusal(validator, whole)
            if refusal.schema or refusal.lines:
                fail(name, whole, refusal)
        print(len(named), "jobs fit")
        return
    seed, count = map(int, sys.argv[3:5])
    chance, broken, refused = random.Random(seed), {}, 0
    paths = list(paths_of(schema))
    feature = schema["properties"]["features"]["additionalProperties"]
    for name in "fen":
        paths += paths_of(feature, ("features", name))
    for number in range(count):
        whole = mutate(copy.deepcopy(chance.choice(jobs)), paths, chance)
        refused += judge(f"mutation {number} of seed {seed}", whole, validator,
                         broken)
    print(f"seed {seed}: {count} mutations, {refused} refused, by the program "
          f"alone: {broken}")


main()
