# SPDX-License-Identifier: Apache-2.0
"""The manifests of deploy/kubernetes (cluster_kubernetes_test.c).

check.py BUILD FOLDER rules           each form follows the rules of rules.py
check.py BUILD FOLDER chart           the same of the chart with several values
check.py BUILD FOLDER mutations       each mutation breaks the rule that it names
check.py BUILD FOLDER play FORM [POD] FORM trains as written, in play.py; POD is
                                      evicted meanwhile
BUILD has the program, FOLDER is for what is written. Where something is missing it
prints "skip" and a reason, and ends with 0.
"""
import glob
import os
import re
import subprocess
import sys

build, folder, what = sys.argv[1:4]
os.chdir(f"{os.path.dirname(os.path.abspath(__file__))}/../../..")
capstan = f"{build}/capstan"
try:
    import jsonschema  # of manifests and rules
    import yaml
except ImportError:
    print("skip no python3 with yaml and jsonschema (python3-yaml, "
          "python3-jsonschema)")
    sys.exit(0)

import manifests
import play
import rules


def fail(*texts):
    print("FAILED:", *texts)
    for path in sorted(glob.glob(f"{folder}/**/*.log", recursive=True)):
        with open(path) as file:
            print(f"--- {path}\n{file.read()[-3000:]}")
    sys.exit(1)


def need_chart():
    program = manifests.build_chart_program(f"{build}/kubernetes")
    if not program:
        raise play.Skip("no Go with sprig (golang-go, golang-github-masterminds-"
                        "sprig-dev, golang-gopkg-yaml.v3-dev)")
    return program


def objects_of(form):
    if form.startswith("helm"):
        return manifests.chart_forms(need_chart())[form]
    return manifests.forms()[form]


def log_of(run, name):
    """All that the lives of pod NAME have said."""
    text = ""
    for path in sorted(glob.glob(f"{run.node.folder}/{name}.*.log")):
        with open(path) as file:
            text += file.read()
    return text


def train(form, objects, disrupted=None):
    """Runs FORM; DISRUPTED is a pod that is evicted once it has trained."""
    if os.geteuid():
        raise play.Skip("not root")
    image = {}
    if form == "tfjob":  # the image has the job and its data
        image["/job"] = os.path.abspath(f"{manifests.FOLDER}/common")
    pods = [pod for each in play.controllers.workloads_of(objects)[0]
            for pod in each.pods]
    hosts = play.Hosts(len(pods))
    try:
        node = play.Node(objects, capstan, f"{folder}/{form}", hosts, image)
        run = play.Run(node)
        lead = next(pod.name for pod in run.node.pods
                    if re.search(r"(chief|node-0|worker)(-0)*$", pod.name))

        def evict():
            if not re.search(r"epoch 5/", log_of(run, lead)):
                return False
            run.say(f"{disrupted}: evicted")
            run.disrupt(disrupted)
            return True
        try:
            if not run.follow(60, evict if disrupted else None):
                fail(form, "did not train")
            judge(form, run, lead, disrupted)
        finally:
            run.close()
    finally:
        hosts.close()


def judge(form, run, lead, disrupted):
    for pod, container in run.now.items():
        if container.code != 0:
            fail(pod.name, "ended with", container.code)
        probes = {key for key in pod.container if key.endswith("Probe")}
        if container.answered != probes:
            fail(pod.name, "did not answer", probes - container.answered)
    said = log_of(run, lead)
    accuracy = re.findall(r"epoch 300/300: test accuracy ([0-9.]+)", said)
    if not accuracy or float(accuracy[-1]) < 0.9:
        fail(form, "has not learned:", accuracy)
    claims = glob.glob(f"{run.node.folder}/claim-*checkpoints")
    if len(claims) != (form != "tfjob"):
        fail(form, "has claims with checkpoints:", claims)
    for claim in claims:  # with a directory of the run's name
        (directory,) = glob.glob(f"{claim}/*/")
        subprocess.run([capstan, "ckpt", "verify", directory], check=True,
                       stdout=subprocess.DEVNULL, timeout=60)
    if disrupted:
        first = {line.split(":")[0]: int(line.split()[-1]) for line in
                 reversed(run.said) if ": ended with " in line}
        ends = "-ps-" in disrupted  # a worker's end does not end the run
        if first[disrupted] != 143 or first[lead] != (138 if ends else 0):
            fail(form, "ended at first with", first)
        if ends and "resum" not in said:
            fail(form, "has not resumed")
    print(f"{form}: {len(run.now)} pods, accuracy {accuracy[-1]}, "
          f"{len(claims)} claims with checkpoints, {run.restarts} restarts of all")


def main():
    if what == "rules":
        rules.check_first()
        rules.check_defaults(manifests.defaults())
        rules.check_forms(manifests.forms())
        rules.check_together(manifests.forms())
        rules.compare_kustomize()
    elif what == "chart":
        rules.check_chart(need_chart())
    elif what == "mutations":
        rules.check_mutations(manifests.forms())
    else:
        train(sys.argv[4], objects_of(sys.argv[4]), (sys.argv[5:] + [None])[0])


try:
    main()
except play.Skip as reason:
    print("skip", reason)
