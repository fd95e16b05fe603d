# SPDX-License-Identifier: Apache-2.0
"""The wheel as a user of another machine installs it: check_wheel.py WHEEL

The user is not root, has neither a checkout nor libraries on a path, and installs
into a new environment of Debian's Python (PYTHON: of another one).
"""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from processes import free_port

WHEEL = Path(sys.argv.pop())
PYTHON = os.environ.get("PYTHON", "/usr/bin/python3")
ROOT = os.geteuid() == 0
NOBODY = 65534
UBUNTU = "http://archive.ubuntu.com/ubuntu"
UBUNTU_GLIBC = 39  # 2.39 in Ubuntu 24.04
# Of what manylinux expects of each machine, all that Capstan needs.
MACHINE = re.compile(r"lib(c|m|dl|rt|pthread|resolv|z|stdc\+\+|gcc_s)\.so\.")
NVIDIA = re.compile(r"lib(cuda|cudart|cublas|nccl)\b")
TRAIN = (
    "capstan local --workers 2 --ps {} -- python -m capstan.examples.linear"
)

home = Path()  # the user's folder
site = Path()  # the environment's site-packages


def as_user():
    """Arguments of subprocess: the user's environment without paths."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("CAPSTAN", "PYTHON", "LD_", "VIRTUAL_ENV"))
    }
    path = f"{home}/venv/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    user = {"user": NOBODY, "group": NOBODY, "extra_groups": []}
    return {
        "cwd": home,
        "env": {**kept, "HOME": str(home), "PATH": path},
        **(user if ROOT else {}),
    }


def run(command, code=0, **more):
    """What the user's COMMAND prints; it ends with CODE."""
    done = subprocess.run(
        shlex.split(command),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        **{**as_user(), **more},
    )
    if done.returncode != code:
        raise AssertionError(f"{command}: {done.returncode}\n{done.stdout}")
    return done.stdout


def files(folder):
    return [path for path in sorted(folder.rglob("*")) if path.is_file()]


def setUpModule():
    global home, site
    home = Path(tempfile.mkdtemp(prefix="capstan-wheel-"))
    unittest.addModuleCleanup(shutil.rmtree, home)
    shutil.copy(WHEEL, home)
    if ROOT:
        os.chown(home, NOBODY, NOBODY)
    try:
        run(f"{PYTHON} -m venv venv")
        run(f"venv/bin/pip install --quiet {WHEEL.name}")
    except AssertionError as error:
        sys.exit(f"The wheel, or NumPy from PyPI, is not installed: {error}")
    (site,) = home.glob("venv/lib/python3*/site-packages")


class Wheel(unittest.TestCase):
    def test_its_tag_admits_ubuntu_24_04(self):
        tag = re.fullmatch(
            r"capstan-.+-py3-none-manylinux_2_(\d+)_x86_64\.whl", WHEEL.name
        )
        self.assertIsNotNone(tag, WHEEL.name)
        self.assertLessEqual(int(tag[1]), UBUNTU_GLIBC)

    def test_the_library_of_the_package_is_imported(self):
        found = run(
            "python -c 'import capstan, capstan._library as library;"
            "print(library.capstan._name, capstan.__version__)'"
        )
        library = site / "capstan/lib/libcapstan.so.0"
        self.assertEqual(found, f"{library} {WHEEL.name.split('-')[1]}\n")

    def test_the_machine_provides_only_what_manylinux_has(self):
        elf = [
            path
            for folder in ("capstan", "capstan.libs")
            for path in files(site / folder)
            if path.read_bytes()[:4] == b"\x7fELF"
        ]
        self.assertGreater(len(elf), 20)
        for path in elf:
            needed = re.findall(r"(\S+) => (\S+)", run(f"ldd {path}"))
            for name, found in needed:
                if not NVIDIA.match(name) and not MACHINE.match(name):
                    self.assertIn(site, Path(found).parents, (path, name))

    def test_each_library_in_it_is_listed_with_its_licence(self):
        (licences,) = site.glob("capstan-*.dist-info/licenses")
        self.assertIn("Apache License", (licences / "LICENSE").read_text())
        lines = (licences / "libraries/README").read_text().splitlines()[1:]
        package = {line.split()[0]: line.split()[1] for line in lines}
        listed = set()
        for path in files(site / "capstan.libs"):
            self.assertIsNone(NVIDIA.match(path.name), path)
            name = re.sub(r"-[0-9a-f]{8}\.", ".", path.name, count=1)
            licence = licences / "libraries" / package[name]
            self.assertRegex(licence.read_text(), "(?i)copyright|license")
            listed.add(name)
        self.assertEqual(listed, set(package))

    def test_cuda_is_found_where_pypi_puts_it(self):
        plugin = site / "capstan/lib/capstan-cuda.so"
        if not plugin.exists():
            self.skipTest("built without nvcc")
        line = r"(libcudart\.so\.(\d+)) => (\S+)"
        name, major, _ = re.search(line, run(f"ldd {plugin}")).groups()
        folder = site / f"nvidia/cu{major}/lib"
        folder.mkdir(parents=True)
        self.addCleanup(shutil.rmtree, site / "nvidia")
        shutil.copy(files(site / "capstan.libs")[0], folder / name)
        found = Path(re.search(line, run(f"ldd {plugin}"))[3])
        self.assertEqual(found.resolve(), folder / name)


