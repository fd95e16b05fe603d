#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""deploy/prometheus against Prometheus itself, for `make check-metrics`.

check_metrics.py BUILD: promtool judges the configurations, the alerts and their cases
(alerts_test.yml), and the page of each process of the runs below. A Prometheus scrapes
these runs and answers every expression of the Grafana board and every alert. Then a
trainer is stopped and killed, and the alerts that are due are.

77: Prometheus or the data of the runs is not on this machine. Grafana is not asked.
"""
import contextlib
import itertools
import json
import math
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request

BUILD = os.path.abspath(sys.argv[1])
CAPSTAN = os.path.join(BUILD, "capstan")
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
DEPLOY = os.path.join(ROOT, "deploy", "prometheus")
CASES = os.path.join(ROOT, "tests", "metrics", "alerts_test.yml")
LIMIT = 120  # seconds until what is awaited has come
failures = []


def check(holds, text):
    print("ok:" if holds else "FAILED:", text, flush=True)
    if not holds:
        failures.append(text)


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def write(path, text):
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def get(url):
    with urllib.request.urlopen(url, timeout=10) as answer:
        return answer.read().decode()


def wait_for(what, condition):
    """The first true value of CONDITION(), which may fail meanwhile."""
    end = time.monotonic() + LIMIT
    while time.monotonic() < end:
        with contextlib.suppress(OSError, urllib.error.URLError):
            found = condition()
            if found:
                return found
        time.sleep(0.3)
    sys.exit(f"check_metrics: not within {LIMIT} s: {what}")


def promtool(*arguments, text=None):
    """(exit code, output, errors)"""
    done = subprocess.run(["promtool", *arguments], input=text, text=True,
                          capture_output=True)
    return done.returncode, done.stdout.strip(), done.stderr.strip()


def free_ports(count, given=itertools.count(23000, 10)):
    """The first of COUNT (up to 10) ports in a row that nobody has, nor was given."""
    for first in itertools.takewhile(lambda port: port < 32000, given):
        with contextlib.ExitStack() as stack:
            with contextlib.suppress(OSError):
                for port in range(first, first + count):
                    one = stack.enter_context(socket.socket())
                    one.bind(("127.0.0.1", port))
                return first
    sys.exit("check_metrics: no free ports")


class Run:
    """A `capstan local` with a port for each process."""

    def __init__(self, folder, name, roles, *words, capstan=CAPSTAN, **variables):
        self.name, self.roles = name, roles
        self.port = free_ports(len(roles))
        self.folder = os.path.join(folder, name)
        os.mkdir(self.folder)
        with open(os.path.join(self.folder, "log"), "w", encoding="utf-8") as log:
            self.process = subprocess.Popen(
                [capstan, "local", "--metrics-port", str(self.port), *words],
                cwd=self.folder, stdout=log, stderr=log, start_new_session=True,
                env=os.environ | variables)

    def url(self, i, path):
        return f"http://127.0.0.1:{self.port + i}{path}"

    def status(self, i):
        return json.loads(get(self.url(i, "/status")))

    def wait_for_steps(self, steps):
        def taken():
            if self.process.poll() is not None:
                sys.exit(f"check_metrics: {self.name}: ended with "
                         f"{self.process.returncode}: "
                         + read(os.path.join(self.folder, "log"))[-2000:])
            return self.status(0)["step"] >= steps
        wait_for(f"step {steps} of {self.name}", taken)

    def targets(self):
        return {"targets": [f"127.0.0.1:{self.port + i}"
                            for i in range(len(self.roles))],
                "labels": {"run": self.name}}

    def check_pages(self):
        for i, role in enumerate(self.roles):
            page = get(self.url(i, "/metrics"))
            code, _, said = promtool("check", "metrics", text=page)
            check(code == 0 and not said and "capstan_" in page,
                  f"promtool check metrics: {self.name}, {role} {said}")

    def sample(self, i, name):
        page = get(self.url(i, "/metrics"))
        return float(re.search(rf"^{name}\{{[^}}]*\}} (.*)$", page, re.M)[1])

    def check_bytes(self):
        """A worker sends its gradients and gets the weights in each step, and
        headers beside them."""
        layers = JOB["model"]["layers"]
        step = 4 * sum((a + 1) * b for a, b in zip(layers, layers[1:]))
        names = ["capstan_sent_bytes_total", "capstan_received_bytes_total"]
        i = self.roles.index("worker 0")
        before = [self.sample(i, name) for name in names + ["capstan_steps_total"]]
        time.sleep(3)
        after = [self.sample(i, name) for name in names + ["capstan_steps_total"]]
        sent, got, steps = (b - a for a, b in zip(before, after))
        for name, moved in zip(names, (sent, got)):
            check(0.97 * step <= moved / steps <= 1.1 * step,
                  f"{name}: {moved / steps:.0f} a step, {step} of weights")

    def end(self):
        """SIGTERM: a checkpoint, and 143."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(LIMIT)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait()


