# SPDX-License-Identifier: Apache-2.0
"""Starts the processes of a run as a legacy cluster does, by TF_CONFIG."""

from __future__ import annotations

import atexit
import collections
import contextlib
import functools
import gc
import importlib
import json
import os
import random
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parent
BUILD = TESTS.parents[1] / "build" / "libcapstan.so"
PROGRAM = Path(os.environ.get("CAPSTAN_LIBRARY", BUILD)).parent / "capstan"
sys.path.insert(0, str(TESTS.parent))  # the package of this checkout
DEADLINE = 120  # seconds of a whole run
SETTINGS = {"PYTHONPATH": str(TESTS.parent), "OMP_NUM_THREADS": "1"}

# A shell's background job ignores SIGINT, and so would all that it starts.
signal.signal(signal.SIGINT, signal.default_int_handler)


_given: collections.deque[int] = collections.deque(maxlen=500)


def free_port() -> int:
    """None of those given last, below the ports that the system gives to
    outgoing connections. Processes that run tests at once take others."""
    first = 12000 + os.getpid() % 20 * 1000
    for _ in range(10000):
        port = random.randrange(first, first + 1000)
        if port in _given:
            continue
        with socket.socket() as found:
            try:
                found.bind(("", port))
                _given.append(port)
                return port
            except OSError:
                continue
    raise OSError(f"no port from {first} on is free")


