# SPDX-License-Identifier: Apache-2.0
"""The manifests of deploy/kubernetes (cluster_kubernetes_test.c).

check.py BUILD FOLDER rules           each form follows the rules of rules.py
check.py BUILD FOLDER chart           the same of the chart with several values
check.py BUILD FOLDER mutations       each mutation breaks the rule that it names
check.py BUILD FOLDER play            the plain manifests train as written, in play.py; a
                                      ps is evicted meanwhile
check.py BUILD FOLDER secret          the chart with a Secret trains in the same way
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


def log_of(run, name):
    """All that the lives of pod NAME have said."""
    text = ""
    for path in sorted(glob.glob(f"{run.node.folder}/{name}.*.log")):
        with open(path) as file:
            text += file.read()
    return text


def train(objects, event, judge_run):
    """Plays OBJECTS to their end, with an EVENT of the run meanwhile, or None."""
    if os.geteuid():
        raise play.Skip("not root")
    hosts = play.Hosts(sum(len(each.pods) for each in
                           play.controllers.workloads_of(objects)[0]))
    try:
        run = play.Run(play.Node(objects, capstan, f"{folder}/played", hosts))
        try:
            if not run.follow(60, event and (lambda: event(run))):
                fail("did not train")
            judge_run(run)
        finally:
            run.close()
    finally:
        hosts.close()


def train_plainly():
    """The plain Jobs; a ps is evicted once it has trained."""
    lead, evicted = "capstan-chief-0", "capstan-ps-1"

    def evict(run):
        if not re.search(r"epoch 5/", log_of(run, lead)):
            return False
        run.say(f"{evicted}: evicted")
        run.disrupt(evicted)
        return True
    train(manifests.forms()["plain"], evict, lambda run: judge(
        run, log_of(run, lead), {lead: 138, evicted: 143}))


def train_with_secret():
    """The chart, to whose pods a Secret is given as the kubelet gives it."""
    made = f"{folder}/keys"
    subprocess.run([capstan, "keygen", made], check=True, timeout=60)
    with open(made) as file:
        keys = {"apiVersion": "v1", "kind": "Secret", "type": "Opaque",
                "metadata": {"name": "keys"}, "stringData": {"secret": file.read()}}

    def judge_secret(run):
        said = log_of(run, "demo-chief-0")
        if "only processes with the run's secret take part" not in said:
            fail("the chief has no secret:", said)
        joined = set(re.findall(r"chief: (\w+ \d+) joined", said))
        if joined != {"ps 0", "ps 1", "worker 0", "worker 1"}:
            fail("who joined:", joined)
    train(manifests.helm(need_chart(), {"secret": "keys", "set": {"epochs": 3}})
          + [keys], None, judge_secret)


def judge(run, said, ended):
    """What the chief has SAID; how pods have ENDED at first."""
    for pod, container in run.now.items():
        if container.code != 0:
            fail(pod.name, "ended with", container.code)
        probes = {key for key in pod.container if key.endswith("Probe")}
        if container.answered != probes:
            fail(pod.name, "did not answer", probes - container.answered)
    accuracy = re.findall(r"epoch 300/300: test accuracy ([0-9.]+)", said)
    if not accuracy or float(accuracy[-1]) < 0.9:
        fail("has not learned:", accuracy)
    # the claim with checkpoints, and in it a directory of the run's name
    (directory,) = glob.glob(f"{run.node.folder}/claim-*checkpoints/*/")
    subprocess.run([capstan, "ckpt", "verify", directory], check=True,
                   stdout=subprocess.DEVNULL, timeout=60)
    first = {line.split(":")[0]: int(line.split()[-1]) for line in
             reversed(run.said) if ": ended with " in line}
    if not ended.items() <= first.items() or "resum" not in said:
        fail("ended at first with", first, "or has not resumed")
    print(f"{len(run.now)} pods, accuracy {accuracy[-1]}")


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
    elif what == "secret":
        train_with_secret()
    else:
        train_plainly()


try:
    main()
except play.Skip as reason:
    print("skip", reason)