class Prometheus:
    """A server of its own, with the deployed configuration. It looks each second."""

    def __init__(self, folder, first_port):
        self.folder = os.path.join(folder, "prometheus")
        os.makedirs(os.path.join(self.folder, "runs"))
        self.port = free_ports(1)
        config = read(os.path.join(DEPLOY, "prometheus.yml"))
        config = re.sub(r"_interval: 5s", "_interval: 1s", config)
        for i in range(5):
            config = config.replace(f"127.0.0.1:{2290 + i}",
                                    f"127.0.0.1:{first_port + i}")
        write(os.path.join(self.folder, "prometheus.yml"), config)
        shutil.copy(os.path.join(DEPLOY, "alerts.yml"), self.folder)
        with open(os.path.join(self.folder, "log"), "w", encoding="utf-8") as log:
            self.process = subprocess.Popen(
                ["prometheus", "--config.file=prometheus.yml",
                 "--storage.tsdb.path=data",
                 f"--web.listen-address=127.0.0.1:{self.port}"],
                cwd=self.folder, stdout=log, stderr=log)
        wait_for("Prometheus answers",
                 lambda: get(f"http://127.0.0.1:{self.port}/-/ready"))

    def watch(self, run):
        write(self.file_of(run), json.dumps([run.targets()]))

    def forget(self, run):
        with contextlib.suppress(FileNotFoundError):
            os.remove(self.file_of(run))

    def file_of(self, run):
        return os.path.join(self.folder, "runs", f"{run.name}.json")

    def ask(self, path, **values):
        """The data of the API's answer, or the text of its error."""
        url = (f"http://127.0.0.1:{self.port}/api/v1/{path}?"
               + urllib.parse.urlencode(values))
        try:
            return json.loads(get(url))["data"]
        except urllib.error.HTTPError as error:
            return json.loads(error.read())["error"]

    def query(self, expression):
        answer = self.ask("query", query=expression)
        return answer if isinstance(answer, str) else answer["result"]

    def alerts(self):
        """(alert, run) of those whose condition holds."""
        return {(one["labels"]["alertname"], one["labels"].get("run"))
                for one in self.ask("alerts")["alerts"]}

    def end(self):
        self.process.terminate()
        self.process.wait()


def check_files(folder):
    """What promtool says of the files, and that the alerts' pages are there."""
    alerts = os.path.join(DEPLOY, "alerts.yml")
    for words in (["check", "rules", alerts], ["test", "rules", CASES],
                  ["check", "config", os.path.join(DEPLOY, "prometheus.yml")]):
        code, output, said = promtool(*words)
        check(code == 0, f"promtool {' '.join(words[:2])}"
              + (f": {output} {said}" if code else ""))
    names = re.findall(r"- alert: (\w+)", read(alerts))
    for name in names:
        check(f"alertname: {name}\n" in read(CASES), f"{name} has a case")
    for kind in ("for", "severity", "summary", "action"):
        count = len(re.findall(rf"^ +(labels: {{)?{kind}:", read(alerts), re.M))
        check(count == len(names), f"each alert has {kind}")
    for page in re.findall(r"docs/[\w.-]+", read(alerts)):
        check(os.path.exists(os.path.join(ROOT, page)), f"{page} is there")
    check(len(re.findall(r"action:.*docs/[\w-]+\.md", read(alerts))) == len(names),
          "each alert names its page")
    check_kubernetes(folder)


