# SPDX-License-Identifier: Apache-2.0
"""docs/azureml.md against the program: cluster_azureml.py BUILD FOLDER.

Each block of the page that ends with `capstan cluster` is run as it stands and
prints what the page shows. In the table of jobs, the file, the block of CLI v2
and the run configuration of SDK v1 start the same cluster, one process of which
is the block's.
"""
import glob
import json
import os
import re
import subprocess
import sys

build, folder = sys.argv[1:3]
page = open("docs/azureml.md", encoding="utf-8").read()
PATH = os.path.abspath(build) + ":" + os.environ["PATH"]


def run(command):
    environment = {"PATH": PATH, "HOME": folder}
    done = subprocess.run(["sh", "-c", command], env=environment, text=True,
                          capture_output=True, timeout=60)
    if done.returncode:
        sys.exit(f"{command}\n{done.stdout}{done.stderr}")
    return done.stdout.splitlines()


def check(right, *what):
    if not right:
        sys.exit("\n".join(map(str, what)))


def page_clusters():
    """What `capstan cluster` prints in each block, after a check that it does."""
    fences = re.split(r"^```.*\n", page, flags=re.M)
    for block in fences[1::2]:
        *commands, shown = block.splitlines()
        if not re.search(r"^\$ capstan cluster( --num-ps \d+)?$",
                         commands[-1] if commands else ""):
            continue
        command = re.sub(r"^\$ ", "", "\n".join(commands), flags=re.M)
        check(run(command) == [shown], command, "prints", run(command),
              "the page has", shown)
        yield json.loads(shown)


def processes(file, *flags):
    """The cluster of FILE as its processes see it, without addresses."""
    flags = " ".join(flags)
    lines = run(f"capstan local --distribution '{file}' {flags} "
                "-- capstan cluster")
    seen = [json.loads(line) for line in lines]
    for process in seen:
        del process["chief"]
    return sorted(seen, key=lambda p: (p["role"], p["index"]))


def written(name, text):
    path = os.path.join(folder, name)
    with open(path, "w", encoding="utf-8") as file:
        file.write("{" + text + "}\n")
    return path


def main():
    clusters = list(page_clusters())
    rows = re.findall(r"^\| `(\S+)\.yml` \| `(distribution: .*?)` \| "
                      r"`\w+\(.*?\)` \| `(.*?)` \|$", page, re.M)
    for cluster in clusters:
        del cluster["chief"]
    files = sorted(glob.glob("deploy/azureml/*.yml"))
    names = {os.path.basename(path)[:-4] for path in files}
    check(names - {row[0] for row in rows} == {"compute", "environment"},
          "the page's table lacks a file:", names, rows)
    check(len(clusters) == len(rows), "a block for each of", rows, clusters)
    for (name, v2, v1), cluster in zip(rows, clusters):
        flags = ["--num-ps 2"] if name == "pytorch" else []
        path = f"deploy/azureml/{name}.yml"
        whole = processes(path, *flags)
        for other in written("v2.yml", v2), written("v1.runconfig", v1):
            seen = processes(other, *flags)
            check(seen == whole, name, "in the file", whole, "in", other, seen)
        check(cluster in whole, name, "none of", whole, "is", cluster)
    print(len(rows), "jobs")


main()