class Forked:
    """A process that PROGRAM's template forks; the methods are a Popen's.

    A framework takes seconds to import: the template has imported it. A fork
    ends as a script does, with all that its interpreter does then.
    """

    def __init__(
        self, program: str, request: dict[str, Any], output: list[int]
    ):
        """OUTPUT: its standard output and error."""
        ours, theirs = socket.socketpair()
        with ours, theirs:
            message, files = json.dumps(request), [theirs.fileno(), *output]
            socket.send_fds(template(program), [message.encode()], files)
            self._reports = ours.makefile()
        self._pid = int(self._reports.readline())
        self.returncode: int | None = None

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not select.select([self._reports], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("a fork", timeout or 0)
            self.returncode = int(self._reports.readline())
            self._reports.close()
        return self.returncode

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self._pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


@functools.cache
def template(program: str) -> socket.socket:
    """The requests to PROGRAM's template, which ends with this process."""
    requests, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
    with theirs:
        process = subprocess.Popen(
            [sys.executable, str(TESTS / program)],
            env={**os.environ, **SETTINGS},
            stdin=theirs,
            stdout=subprocess.DEVNULL,  # as a file, it is no terminal
        )
    atexit.register(process.wait)
    atexit.register(requests.close)  # before it
    return requests


def fork() -> None:
    """Returns in each process that is asked for."""
    if "torch" in sys.modules:  # its optimisers import this
        importlib.import_module("torch._dynamo")
    gc.freeze()  # their ends need not take apart what was imported
    requests = socket.socket(fileno=sys.stdin.fileno())
    while True:
        message, files, _, _ = socket.recv_fds(requests, 1 << 16, 3)
        if not message:
            os._exit(0)
        if not os.fork():
            break
        for file in files:
            os.close(file)
    report, *output = files
    if process := os.fork():
        os.write(report, f"{process}\n".encode())
        code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        os.write(report, f"{code}\n".encode())
        os._exit(0)
    requests.detach()
    request = json.loads(message)
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    sys.argv[1:] = request["arguments"]
    nothing = os.open(os.devnull, os.O_RDONLY)
    for number, file in enumerate((nothing, *output)):
        os.dup2(file, number)
    for file in nothing, *files:
        os.close(file)


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

    def _start(self, job: str, index: int) -> subprocess.Popen[bytes] | Forked:
        task = {
            "cluster": self._cluster,
            "task": {"type": job, "index": index},
        }
        environment = {"TF_CONFIG": json.dumps(task)}
        command = self._command(job)
        with (
            open(self.path(f"{job}{index}.out"), "wb") as out,
            open(self.path(f"{job}{index}.err"), "wb") as error,
        ):
            if self._is_fork(job):
                request = {
                    "environment": environment,
                    "folder": self.folder.name,
                    "arguments": command[2:],
                }
                output = [out.fileno(), error.fileno()]
                return Forked(self._program, request, output)
            return subprocess.Popen(
                command,
                env={**os.environ, **SETTINGS, **environment},
                cwd=self.folder.name,
                stdout=out,
                stderr=error,
            )

    def _is_fork(self, job: str) -> bool:
        """NumPy is imported at once, so its processes start anew."""
        return job != "ps" and self._program != "numpy_ranks.py"

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

    def return_of(self, process: str, **arguments: Any) -> None:
        """PROCESS is killed, and started again with ARGUMENTS."""
        self.processes[process].kill()
        self.processes[process].wait()
        self.restart(process, **arguments)

    def adopt(self, **arguments: Any) -> None:
        """The chief is killed once it has written a checkpoint, and started
        again; its run has gone on meanwhile."""
        self.wait_for("chief0", "chief: checkpoint ", "err")
        self.return_of("chief0", **arguments)
        self.wait_for("chief0", "has gone on without its chief", "err")

    def wait_for(self, process: str, text: str, to: str = "out") -> None:
        """Waits until PROCESS has printed TEXT, or logged it (TO "err")."""
        end = time.monotonic() + DEADLINE
        last = False  # of its looks, which follows the process's end
        while text not in self.path(f"{process}.{to}").read_text():
            if last:
                raise TimeoutError(
                    f"{process}: no {text}\n{self.error(process)}"
                )
            time.sleep(0.01)
            has_ended = self.processes[process].poll() is not None
            last = has_ended or time.monotonic() > end

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


def values_of(line: str) -> list[Any]:
    """Those of LINE, if it has any. print() writes the end of a line by itself,
    so that those of two ranks may stand in one."""
    decoder, found = json.JSONDecoder(), []
    while line[:1] in ("{", "["):
        value, end = decoder.raw_decode(line)
        found.append(value)
        line = line[end:]
    return found


class Local:
    """`capstan local FLAGS`, or with LAUNCH `capstan launch`, over two ranks of
    PROGRAM's function NAME.

    Each time that a checkpoint is written one of the PS, or without ps rank 1
    (or of those that VICTIMS names), is killed, KILLS times, each once the run
    goes on.
    """

    def __init__(
        self,
        program: str,
        name: str,
        ps: int,
        kills: int,
        sets: list[str],
        flags: tuple[str, ...] = (),
        launch: bool = False,
        victims: str = "",
        **arguments: Any,
    ):
        self.log = ""
        self._left, self._waits = kills, False
        self._victims = victims or (r"ps \d+" if ps else "worker 1")
        self._pids: dict[str, int] = {}
        with tempfile.TemporaryDirectory(prefix="capstan-python-") as folder:
            settings = [f"checkpoint.dir={folder}/checkpoint", *sets]
            command = [str(PROGRAM), "local", "--ps", str(ps)]
            command += ["--workers", "2", "--max-restarts", "1000", *flags]
            for setting in settings:
                command += ["--set", setting]
            ranks = {}
            if launch:
                command = [str(PROGRAM), "launch", "--use_env"]
                command += ["--nproc_per_node", str(2 + ps)]
                command += ["--master_port", str(free_port())]
                ranks["CAPSTAN_SET"] = "".join(f"{one}\n" for one in settings)
                ranks["CAPSTAN_NUM_PS"] = str(ps)
            command += [] if launch else ["--"]
            command += [sys.executable, str(TESTS / program), name]
            self._process = subprocess.Popen(
                [*command, json.dumps(arguments)],
                env={**os.environ, **SETTINGS, **ranks},
                cwd=folder,
                stdout=(out := open(Path(folder) / "out", "a+")),
                stderr=subprocess.PIPE,
                text=True,
            )
            with out, self._process as process:
                each = 5 if ps else 40  # a script imports its modules again
                end = threading.Timer(DEADLINE + each * kills, process.kill)
                end.start()
                for line in process.stderr or ():
                    self._follow(line)
                end.cancel()
                self.status = process.wait()
                out.seek(0)
                self.results = [v for line in out for v in values_of(line)]

    def _follow(self, line: str) -> None:
        self.log += line
        joined = re.search(
            rf"chief: ({self._victims}) joined .* pid (\d+)", line
        )
        if joined:
            self._pids[joined[1]] = int(joined[2])
        if "the run goes on after step" in line:
            self._waits = False
        saved = "chief: checkpoint /" in line
        if saved and self._left and not self._waits:
            names = sorted(self._pids)
            os.kill(self._pids[names[self._left % len(names)]], signal.SIGKILL)
            self._left, self._waits = self._left - 1, True


def led(every_steps: int) -> dict[str, Any]:
    """Keys of a run whose chief only coordinates, and may die."""
    checkpoint = {"dir": "checkpoint", "every_steps": every_steps, "keep": 100}
    return {"chief": "coordinate", "checkpoint": checkpoint}


def check_adopted(test: Any, program: str, name: str, **arguments: Any) -> None:
    """PROGRAM's NAME, whose keys are those of led(), ends with the same results
    whether its chief dies or not."""
    found = []
    for dies in False, True:
        with Cluster(program, name, 2, 2, chief=1, **arguments) as run:
            if dies:
                run.adopt(**arguments)
            status = set(run.wait().values())
            test.assertEqual(status, {0}, run.error("chief0"))
            found.append([run.results(f"worker{rank}") for rank in range(2)])
    test.assertTrue(all(found[0]))
    test.assertEqual(found[0], found[1])


def check_complete(test: Any, program: str, ps: int, **arguments: Any) -> None:
    """Starts complete() of PROGRAM, whose run ends with step 6 and whose loop
    does not, three times: neither step nor checkpoint follows, and a start
    that finds the run complete ends with its first push or step."""
    with tempfile.TemporaryDirectory(prefix="capstan-python-") as folder:
        for steps in 6, 0, 0:
            cluster = Cluster(
                program, "complete", ps, 2, checkpoint=folder, **arguments
            )
            with test.subTest(ps=ps, **arguments), cluster as run:
                found = set(run.wait().values())
                test.assertEqual(found, {0}, run.error("worker1"))
                saved = [path.name for path in Path(folder).glob("step-*")]
                test.assertEqual([int(name[5:]) for name in saved], [6])
                for rank in "worker0", "worker1":
                    told = run.error(rank).count("is complete with step 6")
                    test.assertEqual(told, 1, run.error(rank))
                    printed = run.path(f"{rank}.out").read_text()
                    test.assertEqual(printed.count("a step"), steps)
                    test.assertNotIn("after the loop", printed)


def main(functions: dict[str, Any]) -> None:
    """In a process of the cluster: calls the function of its command.

    Without a command it is a template.
    """
    if not sys.argv[1:]:
        fork()
    if "device" in sys.modules:
        sys.modules["device"].choose(sys.argv[1])
    functions[sys.argv[1]](**json.loads(sys.argv[2]))