# Labels of pods as Prometheus finds them; the run that they are of, or None.
PODS = [
    ({"pod_label_app_kubernetes_io_name": "capstan",
      "pod_label_app_kubernetes_io_instance": "demo",
      "pod_container_port_name": "health", "pod_phase": "Running",
      "pod_name": "demo-ps-0"}, "ml/demo"),
    ({"pod_label_app_kubernetes_io_name": "capstan",
      "pod_label_jobset_sigs_k8s_io_jobset_name": "set",
      "pod_container_port_name": "health", "pod_phase": "Running",
      "pod_name": "set-ps-0"}, "ml/set"),
    ({"pod_label_app_kubernetes_io_name": "capstan",
      "pod_label_training_kubeflow_org_job_name": "tf",
      "pod_container_port_name": "health", "pod_phase": "Running",
      "pod_name": "tf-ps-0"}, "ml/tf"),
    ({"pod_label_app_kubernetes_io_name": "capstan",
      "pod_container_port_name": "capstan", "pod_phase": "Running"}, None),
    ({"pod_label_app_kubernetes_io_name": "capstan",
      "pod_container_port_name": "health", "pod_phase": "Succeeded"}, None),
    ({"pod_label_app_kubernetes_io_name": "other",
      "pod_container_port_name": "health", "pod_phase": "Running"}, None),
]


def check_kubernetes(folder):
    """Debian's Prometheus does not know pods: a file describes some."""
    config = read(os.path.join(DEPLOY, "prometheus-kubernetes.yml"))
    config, count = re.subn(r"kubernetes_sd_configs:\n( *)- role: pod",
                            r"file_sd_configs:\n\1- files: [pods.json]", config)
    check(count == 1, "prometheus-kubernetes.yml looks for pods")
    path = os.path.join(folder, "kubernetes.yml")
    write(path, config)
    shutil.copy(os.path.join(DEPLOY, "alerts.yml"), folder)
    pods = [{"targets": [f"10.0.0.{i}:2290"],
             "labels": {"__meta_kubernetes_namespace": "ml"} | {
                 f"__meta_kubernetes_{key}": value for key, value in labels.items()}}
            for i, (labels, _) in enumerate(PODS)]
    write(os.path.join(folder, "pods.json"), json.dumps(pods))
    code, _, said = promtool("check", "config", path)
    check(code == 0, f"promtool check config: pods {said if code else ''}")
    code, output, said = promtool("check", "service-discovery", "--timeout=2s", path,
                                  "capstan-pods")
    found = {one["discoveredLabels"]["__address__"]: one["labels"] or {}
             for one in json.loads(output)} if code == 0 else {}
    for i, (labels, run) in enumerate(PODS):
        seen = found.get(f"10.0.0.{i}:2290", {})
        check(found and seen.get("run") == run
              and seen.get("pod") == (labels["pod_name"] if run else None),
              f"pod {i} is of {run}: {seen}")


JOB = {
    "model": {"type": "mlp", "layers": [4, 128, 128, 3], "activation": "relu"},
    "data": {"format": "csv", "train": "points.csv", "test": "points.csv",
             "header": True, "shuffle": True,
             "dir": os.path.join(ROOT, "deploy", "kubernetes", "common")},
    "optimizer": {"type": "Adam", "params": {"lr": 0.01}},
    "train_micro_batch_size_per_gpu": 10, "seed": 1, "epochs": 1000000,
    "checkpoint": {"dir": "checkpoint", "every_seconds": 3},
}
CLICKS = {
    "model": {"type": "deepfm", "features": ["user", "item"], "dim": 8,
              "hidden": [16]},
    "features": {"user": {"type": "hash_bucket"}, "item": {"type": "hash_bucket"}},
    "data": {"format": "csv", "train": "clicks.csv", "test": "clicks.csv",
             "header": True, "label": "label", "shuffle": True},
    "optimizer": {"type": "Adagrad", "params": {"lr": 0.1}},
    "train_micro_batch_size_per_gpu": 32, "seed": 1, "epochs": 1000000,
}
LIBRARY = """
from capstan.examples import linear
linear.STEPS = 10 ** 9
linear.main()
"""


