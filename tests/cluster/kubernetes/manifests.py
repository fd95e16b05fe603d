# SPDX-License-Identifier: Apache-2.0
"""The manifests of deploy/kubernetes as the objects that are sent to a cluster.

Kustomize and Helm are played as far as these files need them: a Kustomization's
resources and generated ConfigMaps, and a chart by its own engine (chart.go).
Where kubectl is installed, its kustomize has to give the same.
"""
import json
import os
import shutil
import subprocess

import jsonschema
import yaml

FOLDER = "deploy/kubernetes"
CHART = f"{FOLDER}/helm/capstan"


class Strict(yaml.SafeLoader):
    """Refuses a key that occurs twice, as the API server does."""


def _strict_map(loader, node):
    keys = [loader.construct_object(key) for key, _ in node.value]
    twice = {str(key) for key in keys if keys.count(key) > 1}
    if twice:
        raise yaml.YAMLError(f"{node.start_mark}: twice: {twice}")
    return loader.construct_mapping(node, deep=True)


Strict.add_constructor("tag:yaml.org,2002:map", _strict_map)


def parse(text):
    return [each for each in yaml.load_all(text, Strict) if each is not None]


def read(path):
    with open(path) as file:
        return parse(file.read())


def kustomize(folder):
    (whole,) = read(f"{folder}/kustomization.yaml")
    allowed = {"apiVersion", "kind", "generatorOptions", "configMapGenerator",
               "resources"}
    assert set(whole) <= allowed, f"{folder}: not played: {set(whole) - allowed}"
    assert whole["generatorOptions"] == {"disableNameSuffixHash": True}
    objects = []
    for resource in whole["resources"]:
        path = os.path.normpath(f"{folder}/{resource}")
        objects += kustomize(path) if os.path.isdir(path) else read(path)
    for generated in whole["configMapGenerator"]:
        data = dict(each.split("=", 1) for each in generated.get("literals", []))
        for name in generated.get("files", []):
            with open(f"{folder}/{name}") as file:
                data[name] = file.read()
        objects.append({"apiVersion": "v1", "kind": "ConfigMap", "data": data,
                        "metadata": {"name": generated["name"]}})
    return objects


def kubectl(*arguments):
    return subprocess.run(["kubectl", *arguments], text=True, timeout=60,
                          stdout=subprocess.PIPE, check=True).stdout


def kubectl_kustomize(folder):
    """What kubectl makes of FOLDER; None where there is none, or one before 1.24,
    which does not tell the release of its kustomize."""
    if not shutil.which("kubectl") or "kustomizeVersion" not in \
            json.loads(kubectl("version", "--client", "-o", "json")):
        return None
    return parse(kubectl("kustomize", folder))


def build_chart_program(folder):
    """chart.go as a program in FOLDER; None where Go or a package is missing."""
    if not shutil.which("go"):
        return None
    os.makedirs(folder, exist_ok=True)
    program = f"{folder}/chart"
    environment = {**os.environ, "GO111MODULE": "off", "CGO_ENABLED": "0",
                   "GOPATH": "/usr/share/gocode", "GOFLAGS": "",
                   "GOCACHE": f"{folder}/gocache"}
    ended = subprocess.run(
        ["go", "build", "-o", program, "tests/cluster/kubernetes/chart.go"],
        env=environment, stderr=subprocess.PIPE, text=True, timeout=280)
    if ended.returncode and "cannot find package" in ended.stderr:
        return None
    assert not ended.returncode, ended.stderr
    return program


def merge(values, over):
    for key, value in over.items():
        if value is None:
            values.pop(key, None)
        elif isinstance(value, dict) and isinstance(values.get(key), dict):
            merge(values[key], value)
        else:
            values[key] = value
    return values


def check_values(values):
    """Raises jsonschema.ValidationError, as Helm refuses such values."""
    with open(f"{CHART}/values.schema.json") as file:
        schema = json.load(file)
    jsonschema.Draft7Validator.check_schema(schema)
    (defaults,) = read(f"{CHART}/values.yaml")
    jsonschema.validate(merge(defaults, values), schema,
                        jsonschema.Draft7Validator)


class Refused(Exception):
    """The chart's templates fail."""


def helm(program, values, release="demo", namespace="default"):
    check_values(values)
    ended = subprocess.run([program, CHART, release, namespace], text=True,
                           input=json.dumps(values), stdout=subprocess.PIPE,
                           stderr=subprocess.PIPE, timeout=60)
    if ended.returncode:
        raise Refused(ended.stderr)
    return parse(ended.stdout)


def defaults():
    """Each form with the objects that a user has applied before it trains."""
    common = kustomize(f"{FOLDER}/common")
    return {
        "tfjob": read(f"{FOLDER}/tfjob.yaml"),
        "jobset": common + read(f"{FOLDER}/jobset.yaml"),
        "trainer": common + read(f"{FOLDER}/trainer-v2/runtime.yaml") +
        read(f"{FOLDER}/trainer-v2/trainjob.yaml"),
        "plain": common + kustomize(f"{FOLDER}/plain"),
    }


def forms():
    """The same with the budgets that a user may add."""
    found = defaults()
    found["jobset"] += read(f"{FOLDER}/jobset-disruption.yaml")
    found["plain"] += read(f"{FOLDER}/plain/disruption.yaml")
    return found


CHART_VALUES = {
    "helm": {},
    "helm-allreduce": {"strategy": "allreduce", "worker": {"replicas": 3},
                       "podDisruptionBudget": True},
    "helm-coordinate": {
        "chief": {"trains": False}, "ps": {"replicas": 3}, "staleness": "inf",
        "trainer": {"gpus": 2, "nodeSelector": {"example.com/pool": "gpu"},
                    "runtimeClassName": "nvidia", "tolerations": [
                        {"key": "nvidia.com/gpu", "operator": "Exists"}]},
        "ps": {"affinity": {"nodeAffinity": {}}},
        "image": {"registry": "registry.example.com/team/",
                  "digest": "sha256:" + 64 * "a"}, "dataClaim": "data",
        "podDisruptionBudget": True,
        "imagePullSecrets": ["pull"], "secret": "keys",
        "set": {"epochs": 3, "optimizer.params.lr": 0.01},
        "podAnnotations": {"example.com/team": "a"},
        "monitor": {"app.kubernetes.io/name": "prometheus"},
        "podLabels": {"example.com/cost": "b"},
        "env": [{"name": "NCCL_DEBUG", "value": "INFO"}],
        "podSecurityContext": {"runAsGroup": None},
        "priorityClassName": "low", "serviceAccountName": "trainer",
        "joinTimeout": 3600, "ttlSecondsAfterFinished": 0},
    "helm-no-checkpoints": {"checkpoints": {"enabled": False},
                            "networkPolicy": False},
}


def chart_forms(program):
    return {form: helm(program, values) for form, values in CHART_VALUES.items()}
