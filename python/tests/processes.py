# SPDX-License-Identifier: Apache-2.0
"""Starts the processes of a run as a legacy cluster does, by TF_CONFIG."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parent
BUILD = TESTS.parents[1] / "build" / "libcapstan.so"
PROGRAM = Path(os.environ.get("CAPSTAN_LIBRARY", BUILD)).parent / "capstan"
sys.path.insert(0, str(TESTS.parent))  # the package of this checkout
DEADLINE = 120  # seconds of a whole run

# A shell's background job ignores SIGINT, and so would all that it starts.
signal.signal(signal.SIGINT, signal.default_int_handler)


def free_port() -> int:
    """Below the ports that the system gives to outgoing connections."""
    while True:
        port = random.randrange(12000, 32000)
        with socket.socket() as found:
            try:
                found.bind(("", port))
                return port
            except OSError:
                continue


class Cluster:
    """PROGRAM's function NAME in the roles of a cluster."""

    def __init__(
        self,
        program: str,
        name: str,
        ps: int,
        workers: int,
        chief: int = 0,
        evaluator: int = 0,
        **arguments: Any,
    ):
        self.folder = tempfile.TemporaryDirectory(prefix="capstan-python-")
        self._program, self._name = program, name
        self._arguments = arguments
        jobs = {"chief": chief, "ps": ps, "worker": workers}
        jobs["evaluator"] = evaluator
        self._cluster = {
            job: [f"localhost:{free_port()}" for _ in range(count)]
            for job, count in jobs.items()
            if count
        }
        self.processes = {
            f"{job}{i}": self._start(job, i)
            for job, count in jobs.items()
            for i in range(count)
        }

    def _start(self, job: str, index: int) -> subprocess.Popen[bytes]:
        task = {
            "cluster": self._cluster,
            "task": {"type": job, "index": index},
        }
        environment = {
            **os.environ,
            "TF_CONFIG": json.dumps(task),
            "PYTHONPATH": str(TESTS.parent),
            "OMP_NUM_THREADS": "1",
        }
        with (
            open(self.path(f"{job}{index}.out"), "wb") as out,
            open(self.path(f"{job}{index}.err"), "wb") as error,
        ):
            return subprocess.Popen(
                self._command(job),
                env=environment,
                cwd=self.folder.name,
                stdout=out,
                stderr=error,
            )

    def _command(self, job: str) -> list[str]:
        """A ps is the program but in test_numpy.py: it starts faster."""
        if job == "ps" and self._program != "numpy_ranks.py":
            return [str(PROGRAM), "run"]
        return [
            sys.executable,
            str(TESTS / self._program),
            self._name,
            json.dumps(self._arguments),
        ]

    def restart(self, process: str, **arguments: Any) -> None:
        """Starts PROCESS again, with other arguments."""
        self._arguments = arguments
        job, index = process[:-1], int(process[-1])
        self.processes[process] = self._start(job, index)

    def path(self, name: str) -> Path:
        return Path(self.folder.name) / name

    def error(self, process: str) -> str:
        """What PROCESS wrote to standard error."""
        return self.path(f"{process}.err").read_text()

    def result(self, process: str) -> Any:
        """The last line of PROCESS's standard output, JSON."""
        lines = self.path(f"{process}.out").read_text().splitlines()
        return json.loads(lines[-1])

    def results(self, process: str) -> list[Any]:
        """The lines of PROCESS's standard output that are JSON."""
        lines = self.path(f"{process}.out").read_text().splitlines()
        return [json.loads(line) for line in lines if line[:1] in "{["]

    def wait_for(self, process: str, text: str) -> None:
        """Waits until PROCESS has printed TEXT."""
        end = time.monotonic() + DEADLINE
        while text not in self.path(f"{process}.out").read_text():
            if (
                time.monotonic() > end
                or self.processes[process].poll() is not None
            ):
                raise TimeoutError(
                    f"{process}: no {text}\n{self.error(process)}"
                )
            time.sleep(0.01)

    def wait(self) -> dict[str, int]:
        """The exit status of each process; a process that hangs is killed."""
        end = time.monotonic() + DEADLINE
        for process in self.processes.values():
            try:
                process.wait(max(0.0, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        return {name: p.returncode for name, p in self.processes.items()}

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *error: Any) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()
        self.folder.cleanup()


def main(functions: dict[str, Any]) -> None:
    """In a process of the cluster: calls the function of its command."""
    functions[sys.argv[1]](**json.loads(sys.argv[2]))