def python_with_numpy():
    for python in (os.path.join(BUILD, "python", "bin", "python"), "python3"):
        with contextlib.suppress(OSError):
            if not subprocess.run([python, "-c", "import numpy"],
                                  capture_output=True).returncode:
                return python
    return None


def kinds(folder):
    """(name, roles, words, variables) of each run. Each has to be ended."""
    write(os.path.join(folder, "job.json"), json.dumps(JOB))
    write(os.path.join(folder, "clicks.json"), json.dumps(CLICKS))
    write(os.path.join(folder, "clicks.csv"), "label,user,item\n" + "".join(
        f"{(7 * i + i // 9) % 2},u{7 * i % 90},i{i // 9 % 70}\n" for i in range(5000)))
    job, clicks = (os.path.join(folder, name) for name in ("job.json", "clicks.json"))
    workers = ["worker 0", "worker 1"]
    yield ("local", ["chief", "ps 0", "ps 1"] + workers,  # a worker is killed
           ["--ps", "2", "--workers", "2", "--max-restarts", "0", job], {})
    yield ("stale", ["chief", "ps 0"] + workers,
           ["--ps", "1", "--workers", "2", "--link-gbits", "10",
            "--set", "strategy.staleness=4", job], {})
    yield ("allreduce", ["chief"] + workers,
           ["--ps", "0", "--workers", "2", "--set", "strategy.type=allreduce", job],
           {})
    yield ("fp16", ["chief", "ps 0"] + workers,
           ["--ps", "1", "--workers", "2", "--set", "fp16.enabled=true", job], {})
    yield ("clicks", ["chief", "ps 0", "ps 1"] + workers,
           ["--ps", "2", "--workers", "2", clicks], {})
    fake = os.path.join(BUILD, "fake")
    yield ("gpu", ["chief", "ps 0"] + workers,
           ["--ps", "1", "--workers", "2", "--set", "device=cuda", job],
           {"capstan": os.path.join(fake, "capstan"), "LD_LIBRARY_PATH": fake})
    python = python_with_numpy()
    if python:
        yield ("library", ["worker 0", "worker 1", "ps 0"],
               ["--ps", "1", "--workers", "2", "--", python, "-c", LIBRARY],
               {"PYTHONPATH": os.path.join(ROOT, "python"),
                "CAPSTAN_LIBRARY": os.path.join(BUILD, "libcapstan.so")})
    else:
        print("no python3-numpy: the library's processes are left out")


def expressions():
    """Of the board: {expression: title of its panel}."""
    board = json.loads(read(os.path.join(DEPLOY, "capstan.json")))
    for variable in board["templating"]["list"][1:]:
        check(variable["query"]["query"] == "label_values(capstan_steps_total, run)",
              "the board's runs are those that have steps")
    return {target["expr"].replace("$run", ".*"): panel["title"]
            for panel in board["panels"] for target in panel["targets"]}


def check_expressions(server, asked, found, name):
    """Adds to FOUND what is not empty."""
    for expression, title in asked.items():
        result = server.query(expression)
        if isinstance(result, str):
            check(False, f"{title}: {expression}: {result}")
        elif any(not math.isnan(float(one["value"][1])) for one in result):
            found.add(expression)
    groups = server.ask("rules")["groups"]
    for rule in groups[0]["rules"]:
        check(rule["health"] == "ok" and rule["alerts"] == [],
              f"{name}: {rule['name']} is {rule['health']}, {rule['state']} "
              f"{rule.get('lastError', '')}"
              + "".join(str(one["labels"]) for one in rule["alerts"]))


