# SPDX-License-Identifier: Apache-2.0
"""The files of deploy/docker, read and executed as docker would.

cluster_docker.py files FOLDER: the Dockerfiles are of instructions, files and
  packages that exist, and end as a user who is not root; their context has what
  make would read, to build in FOLDER.
cluster_docker.py compose CAPSTAN: the processes of compose.yaml are the cluster
  that their variables describe.
cluster_docker.py execute DOCKERFILE FOLDER BASE [NAME=VALUE...]: where no engine
  runs, executes the steps as root in copies of BASE, a root file system; the last
  is FOLDER/image, whose settings are in FOLDER/image.json.
"""
import fnmatch
import glob
import json
import os
import re
import shlex
import shutil
import subprocess
import sys

FOLDER = "deploy/docker"
WORDS = {"ARG", "CMD", "COPY", "ENTRYPOINT", "ENV", "FROM", "LABEL", "RUN",
         "USER", "WORKDIR"}


def fail(text):
    sys.exit(f"cluster_docker: {text}")


def instructions(path):
    """(word, {flag: value}, rest) of each instruction."""
    with open(path) as file:
        text = re.sub(r"^\s*#.*\n", "", file.read(), flags=re.M)
    for line in re.sub(r"\\\n\s*", "", text).splitlines():
        if not line.strip():
            continue
        word, _, rest = line.partition(" ")
        if word not in WORDS:
            fail(f"{path}: {word} is no instruction that this knows")
        flags = {}
        while rest.startswith("--"):
            flag, _, rest = rest.partition(" ")
            name, _, value = flag[2:].partition("=")
            flags[name] = value
        yield word, flags, rest.strip()


def is_admitted(path, patterns):
    """A later pattern precedes, and one of a folder is one of all in it."""
    parts = path.split("/")
    above = ["/".join(parts[:i + 1]) for i in range(len(parts))]
    taken = True
    for pattern in patterns:
        if any(fnmatch.fnmatchcase(a, pattern.lstrip("!").rstrip("/")) and
               a.count("/") == pattern.count("/") for a in above):
            taken = pattern.startswith("!")
    return taken


def context():
    """The files that .dockerignore admits."""
    with open(".dockerignore") as file:
        patterns = [line.strip() for line in file
                    if line.strip() and not line.startswith("#")]
    admitted = []
    for folder, folders, files in os.walk("."):
        paths = {name: os.path.normpath(os.path.join(folder, name))
                 for name in folders + files}
        admitted += [paths[name] for name in files
                     if is_admitted(paths[name], patterns)]
        folders[:] = [name for name in folders
                      if is_admitted(paths[name], patterns) or
                      any(pattern.startswith(f"!{paths[name]}/")
                          for pattern in patterns)]
    return admitted


def copy_context(sources, target, files):
    """As COPY does: the content of a folder, or a file."""
    several = len(sources) > 1 or target.endswith("/")
    for source in sources:
        source = os.path.normpath(source)
        taken = [f for f in files
                 if source in (".", f) or f.startswith(source + "/")]
        if not taken:
            fail(f"COPY {source}: no such file in the context")
        for path in taken:
            if path == source:
                to = (os.path.join(target, os.path.basename(path)) if several
                      else target)
            else:
                to = os.path.join(target, os.path.relpath(path, source))
            os.makedirs(os.path.dirname(to), exist_ok=True)
            shutil.copy2(path, to, follow_symlinks=False)


def packages():
    with open("deploy/packages.txt") as file:
        return {line.split()[0]: line.split()[1] for line in file
                if line.strip() and not line.startswith("#")}


def check_scripts(path, rest, copied):
    """RUN starts scripts of the context that have been copied before."""
    for script, argument in re.findall(r"(?:^|&& )(deploy/\S+) ?(\w*)", rest):
        if script not in copied and "." not in copied:
            fail(f"{path}: {script} is not copied before it runs")
        if not os.access(script, os.X_OK):
            fail(f"{path}: {script} cannot be run")
        if script == "deploy/deps.sh" and argument not in packages().values():
            fail(f"{path}: no package of deploy/packages.txt is for {argument}")
    for target in re.findall(r"\bmake (?:-\S+ )*(\w+)", rest):
        rules = ""
        for name in ("Makefile", "deploy/packages.mk"):
            with open(name) as file:
                rules += file.read()
        if not re.search(rf"^{target}:", rules, flags=re.M):
            fail(f"{path}: make has no {target}")


def check_installed(path, rest, taken):
    """The final image has what make deb made, what these packages recommend, and
    what PACKAGES says."""
    with open("deploy/packaging/debian/control") as file:
        recommended = re.findall(r"[\w.-]+", re.search(
            r"^Recommends: (.*)", file.read(), flags=re.M)[1])
    for line in re.findall(r"apt-get -q install ([^&]*)", rest):
        for word in line.split():
            made = word.replace("/tmp/", "/capstan/build/") in taken
            if not made and word not in recommended \
                    and not re.fullmatch(r"-\S+|\$PACKAGES", word):
                fail(f"{path}: {word} is not of the packages that make deb makes "
                     "or recommends")


