# SPDX-License-Identifier: Apache-2.0
"""What horovod.torch and horovod.tensorflow.keras share."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, cast

from .. import ConfigError, Error, _library
from ..run import AnyRun, Run, current, is_open

__all__ = [
    "Adasum",
    "Average",
    "HorovodInternalError",
    "Max",
    "Min",
    "ProcessSet",
    "Product",
    "Sum",
    "add_process_set",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "elastic",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "is_homogeneous",
    "is_initialized",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rank",
    "remove_process_set",
    "rocm_built",
    "run",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
]

Average, Sum, Adasum = "Average", "Sum", "Adasum"
Min, Max, Product = "Min", "Max", "Product"
HorovodInternalError = Error


def refuse(name: str, advice: str) -> NoReturn:
    raise ConfigError(
        f"{name} of Horovod is not in capstan.horovod: {advice}", "USAGE"
    )


def check_op(op: str, allowed: Sequence[str], of: str) -> None:
    if op == Adasum:
        refuse("Adasum", "take op=hvd.Average, with the rate for it")
    if op not in allowed:
        raise ConfigError(
            f"op of {of} is {op!r}; allowed: {', '.join(allowed)}", "USAGE"
        )


class Session:
    """What this process knows of its run."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.hosts: list[str] = []  # by rank
        self.optimizer: Any = None  # DistributedOptimizer's
        self.tensors: dict[str, Any] = {}  # that were broadcast, by name
        self.joined = False  # some rank is in join(), as of the last step


_session: Session | None = None


def session() -> Session:
    """Of the present run."""
    global _session
    if _session is None or _session.run is not current():
        _session = Session(current())
    return _session


def find_hosts() -> None:
    """Asks once which ranks share a host; all ranks call it, in init()."""
    from .calls import Call, meet  # which imports this

    with current()._preparing():
        session().hosts = meet(Call("init", None, ()), socket.gethostname())


# This process's place


def _ranks_by_host() -> list[list[int]]:
    """In the order of their first ranks."""
    found: dict[str, list[int]] = {}
    for number, host in enumerate(session().hosts):
        found.setdefault(host, []).append(number)
    if not found:
        raise ConfigError("call hvd.init() first", "USAGE")
    return list(found.values())


def rank() -> int:
    return current().rank


def size() -> int:
    return current().size


def local_rank() -> int:
    return current().local_rank


def _own_host() -> list[int]:
    return next(own for own in _ranks_by_host() if rank() in own)


def local_size() -> int:
    """How many ranks this host has."""
    return len(_own_host())


def _of_same_place() -> list[int]:
    """The ranks that have this one's place on their hosts, by host."""
    place = _own_host().index(rank())
    return [own[place] for own in _ranks_by_host() if len(own) > place]


def cross_size() -> int:
    """How many hosts have a rank of this one's local rank."""
    return len(_of_same_place())


def cross_rank() -> int:
    """This host's number among them."""
    return _of_same_place().index(rank())


def is_homogeneous() -> bool:
    """Has each host as many ranks?"""
    return len({len(own) for own in _ranks_by_host()}) == 1


def is_initialized() -> bool:
    return is_open()


def shutdown() -> None:
    """Ends this process's part with success."""
    if is_open():
        current().close()


# What there is


def _has_plugin(name: str) -> bool:
    return (_library.folder() / f"capstan-{name}.so").exists()


def mpi_threads_supported() -> bool:
    return False


def mpi_enabled() -> bool:
    return False


def mpi_built() -> bool:
    return False


def gloo_enabled() -> bool:
    """Collectives are Gloo's."""
    return gloo_built()


def gloo_built() -> bool:
    return _has_plugin("gloo")


def nccl_built() -> bool:
    """Of all-reduce's gradients: no collective of hvd uses it."""
    return _has_plugin("nccl")


def cuda_built() -> bool:
    return _has_plugin("cuda")


def ddl_built() -> bool:
    return False


def ccl_built() -> bool:
    return False


def rocm_built() -> bool:
    return False


# What is not there


class ProcessSet:
    """A set of ranks; collectives take that of all ranks only."""

    def __init__(self, ranks: Sequence[int]) -> None:
        self.ranks: Sequence[int] | None = sorted(ranks)
        self.process_set_id: int | None = None

    def _numbers(self) -> Sequence[int]:
        return range(size()) if self.ranks is None else self.ranks

    def size(self) -> int:
        return len(self._numbers())

    def rank(self) -> int:
        """This process's, within the set."""
        return list(self._numbers()).index(rank())

    def included(self) -> bool:
        """Is this process in the set?"""
        return rank() in self._numbers()


global_process_set = ProcessSet(())
global_process_set.ranks, global_process_set.process_set_id = None, 0


def check_set(process_set: ProcessSet) -> None:
    if process_set is not global_process_set:
        ranks = getattr(process_set, "ranks", process_set)
        refuse(
            f"process_set {ranks}",
            "a collective is of all ranks: leave the argument out, or start a "
            "run of those ranks",
        )


def add_process_set(process_set: ProcessSet | Sequence[int]) -> NoReturn:
    """Is an error: collectives are of all ranks."""
    refuse("add_process_set", "collectives are of all ranks")


def remove_process_set(process_set: ProcessSet) -> bool:
    """False: there is no set that can be removed."""
    return False


_TIMELINE = (
    "set CAPSTAN_TRACE_STEPS=FIRST:LAST, or start the script by capstan local "
    "--trace-steps FIRST:LAST (docs/timeline.md)"
)


def start_timeline(file_path: str, mark_cycles: bool = False) -> NoReturn:
    """Is an error that names what a run has in its place."""
    refuse("start_timeline", _TIMELINE)


def stop_timeline() -> NoReturn:
    """Is an error, as start_timeline() is."""
    refuse("stop_timeline", _TIMELINE)


def run(*arguments: Any, **named: Any) -> NoReturn:
    """Is an error that says how a script is started."""
    refuse(
        "run",
        "start the script by capstan local --workers N -- python SCRIPT, "
        "horovodrun, torchrun, mpirun or srun",
    )


class _Elastic:
    """Each name is an error that says what a run has in its place."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        refuse(
            f"elastic.{name}",
            "init(checkpoint=...) saves the run, and a worker that is started "
            "again goes on with it (docs/running.md)",
        )


elastic = _Elastic()


def begin(
    init: Callable[..., AnyRun],
    comm: Any,
    process_sets: Any,
    keys: dict[str, Any],
) -> AnyRun:
    """INIT joins the run of all ranks, if this process has not."""
    if comm not in (None, []):
        refuse("init(comm=...)", "a run has all ranks: leave comm out")
    if process_sets not in (None, [], "dynamic"):
        refuse("init(process_sets=...)", "collectives are of all ranks")
    if is_open() and not keys:
        return cast(AnyRun, current())
    found = init(**keys)
    found._leave_late(
        "the ranks of a Horovod script begin together, by collectives that the "
        "others have behind them"
    )
    find_hosts()
    return found