def record(server, seconds=60):
    """{series: values}, one each second, of what is scraped now."""
    now = time.time()
    answer = server.ask("query_range", query='{__name__=~"capstan_.*|up",run!=""}',
                        start=now - seconds, end=now, step=1)
    rows = {}
    for one in answer["result"]:
        labels = dict(one["metric"])
        name = labels.pop("__name__")
        values = dict((round(at - now + seconds), value)
                      for at, value in one["values"])
        if labels.get("run") == "local":
            key = name + "{" + ",".join(f'{k}="{v}"' for k, v in labels.items()) + "}"
            rows[key] = " ".join(values.get(i, "_") for i in range(seconds + 1))
    return rows


def check_recorded(folder, rows):
    """What the run said in a second stands for a minute: no alert is due."""
    alerts = os.path.join(DEPLOY, "alerts.yml")
    names = re.findall(r"- alert: (\w+)", read(alerts))
    path = os.path.join(folder, "recorded.yml")
    write(path, json.dumps({
        "rule_files": [alerts], "evaluation_interval": "30s",
        "tests": [{"interval": "30s",
                   "input_series": [{"series": key, "values": values}
                                    for key, values in rows.items()],
                   "alert_rule_test": [{"alertname": name, "eval_time": at}
                                       for name in names
                                       for at in ("5m", "10m", "20m", "29m")]}]}))
    code, output, said = promtool("test", "rules", path)
    check(code == 0 and len(rows) > 20,
          f"no alert is due in {len(rows)} series of a run {output if code else ''}")


def check_loss_of_a_trainer(server, run):
    """A stopped worker is silent, a killed one is gone."""
    last = len(run.roles) - 1
    worker = run.status(last)["pid"]
    os.kill(worker, signal.SIGSTOP)
    wait_for("CapstanTrainerSilent",
             lambda: ("CapstanTrainerSilent", run.name) in server.alerts())
    check(True, "a stopped worker is silent")
    os.kill(worker, signal.SIGKILL)
    for name in ("CapstanTrainerGone", "CapstanRoundsWithoutTrainer",
                 "CapstanProcessDown"):
        wait_for(name, lambda: (name, run.name) in server.alerts())
        check(True, f"a killed worker: {name}")


def check_run(server, run, asked, found):
    run.wait_for_steps(200)
    if run.name != "local":
        server.watch(run)
    values = 'count(capstan_steps_total{run="%s"})' % run.name
    wait_for(f"Prometheus sees {run.name}", lambda: server.query(values))
    time.sleep(6)
    run.check_pages()
    check_expressions(server, asked, found, run.name)


def main():
    with tempfile.TemporaryDirectory(prefix="check-metrics-") as folder:
        check_files(folder)
        asked, found, server, run = expressions(), set(), None, None
        try:
            for name, roles, words, variables in kinds(folder):
                run = Run(folder, name, roles, *words, **variables)
                server = server or Prometheus(folder, run.port)
                check_run(server, run, asked, found)
                if name == "local":
                    run.check_bytes()
                    time.sleep(20)
                    check_recorded(folder, record(server))
                    check_loss_of_a_trainer(server, run)
                run.end()
                server.forget(run)
        finally:
            if run:
                run.end()
            if server:
                server.end()
        for expression, title in asked.items():
            if expression not in found and "capstan_gpu_" in expression:
                print(f"no run has GPU figures: {title}: {expression}")
            else:
                check(expression in found, f"{title}: {expression} has a result")


if __name__ == "__main__":
    for program in ("prometheus", "promtool"):
        if not shutil.which(program):
            print(f"check_metrics: no {program} here: apt-get install prometheus",
                  file=sys.stderr)
            sys.exit(77)
    main()
    sys.exit(f"{len(failures)} failed" if failures else 0)