class Command(unittest.TestCase):
    def test_it_gives_output_and_status_of_the_program(self):
        for arguments, code in (
            ("--version", 0),
            ("info", 0),
            ("ckpt ls 'no such folder'", 1),
        ):
            program = run(f"{site}/capstan/lib/capstan {arguments}", code)
            self.assertEqual(run(f"capstan {arguments}", code), program)

    def test_it_becomes_the_program_and_takes_its_signals(self):
        roles = ("chief", "ps", "worker")
        cluster = {role: [f"localhost:{free_port()}"] for role in roles}
        task = {"cluster": cluster, "task": {"type": "ps", "index": 0}}
        user = as_user()
        user["env"]["TF_CONFIG"] = json.dumps(task)
        ps = subprocess.Popen(
            ["capstan", "run"], stderr=subprocess.PIPE, **user
        )
        self.addCleanup(ps.stderr.close)
        self.addCleanup(ps.wait)
        self.addCleanup(ps.kill)
        self.assertIn(b"ps 0", ps.stderr.readline())
        self.assertEqual(
            os.readlink(f"/proc/{ps.pid}/exe"),
            str(site / "capstan/lib/capstan"),
        )
        ps.send_signal(signal.SIGTERM)
        self.assertEqual(ps.wait(30), 128 + signal.SIGTERM)

    def test_a_closed_pipe_ends_it(self):
        read, write = os.pipe()
        os.close(read)
        with open(write, "w") as pipe:
            help = ["capstan", "--help"]
            done = subprocess.run(help, stdout=pipe, **as_user())
        self.assertEqual(done.returncode, -signal.SIGPIPE)


class Training(unittest.TestCase):
    def expect_trained(self, said):
        ranks = re.findall(r"^\[ *(\S+) +(\S+)\] (\S+)$", said, re.MULTILINE)
        self.assertEqual(len(ranks), 2, said)
        for rank in ranks:
            for value, expected in zip(rank, (2, -3, 1)):
                self.assertAlmostEqual(float(value), expected, 1)

    def test_by_parameter_server(self):
        said = run(TRAIN.format(1))
        self.assertIn("chief: parameter server", said)
        self.expect_trained(said)

    def test_by_all_reduce_with_the_plugin_of_the_package(self):
        said = run(TRAIN.format(0))
        self.assertIn("chief: all-reduce", said)
        self.expect_trained(said)
        gloo = json.loads(run("capstan info --json"))["collectives"][0]
        plugin = site / "capstan/lib/capstan-gloo.so"
        self.assertEqual(gloo["plugin"], str(plugin))

    def test_in_ubuntu_24_04(self):
        """In its root file system, in which the machine's libraries are not."""
        if not ROOT or not shutil.which("debootstrap"):
            self.skipTest("needs root and debootstrap (make deps-all)")
        root = home / "ubuntu"
        try:
            run(
                "debootstrap --variant=minbase --include=python3-venv "
                # The script is named, as older debootstraps lack noble's.
                f"--components=main,universe noble {root} {UBUNTU} gutsy",
                user=0,
            )
        except (AssertionError, subprocess.TimeoutExpired) as error:
            self.skipTest(f"no Ubuntu from its mirror: {str(error)[-300:]}")
        (root / "wheels").mkdir()
        shutil.copy(WHEEL, root / "wheels")
        run(
            "venv/bin/pip download --quiet --only-binary=:all: "
            f"--python-version 3.12 --dest {root}/wheels numpy",
            user=0,
        )
        script = (
            "python3 -m venv venv && PATH=/tmp/venv/bin:$PATH && "
            "pip install --quiet --no-index --find-links /wheels capstan && "
            + TRAIN.format(1)
        )
        said = run(
            f"unshare --mount --pid --fork --root={root} --wd=/tmp "
            f"--mount-proc --setgid {NOBODY} --setuid {NOBODY} "
            f"sh -c '{script}'",
            user=0,
        )
        self.expect_trained(said)


if __name__ == "__main__":
    unittest.main(verbosity=2)