def check_dockerfile(path, files):
    stages, copied, taken, last = [], [], [], {}
    for word, flags, rest in instructions(path):
        last[word] = rest
        if word == "FROM":
            stages.append(rest.partition(" AS ")[2])
            copied, last = [], {}
        elif word == "COPY" and "from" in flags:
            if flags["from"] not in stages:
                fail(f"{path}: there is no stage {flags['from']}")
            taken += shlex.split(rest)[:-1]
        elif word == "COPY":
            *sources, target = shlex.split(rest)
            copied += sources
            for source in sources:
                if source != "." and source not in files:
                    fail(f"{path}: COPY {source}: no such file in the context")
        elif word == "RUN":
            check_scripts(path, rest, copied)
            check_installed(path, rest, taken)
    with open("core/base/version.h") as file:
        version = re.search(r'VERSION_TEXT "(.*)"', file.read()).group(1)
    if f'image.version="{version}"' not in last["LABEL"]:
        fail(f"{path}: the label says another version than {version}")
    if not re.fullmatch(r"[1-9]\d*:[1-9]\d*", last.get("USER", "")):
        fail(f"{path}: USER is {last.get('USER')}, not numbers beside root's")
    if json.loads(last["ENTRYPOINT"]) != ["capstan"]:
        fail(f"{path}: ENTRYPOINT is {last['ENTRYPOINT']}")
    return last


def check_files(folder):
    files = context()
    leaks = [f for f in files if re.match(r"build|\.git/|deploy/run|.*\.o$", f)]
    if leaks:
        fail(f".dockerignore admits {leaks[0]}")
    settings = []
    for name in "Dockerfile", "Dockerfile.cuda":
        last = check_dockerfile(f"{FOLDER}/{name}", files)
        settings.append([last[word] for word in
                         ("WORKDIR", "ENV", "USER", "ENTRYPOINT", "CMD")])
    if settings[0] != settings[1]:
        fail(f"the Dockerfiles differ: {settings}")
    made = subprocess.run(
        ["make", "-n", "PACKAGES=other", f"BUILD={folder}/build", "all",
         "install", f"DESTDIR={folder}/root"], text=True, capture_output=True,
        env={**os.environ, "MAKEFLAGS": ""}, check=True)
    named = {os.path.normpath(word) for word in made.stdout.split()}
    lacking = [word for word in named - set(files)
               if os.path.isfile(word) and not os.path.isabs(word)]
    if "main.c" not in named or lacking:
        fail(f"the context lacks what make reads: {lacking[:3]}")


def check_compose(capstan):
    import yaml
    with open(f"{FOLDER}/compose.yaml") as file:
        services = yaml.safe_load(file)["services"]
    described = set()
    for name, service in services.items():
        said = subprocess.run([capstan, "cluster"], text=True,
                              capture_output=True, check=True,
                              env={**service["environment"], "PATH": ""})
        own = json.loads(said.stdout)
        described.add(name)
        if name not in (own["role"], f"{own['role']}-{own['index']}"):
            fail(f"{name} is {own['role']} {own['index']}: {said.stdout}")
        hosts = re.findall(r'"([\w-]+):\d+"',
                           service["environment"]["CLUSTER_SPEC"])
        if sorted(hosts) != sorted(services):
            fail(f"{name} knows {hosts}, there are {sorted(services)}")
        if (service["image"] != "capstan" or service["cap_drop"] != ["ALL"] or
                not service["read_only"] or service["command"][0] != "run"):
            fail(f"{name} is not as docs/docker.md says: {service}")
        for word in service["command"]:
            job = re.fullmatch(r"/usr/share/capstan/jobs/(.*)", word)
            if job and not os.path.exists(f"deploy/{job.group(1)}"):
                fail(f"{name}: there is no {word}")


class Stage:
    def __init__(self, root, base):
        subprocess.run(["cp", "-a", base, root], check=True)
        self.root, self.values, self.config = root, {}, {"env": {}}
        self.folder = "/"

    def run(self, command):
        root = os.path.abspath(self.root)
        subprocess.run(["mount", "-t", "proc", "proc", root + "/proc"],
                       check=True)
        try:
            subprocess.run(
                ["chroot", root, "/usr/bin/env", "-i", "-C", self.folder,
                 "PATH=/usr/sbin:/usr/bin:/sbin:/bin",
                 *(f"{n}={v}" for n, v in self.values.items()),
                 "/bin/sh", "-c", command], check=True, stdout=sys.stderr)
        finally:
            subprocess.run(["umount", "-l", root + "/proc"], check=True)


def execute(path, folder, base, arguments):
    stages, stage = {}, None
    given = dict(argument.split("=", 1) for argument in arguments)
    os.makedirs(folder, exist_ok=True)
    for word, flags, rest in instructions(path):
        print(f"{word} {rest}", file=sys.stderr)
        if word == "FROM":
            name = rest.partition(" AS ")[2] or "image"
            stage = stages[name] = Stage(f"{folder}/{name}", base)
            shutil.copy("/etc/resolv.conf", f"{stage.root}/etc/")
        elif word == "ARG":
            name, _, value = rest.partition("=")
            stage.values[name] = given.get(name, value)
        elif word == "ENV":
            for pair in shlex.split(rest):
                name, _, value = pair.partition("=")
                stage.values[name] = stage.config["env"][name] = value
        elif word == "WORKDIR":
            stage.folder = stage.config["folder"] = rest
            os.makedirs(stage.root + rest, exist_ok=True)
        elif word == "COPY":
            *sources, target = shlex.split(rest)
            to = stage.root + os.path.join(stage.folder, target)
            if "from" not in flags:
                copy_context(sources, to, context())
                continue
            for source in sources:
                for path in glob.glob(stages[flags["from"]].root + source):
                    shutil.copy2(path, to)
        elif word == "RUN":
            stage.run(rest)
        elif word != "LABEL":
            stage.config[word.lower()] = (
                json.loads(rest) if rest.startswith("[") else rest)
    with open(f"{folder}/image.json", "w") as file:
        json.dump(stages["image"].config, file)


if sys.argv[1] == "files":
    check_files(sys.argv[2])
elif sys.argv[1] == "compose":
    check_compose(sys.argv[2])
else:
    execute(sys.argv[2], sys.argv[3], sys.argv[4], sys.argv[5:])
