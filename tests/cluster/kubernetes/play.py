# SPDX-License-Identifier: Apache-2.0
"""Plays a cluster of Kubernetes on this machine, so that Jobs run as written.

Each pod has network, mount, PID, UTS and IPC namespaces of its own, an address,
a root of its own with the volumes that its manifest mounts, the user, the
capabilities and the read-only root of its securityContext, and the names of the
others in /etc/hosts. The kubelet's probes are asked, for liveness and readiness
at their periods, and the controllers' policies decide what an exit code means.
What is not played: resource limits, seccomp, network policies, scheduling, images
(the root has this machine's libraries and the program that is tested), and the
delays of the Job controller.
"""
import ctypes
import os
import signal
import subprocess
import threading
import time
import urllib.error
import urllib.request

import pods as controllers

CLONE_NEWNET = 0x40000000
IMAGE_USER = 10001  # of the image, where the manifest names no user
STARTUP_PERIOD = 0.2  # seconds; the manifests' is longer than a short run
libc = ctypes.CDLL(None, use_errno=True)


def die_with_parent():
    libc.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


class Skip(Exception):
    pass


class Hosts:
    """Network namespaces with the addresses 10.0.0.1, ..."""

    def __init__(self, count):
        self.process = subprocess.Popen(
            ["tests/cluster/net/hosts.sh", str(count)], text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        said = self.process.stdout.readline().split()
        if not said or said[0] != "ready":
            raise Skip(f"no hosts: {' '.join(said[1:]) or 'namespaces'}")
        self.name = said[1]

    def close(self):
        self.process.stdin.close()
        self.process.wait(30)


def quote(text):
    return "'" + text.replace("'", "'\\''") + "'"


def size_in_bytes(quantity):
    units = {"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30}
    return int(quantity[:-2]) * units[quantity[-2:]]


class Container:
    """One life of a pod's container."""

    def __init__(self, pod, node):
        self.pod, self.node = pod, node
        self.lives = node.lives[pod.name] = node.lives.get(pod.name, 0) + 1
        self.log = f"{node.folder}/{pod.name}.{self.lives}.log"
        self.code = self.dead = None
        self.answered = set()  # kinds of probes that were answered as they should be
        self.disrupted = self.reported = False
        script = f"{node.folder}/{pod.name}.sh"
        with open(script, "w") as file:
            file.write(self.script())
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(
                ["ip", "netns", "exec", node.namespace(pod), "unshare",
                 "--mount", "--pid", "--uts", "--ipc", "--fork",
                 "--kill-child", "--propagation", "private", "bash", script],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                preexec_fn=die_with_parent)
        self.prober = threading.Thread(target=self.probe, daemon=True)
        self.prober.start()

    def mounts(self, root):
        """Shell lines that mount the pod's volumes below ROOT."""
        volumes = {each["name"]: each for each in self.pod.spec.get("volumes", [])}
        lines, shm = [], False
        for mount in self.pod.container.get("volumeMounts", []):
            volume, path = volumes[mount["name"]], root + mount["mountPath"]
            lines.append(f"mkdir -p {path}")
            shm = shm or mount["mountPath"] == "/dev/shm"
            if volume.get("emptyDir", {}).get("medium") == "Memory":
                limit = size_in_bytes(volume["emptyDir"]["sizeLimit"])
                lines.append(f"mount -t tmpfs -o size={limit},mode=1777 "
                             f"shm {path}")
                continue
            source, fixed = self.node.volume(self.pod, volume)
            lines.append(f"mount --bind {source} {path}")
            if fixed or mount.get("readOnly"):
                lines.append(f"mount -o remount,bind,ro {path}")
        if not shm:  # what container runtimes give
            lines.append(f"mkdir -p {root}/dev/shm; mount -t tmpfs -o "
                         f"size=64m,mode=1777 shm {root}/dev/shm")
        return lines

    def script(self):
        pod, node = self.pod, self.node
        inside = pod.container.get("securityContext", {})
        outside = pod.spec.get("securityContext", {})
        root = f"{node.folder}/root"
        lines = ["set -e", f"hostname {pod.hostname}", f"mkdir -p {root}",
                 f"mount -t tmpfs -o mode=755 root {root}",
                 f"mkdir -m 1777 {root}/tmp",
                 f"mkdir -p {root}/proc {root}/dev {root}/opt/capstan",
                 f"mount -t proc proc {root}/proc",
                 f"mount -t tmpfs -o mode=755 dev {root}/dev",
                 f"ln -s /proc/self/fd {root}/dev/fd"]
        for device in ("null", "zero", "full", "random", "urandom"):
            lines.append(f"touch {root}/dev/{device}; mount --bind "
                         f"/dev/{device} {root}/dev/{device}")
        for name in ("usr", "etc", "bin", "sbin", "lib", "lib64"):
            if os.path.islink(f"/{name}"):
                lines.append(f"ln -s {os.readlink('/' + name)} {root}/{name}")
            elif os.path.isdir(f"/{name}"):
                lines += [f"mkdir {root}/{name}",
                          f"mount --bind /{name} {root}/{name}",
                          f"mount -o remount,bind,ro {root}/{name}"]
        lines += [f"mount --bind {node.folder}/hosts {root}/etc/hosts",
                  f"mount --bind /dev/null {root}/etc/resolv.conf",
                  f"mount --bind {os.path.dirname(node.program)} "
                  f"{root}/opt/capstan"]
        lines += self.mounts(root)
        if inside.get("readOnlyRootFilesystem"):
            lines.append(f"mount -o remount,ro {root}")
        user = outside.get("runAsUser", IMAGE_USER)
        words = ["exec", "env", "-i", "PATH=/opt/capstan:/usr/sbin:/usr/bin:/bin",
                 f"HOSTNAME={pod.hostname}"]
        words += [f"{name}={value}" for name, value in
                  controllers.environment(pod, node.objects).items()]
        words += ["chroot", root, "setpriv", f"--reuid={user}",
                  f"--regid={outside.get('runAsGroup', user)}", "--clear-groups"]
        if inside.get("allowPrivilegeEscalation") is False:
            words.append("--no-new-privs")
        if "ALL" in inside.get("capabilities", {}).get("drop", []):
            words += ["--inh-caps=-all", "--bounding-set=-all"]
        words += ["--", *controllers.command(pod, node.objects)]
        return "\n".join(lines + [" ".join(map(quote, words)).replace(
            "'exec'", "exec", 1)]) + "\n"

    def kill(self, number):
        """Signals the container's process 1, which ends all others of it. One
        that is not the program yet is killed, as is one that is not made: by
        the end of its parent alone it would live on."""
        try:
            path = f"/proc/{self.process.pid}/task/{self.process.pid}/children"
            with open(path) as file:
                child = int(file.read().split()[0])
            with open(f"/proc/{child}/comm") as file:
                is_program = file.read().strip() == "capstan"
            os.kill(child, number if is_program else signal.SIGKILL)
        except (OSError, IndexError):
            self.process.kill()

    def poll(self):
        if self.code is None and self.process.poll() is not None:
            code = self.process.returncode
            self.code = code if code >= 0 else 128 - code
        return self.code

    def ask(self, probe):
        """An HTTP status, or 0 where nothing answers."""
        get, port = probe["httpGet"], probe["httpGet"]["port"]
        for each in self.pod.container["ports"]:
            if each.get("name") == port:
                port = each["containerPort"]
        url = f"http://{self.node.address(self.pod)}:{port}{get['path']}"
        try:
            with urllib.request.urlopen(
                    url, timeout=probe.get("timeoutSeconds", 1)) as answer:
                return answer.status
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            return 0

    def probe(self):
        """The kubelet's probes, from the pod's network, at their periods."""
        container = self.pod.container
        if "startupProbe" not in container:
            return
        with open(f"/run/netns/{self.node.namespace(self.pod)}") as file:
            if libc.setns(file.fileno(), CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), "setns")
        failures = {}
        while self.process.poll() is None:
            started = "startupProbe" in self.answered
            for kind in ("livenessProbe", "readinessProbe") if started else \
                    ("startupProbe",):
                probe, now = container[kind], time.monotonic()
                due = failures.setdefault(kind, [0, now])
                if due[1] > now:
                    continue
                status = self.ask(probe)
                due[1] = now + (probe.get("periodSeconds", 10) if started
                                else STARTUP_PERIOD)
                if self.process.poll() is None:
                    self.judge(kind, probe, status, due)
            time.sleep(STARTUP_PERIOD if started else 0.01)

    def judge(self, kind, probe, status, due):
        if 200 <= status < 400:
            due[0] = 0
            self.answered.add(kind)
            return
        due[0] += 1
        if due[0] >= probe.get("failureThreshold", 3) and kind != "readinessProbe":
            self.dead = f"{kind}: {status}"
            self.kill(signal.SIGTERM)


class Node:
    """All pods of all Jobs, and what they share."""

    def __init__(self, objects, program, folder, hosts):
        self.objects, self.program, self.folder = objects, program, folder
        self.hosts, self.lives = hosts, {}
        workloads, more = controllers.workloads_of(objects)
        services = [each for each in objects if each["kind"] == "Service"] + more
        self.pods = [pod for each in workloads for pod in each.pods]
        os.makedirs(folder, exist_ok=True)
        with open(f"{folder}/hosts", "w") as file:
            file.write("127.0.0.1 localhost\n")
            for pod in self.pods:
                names = controllers.dns_names(pod, services)
                file.write(f"{self.address(pod)} {' '.join(names)}\n")

    def place(self, pod):
        return self.pods.index(pod)

    def address(self, pod):
        return f"10.0.0.{self.place(pod) + 1}"

    def namespace(self, pod):
        return f"{self.hosts.name}-{self.place(pod)}"

    def write(self, source, texts, mode, pod):
        """The folder with the files of SOURCE, which POD's group may read."""
        path = f"{self.folder}/{source['kind']}-{source['metadata']['name']}"
        if os.path.isdir(path):  # others read it
            return path
        os.makedirs(path)
        for key, text in source[texts].items():
            with open(f"{path}/{key}", "w") as file:
                file.write(text)
            os.chown(file.name, 0,
                     pod.spec.get("securityContext", {}).get("fsGroup", 0))
            os.chmod(file.name, mode)
        return path

    def volume(self, pod, volume):
        """The folder of VOLUME, and whether it is read-only."""
        for key, kind, named, texts in (
                ("configMap", "ConfigMap", "name", "data"),
                ("secret", "Secret", "secretName", "stringData")):
            if key in volume:
                source = controllers.find(self.objects, kind, volume[key][named])
                return self.write(source, texts, volume[key].get(
                    "defaultMode", 0o644), pod), True
        claim = volume.get("persistentVolumeClaim")
        path = f"{self.folder}/claim-{claim['claimName']}" if claim else \
            f"{self.folder}/empty-{pod.name}-{volume['name']}"
        os.makedirs(path, exist_ok=True)
        os.chown(path, 0, pod.spec.get("securityContext", {}).get("fsGroup", 0))
        os.chmod(path, 0o2770 if claim else 0o2777)
        return path, bool(claim and claim.get("readOnly"))


class Run:
    """The Job controller: starts all pods, and follows each until the end."""

    def __init__(self, node):
        self.node, self.now = node, {}
        self.failures, self.said = {}, []
        for pod in node.pods:
            self.start(pod)

    def start(self, pod):
        self.now[pod] = Container(pod, self.node)

    def say(self, text):
        self.said.append(text)
        print(text, flush=True)

    def disrupt(self, name):
        """A drain: the pod is evicted."""
        for pod, container in self.now.items():
            if pod.name == name:
                container.disrupted = True
                container.kill(signal.SIGTERM)

    def is_retried(self, pod, container):
        """Whether a failed pod is started again; else its Job has failed."""
        spec = pod.owner.spec
        for rule in spec.get("podFailurePolicy", {}).get("rules", []):
            codes = rule.get("onExitCodes")
            if codes and codes.get("containerName") == pod.container["name"] \
                    and container.code in codes["values"]:
                return False
            if "onPodConditions" in rule and container.disrupted:
                return True
        limit, key = spec.get("backoffLimit", 6), pod.owner.name
        if "backoffLimitPerIndex" in spec:  # with maxFailedIndexes 0
            limit, key = spec["backoffLimitPerIndex"], pod.name
        self.failures[key] = self.failures.get(key, 0) + 1
        return self.failures[key] <= limit

    def ended(self, pod, container):
        """False where the run has failed for good."""
        container.reported = True
        self.say(f"{pod.name}: ended with {container.code}")
        if container.code == 0:
            return True
        if not self.is_retried(pod, container):
            return False
        self.start(pod)
        return True

    def follow(self, seconds, event=None):
        """Until all pods have ended well. EVENT is called until it returns true."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            event = None if event and event() else event
            for pod, container in list(self.now.items()):
                if container.poll() is None or container.reported:
                    continue
                if container.dead:
                    self.say(f"{pod.name}: {container.dead}")
                    return False
                if not self.ended(pod, container):
                    return False
            if all(each.code == 0 for each in self.now.values()):
                return True
            time.sleep(0.02)
        for pod, container in self.now.items():
            if container.poll() is None:
                self.say(f"{pod.name}: still runs")
        return False

    def close(self):
        for container in self.now.values():
            container.kill(signal.SIGKILL)
            container.process.wait(30)
