# SPDX-License-Identifier: Apache-2.0
"""deploy/azureml against Azure's own clients, for `make check-azureml`.

check_azureml.py v2 BUILD, with azure-ai-ml: its client takes each file, and
refuses the mutations that capstan refuses. check_azureml.py v1 BUILD, with
azureml-core: the run configurations that its classes write, as docs/azureml.md
calls them and with every default, start the clusters of the table. Neither needs
an account, and nothing is submitted.
"""
import glob
import json
import os
import re
import subprocess
import sys
import tempfile

version, build = sys.argv[1:3]
capstan = os.path.abspath(os.path.join(build, "capstan"))


def cluster(path, *flags):
    """[workers, ps] that FILE starts, or the error of capstan."""
    done = subprocess.run([capstan, "local", "--distribution", path, *flags,
                           "--", capstan, "cluster"], text=True,
                          capture_output=True, timeout=60)
    if done.returncode:
        return done.stderr
    seen = [json.loads(line) for line in done.stdout.splitlines()]
    counts = {(one["num_workers"], one["num_ps"]) for one in seen}
    if len(counts) != 1 or sum(*counts) != len(seen):
        sys.exit(f"{path}: {seen}")
    return list(*counts)


def check_v2(folder):
    from azure.ai.ml import load_compute, load_environment, load_job
    loads = {"compute": load_compute, "environment": load_environment}
    mutations = {
        "an unknown key": (r"^code:", "codes: x\ncode:"),
        "an unknown type": (r"type: (tensorflow|pytorch|mpi)$", "type: horovod"),
        "another type's key": (r"^(  type: tensorflow)$",
                               r"\1\n  process_count_per_instance: 2"),
        "a text for the instances": (r"instance_count: \d+", "instance_count: two"),
        "a text for a count": (r"(worker_count|per_instance): \d+", r"\1: x"),
    }
    for path in sorted(glob.glob("deploy/azureml/*.yml")):
        name = os.path.basename(path)[:-4]
        load = loads.get(name, load_job)
        entity = load(path)
        if load is not load_job:
            print(f"{path}: taken")
            continue
        if not entity._validate().passed:
            sys.exit(f"{path}: {entity._validate().error_messages}")
        text, refused = open(path, encoding="utf-8").read(), 0
        for what, (old, new) in mutations.items():
            changed = re.sub(old, new, text, count=1, flags=re.M)
            if changed == text:
                continue
            other = os.path.join(folder, os.path.basename(path))
            with open(other, "w", encoding="utf-8") as file:
                file.write(changed)
            try:
                load(other)
                sys.exit(f"{path} with {what}: taken by azure-ai-ml")
            except Exception as error:
                if type(error).__name__ != "ValidationError":
                    raise
            answer = cluster(other)
            if not isinstance(answer, str) or other not in answer:
                sys.exit(f"{path} with {what}: capstan says {answer}")
            refused += 1
        print(f"{path}: taken, {refused} mutations refused by both,",
              "workers and ps:", cluster(path))


def check_v1(folder):
    from azureml.core import ScriptRunConfig, runconfig
    page = open("docs/azureml.md", encoding="utf-8").read()
    calls = re.findall(r"^\| `(\S+\.yml)` \| `.*?` \| `(\w+\(.*?\))` \|", page,
                       re.M)
    if len(calls) != 5:
        sys.exit(f"docs/azureml.md: the calls are {calls}")
    defaults = {"TensorflowConfiguration()": [1, 1],
                "PyTorchConfiguration(node_count=3)": [3, 0],
                "MpiConfiguration(node_count=3)": [3, 0]}
    expected = [(call, cluster("deploy/azureml/" + file))
                for file, call in calls] + list(defaults.items())
    os.mkdir(os.path.join(folder, ".azureml"))
    for number, (call, counts) in enumerate(expected):
        config = ScriptRunConfig(
            source_directory=folder, command=["capstan", "cluster"],
            distributed_job_config=eval(call, vars(runconfig))).run_config
        name = f"{number}.runconfig"
        config.save(folder, name)
        found = cluster(os.path.join(folder, ".azureml", name))
        if found != counts:
            sys.exit(f"{call}: {found}, not {counts}")
        print(f"{call}: workers and ps {found}")


with tempfile.TemporaryDirectory() as scratch:
    check_v1(scratch) if version == "v1" else check_v2(scratch)
