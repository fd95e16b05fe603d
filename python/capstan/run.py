# SPDX-License-Identifier: Apache-2.0
"""One process's part in a run."""

from __future__ import annotations

import contextlib
import ctypes
import enum
import os
import pickle
import random
import sys
import threading
from array import array as packed
from collections.abc import Callable, Iterator, Mapping, Sequence
from ctypes import byref
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeVar

import numpy as np

from . import _library, alone, process_hooks, tables
from ._library import capstan as _c
from .errors import ConfigError, Error, error_of
from .overrides import described, overrides

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .job_keys import JobKeys

# The names of what a rank keeps: its own, and what is alike on all ranks. With
# staleness the latter is rank 0's, and other ranks' are of the third name.
_KEPT, _SHARED, _OTHERS = b"python", b"shared", b"others"
_TURN = 0.1  # seconds of a wait, after which Python's signal handlers run

# The launchers' variables (docs/cluster.md): another package that finds them
# would start a data parallelism of its own.
_RANK_VARIABLES = [
    "TF_CONFIG",
    "CLUSTER_SPEC",
    "JOB_NAME",
    "TASK_INDEX",
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "NODE_RANK",
    "GROUP_RANK",
    "GROUP_WORLD_SIZE",
    "ROLE_RANK",
    "ROLE_WORLD_SIZE",
    "ROLE_NAME",
    "MASTER_ADDR",
    "MASTER_PORT",
    "SLURM_PROCID",
    "SLURM_LOCALID",
    "SLURM_NODEID",
    "SLURM_NTASKS",
    "SLURM_STEP_NUM_TASKS",
    "SLURM_STEP_TASKS_PER_NODE",
    "MPI_LOCALRANKID",
    "MPI_LOCALNRANKS",
]
_CLUSTER_VARIABLES = "TF_CONFIG", "CLUSTER_SPEC"
_RANK_PREFIXES = ("OMPI_COMM_WORLD_", "PMI_", "PMIX_", "TORCHELASTIC_")


class Contribution(enum.IntEnum):
    """What a push brings (enum capstan_contribution)."""

    FULL = 0
    ZERO = 1
    EMPTY = 2
    VOID = 3


class Outcome(enum.IntEnum):
    """What follows a step (enum capstan_outcome)."""

    GOES_ON = _library.GOES_ON
    ENDS = _library.ENDS
    REWOUND = _library.REWOUND


FULL, ZERO, EMPTY, VOID = Contribution
GOES_ON, ENDS, REWOUND = Outcome


class Position(NamedTuple):
    """Where a run is."""

    step: int  # steps that the run has completed
    total: int | None  # the run ends at this step; None: with its trainers
    resumed: bool  # it continues a checkpoint, or was joined while it ran
    epoch: int  # number of the present epoch, from 0
    epoch_step: int  # steps completed in it
    updates: int  # steps without those pushed as VOID


class Run:
    """One process's part in a run; init() makes it."""

    _hint = "call run.start()"

    def __init__(self, handle: ctypes.c_void_p, log: bool):
        self.rank = self.local_rank = 0
        self.size = 1
        self.is_stale = False  # strategy.staleness is not 0
        self._is_backed = False  # strategy.backup_workers is not 0
        self.ended = False  # no step follows
        self._started = False
        self._collected = 0  # collectives that it has called
        self._prepares = False  # by the calls of now
        self.logs = log
        self.error: Error | None = None  # the end of the run, if it failed
        self._open: ctypes.c_void_p | None = handle
        # Another thread may be in report() when this one ends the run.
        self._reporting = threading.RLock()
        self._end_watch: Callable[[], None] = lambda: None
        self._others: alone.Others | None = None
        self._closed_because = "the run is closed"
        self._names: list[str] = []
        self._tables: dict[str, tables.Table] = {}  # by name
        self._values: list[tuple[Any, Any]] = []  # with means: kept alive
        self._kept: tuple[Any, ...] | None = None  # what keep() saves
        self._shared: Any = None  # the lowest rank's is saved
        self._kept_at = -1  # the count of steps when it was saved last,
        self._asked_at = -1  # and when it was asked whether it is due
        self._count = 0  # of this process's steps
        self._step = 0  # of the run, the last that this process knows,
        self._missed = 0  # and those that closed without this rank: of them
        self._behind = 0  # in the epoch that comes next
        self._joined = False  # after other ranks had begun
        self._rewound = False  # and the loop does not know yet
        self._is_back = False  # the last step has said so
        self._returns = 0  # how often one has
        self._rewinds = False  # what the run knows: REWOUND is followed
        self._meets_in_steps = False  # by collectives
        self._keeps = False  # keep() was called,
        self._follows = False  # of a script that follows REWOUND itself
        self._loops: set[str] = set()  # those under way: steps, epochs, shard
        self._complete_epochs = 0  # of loops of this process
        self._located = False  # the script knows where a resumed run is
        self._pushed: dict[int, Any] = {}  # number: gradient, until the wait

    # Handle and results

    @property
    def is_closed(self) -> bool:
        return self._open is None

    @property
    def _handle(self) -> ctypes.c_void_p:
        if self._open is None:
            raise ConfigError(self._closed_because, "USAGE")
        return self._open

    def _fail(self, result: int) -> NoReturn:
        text = _c.capstan_error(self._handle).decode(errors="replace")
        code = _c.capstan_error_name(self._handle).decode()
        self.error = error_of(result, code, text)
        self.ended = True
        raise self.error

    def _check(self, result: int) -> None:
        if result:
            self._fail(result)

    def _await(self, function: Any, *arguments: Any) -> None:
        while result := function(self._handle, *arguments, _TURN):
            if result != _library.AGAIN:
                self._fail(result)

    def _join(self) -> None:
        self._await(_c.capstan_join)
        self.rank = _c.capstan_rank(self._handle)
        self.size = _c.capstan_size(self._handle)
        self.local_rank = _c.capstan_local_rank(self._handle)
        self.is_stale = _c.capstan_staleness(self._handle) > 0
        self._is_backed = _c.capstan_backup_workers(self._handle) > 0

    def _serve(self) -> NoReturn:
        """A role without gradients."""
        status = 0
        try:
            self._await(_c.capstan_serve)
        except Error as error:
            status = process_hooks.status_of(error)
            if not self.logs:
                print(f"error: {error}", file=sys.stderr)
        self._free()
        raise SystemExit(status)

    # The model

    def declare(
        self,
        name: str,
        values: Any,
        kind: str = "trained",
        group: int = 0,
        mean: Any = None,
    ) -> int:
        """Adds a tensor and returns its number.

        VALUES is an array of float32 (int64 if it is assigned), row-major and
        contiguous, into which the run writes. KIND is "trained", "averaged"
        or "assigned". All ranks declare the same tensors in the same order;
        rank 0's first values count. MEAN, with optimizer "None" and without
        staleness, is an array like VALUES, into which the run writes the mean of the gradients; the
        script then keeps the weights in VALUES.
        """
        allowed = ("float32", "int64") if kind == "assigned" else ("float32",)
        _check_array(name, values, allowed)
        if not values.flags.writeable:
            raise ConfigError(f'tensor "{name}" is read-only', "MODEL_INVALID")
        dtype = _library.DTYPES[values.dtype.name]
        if mean is not None:
            _check_array(name, mean, ("float32",))
        return self._declare(
            name,
            _address(values),
            values.shape,
            dtype,
            kind,
            group,
            (values, mean),
            None if mean is None else _address(mean),
        )

    def _declare(
        self,
        name: str,
        address: int,
        shape: tuple[int, ...],
        dtype: int,
        kind: str,
        group: int,
        owners: tuple[Any, Any],  # of the values and the mean
        mean: int | None,
    ) -> int:
        dims = (ctypes.c_uint32 * len(shape))(*shape)
        tensor = _library.Tensor(
            name.encode(),
            len(shape),
            dims,
            dtype,
            _library.KINDS[kind],
            group,
            address,
            mean,
        )
        number = ctypes.c_uint32()
        self._values.append(owners)
        self._names.append(name)
        self._check(
            _c.capstan_declare(self._handle, byref(tensor), byref(number))
        )
        return number.value

    def table(
        self,
        name: str,
        dim: int,
        rule: Mapping[str, Any] | None = None,
        *,
        init_range: float = 0.0,
        admit: int = 0,
        expire: int = 0,
        max_rows: int = 0,
    ) -> tables.Table:
        """Adds a table of rows of DIM floats by 64-bit id, before start().

        RULE is its optimizer on the ps, as init()'s, of SGD, Adagrad, Adam,
        AdamW and Ftrl; None: the run's. Its weight_decay is of the rows
        pushed, at that push. First values are uniform within INIT_RANGE
        of 0. A row exists after ADMIT pushes and reads as zeros until then;
        EXPIRE steps without a push remove it (0: never). More than MAX_ROWS
        end the run (0: any number). All ranks declare the same tables.
        """
        settings = {
            "init_range": init_range,
            "admit": admit,
            "expire": expire,
            "max_rows": max_rows,
        }
        return tables.declare(self, name, dim, rule, **settings)

    def lookup(
        self, requests: Sequence[tuple[tables.Table, Any]]
    ) -> list[np.ndarray]:
        """The rows of several tables in one exchange: of each (table, ids)."""
        return tables.lookup(self, requests)

    def prefetch(self, requests: Sequence[tuple[tables.Table, Any]]) -> None:
        """Asks ahead for the rows of the next step's lookup() of these
        requests: once a step, as Table.prefetch()."""
        tables.prefetch(self, requests)

    def start(self) -> None:
        """Waits for the other processes and for the run's weights."""
        self._await(_c.capstan_start)
        self._started = True
        self._end_watch()
        self._find_end()

    def _find_end(self) -> Position:
        position = self._position()
        total, self._step = position.total, position.step
        self.ended = total is not None and position.step >= total
        return position

    def _has_brought(self, tensor: int) -> bool:
        """After wait(): has the run written the tensor's values?"""
        return bool(_c.capstan_brought(self._handle, tensor))

    def had_batch(self) -> bool:
        """After wait(), without staleness: has any rank brought a gradient to
        the last step, or VOID? A rank whose data is over pushes EMPTY in each
        step until none has."""
        return bool(_c.capstan_had_batch(self._handle))

    def _skips(self) -> bool:
        """Before start(): this script follows on_nan. Is it skip?"""
        return bool(_c.capstan_skips(self._handle))

    def _leave_late(self, why: str) -> None:
        """After _join(). Raises PeerLost, and the others go on, if they take
        steps already."""
        self._position()
        if not self._joined:
            return
        self._free()
        raise error_of(
            138,
            "PEER_LOST",
            f"rank {self.rank} was started again while the run goes on, and "
            f"stays out: {why}. To have it again, end the run and start the "
            "same command for all ranks again: with init(checkpoint=...) it "
            "goes on from its checkpoint",
        )

    def _is_behind(self) -> bool:
        """Has the run gone back since the last step?"""
        return self._is_back or bool(_c.capstan_is_behind(self._handle))

    # Steps

    def push(
        self,
        tensor: int,
        gradient: Any = None,
        contribution: Contribution = FULL,
    ) -> None:
        """Sends the gradient of a tensor in this step, in any order.

        GRADIENT is an array as declare() takes it, in the tensor's shape. It
        must not change until wait() has returned. With ZERO, EMPTY or VOID
        there is no gradient.
        """
        if contribution is not FULL:
            return self._push(tensor, None, 0, contribution, None)
        values, name = self._values[tensor][0], self._names[tensor]
        array = np.asarray(gradient)
        _check_array(name, array, (values.dtype.name,))
        if array.shape != values.shape:
            raise ConfigError(
                f'the gradient of tensor "{name}" has shape {array.shape}; '
                f"expected is {values.shape}",
                "MODEL_INVALID",
            )
        self._push(tensor, _address(array), array.nbytes, FULL, array)

    def _push(
        self,
        tensor: int,
        address: int | None,
        size: int,
        contribution: int,
        owner: Any,
    ) -> None:
        if self.ended:
            self._leave()
        if self._kept is not None:
            self._save_kept()
        # Before the call, from which on the library reads it: a signal's
        # handler may raise. It waits for the last one first.
        self._pushed[tensor] = owner, self._pushed.get(tensor)
        result = _c.capstan_push(
            self._handle, tensor, address, size, contribution
        )
        if result:
            self._fail(result)
        self._pushed[tensor] = owner

    def _push_tensors(
        self, numbers: list[int], addresses: list[int], owners: list[Any]
    ) -> None:
        """As _push() of each, with FULL, of tensors that were waited for."""
        if self.ended:
            self._leave()
        if self._kept is not None:
            self._save_kept()
        self._pushed.update(zip(numbers, owners))  # before the call, as _push()
        of_numbers, of_addresses = packed("I", numbers), packed("Q", addresses)
        result = _c.capstan_push_tensors(
            self._handle,
            of_numbers.buffer_info()[0],
            of_addresses.buffer_info()[0],
            len(numbers),
        )
        self._check(result)

    def _leave(self) -> NoReturn:
        """Ends a script that goes on after the run's last step."""
        if self.error:
            raise self.error
        self._handle  # raises if the script has closed the run
        step = self._position().step
        self._finish()
        self._free()
        if self.logs:
            print(
                f"capstan: the run is complete with step {step}, and the "
                "script ends where it begins another",
                file=sys.stderr,
            )
        raise SystemExit(0)

    def wait(self, tensor: int | None = None) -> None:
        """Waits for the values that follow a push; None: all tensors'."""
        if tensor is None:
            if self._pushed:
                self._await(_c.capstan_wait, _library.ALL)
            self._pushed.clear()
        else:
            self._await(_c.capstan_wait, tensor)
            self._pushed.pop(tensor, None)

    def step(
        self, loss: float = 0.0, samples: int = 0, correct: int = 0
    ) -> Outcome:
        """Ends a step, in which each tensor was pushed.

        LOSS is the mean over SAMPLES, of which CORRECT were classified right.
        """
        outcome = ctypes.c_int()
        if self.ended:
            self._leave()
        if self._rewound:
            self._fail_behind()
        if not self._located:
            self._warn_of_resumption()
        if self._is_backed:
            self._check_loop()
        self._tell_rewinds()
        self._is_back = False
        self._await(
            _c.capstan_step, float(loss), samples, correct, byref(outcome)
        )
        self._count += 1
        if outcome.value == _library.ENDS:
            self.ended = True
        if outcome.value == _library.REWOUND:
            self._go_back()
        elif self._is_backed and not self.ended:
            self._count_missed()
        return Outcome(outcome.value)

    def _check_loop(self) -> None:
        """Raises ConfigError if the loop would not leave out what it misses."""
        if "steps" in self._loops or {"epochs", "shard"} <= self._loops:
            return
        raise ConfigError(
            "strategy.backup_workers: a rank that is late leaves out the steps "
            "that closed without it, which this script's loop does not: take "
            "run.steps, or with capstan.torch run.epochs with run.shard, or "
            "set it to 0",
            "USAGE",
        )

    def _count_missed(self) -> None:
        step = self._position().step
        self._missed += step - self._step - 1
        self._step = step

    def _turn_after(self, number: int, count: int) -> int:
        """What follows turn NUMBER, which began after COUNT steps."""
        if not self._is_backed or self.ended:
            return number + 1
        if self._count != count + 1:
            raise ConfigError(
                f"a turn of run.steps has taken {self._count - count} steps; "
                "with strategy.backup_workers it takes one",
                "USAGE",
            )
        return self._step

    def _tell_rewinds(self) -> None:
        """Whether this script takes its steps again where the run goes back."""
        follows = (
            self._follows
            or "steps" in self._loops
            or {"epochs", "shard"} <= self._loops
        )
        changes = self.is_stale and self._shared is not None
        stays = changes or self._meets_in_steps
        rewinds = self._keeps and follows and not stays
        if rewinds != self._rewinds:
            self._check(_c.capstan_rewinds(self._handle, rewinds))
            self._rewinds = rewinds

    def _go_back(self) -> None:
        """The run has gone back, and VALUES are those of its checkpoint."""
        self._is_back = True
        self._returns += 1
        position = self._find_end()
        if self.logs and self.rank == 0:
            print(
                f"capstan: this script goes on after step {position.step}",
                file=sys.stderr,
            )
        if self._follows:
            self._restore()
        else:
            self._rewound = True

    def _restore(self) -> None:
        """After a return what is kept is as at the checkpoint."""
        self._rewound = False
        self._complete_epochs = 0
        self._kept_at = self._asked_at = -1
        if self._shared is not None:
            self._shared.load_state_dict(self._needed(self._read_shared()[0]))
        self._needed(self._read_kept(_KEPT))
        self._load_kept()

    def _needed(self, state: Any) -> Any:
        if state is None:
            self._fail_behind("the checkpoint has nothing that run.keep kept")
        return state

    def _fail_behind(
        self, why: str = "the script's loop takes another step"
    ) -> NoReturn:
        text = (
            f"the run went back to a checkpoint, and {why}: start the same "
            "command again"
        )
        self.fail(text, 138)
        self.error = error_of(138, "PEER_LOST", text)
        raise self.error

    def _warn_of_resumption(self) -> None:
        """A loop that does not know of a resumed run begins anew."""
        position = self._position()
        self._located = True
        if position.resumed and position.step and self.logs:
            print(
                f"capstan: warning: the run goes on after step "
                f"{position.step}, and this script has not asked where it is: "
                "its loop and its schedules begin anew. run.epochs, run.steps "
                "and run.position say where",
                file=sys.stderr,
            )

    # Collectives

    def _collect(self, function: Any, *arguments: Any) -> None:
        """A collective that fails leaves the run as it is."""
        if not self._started:
            self._leave_late(
                "it calls a collective before its start, which the others have "
                "behind them"
            )
        while result := function(self._handle, *arguments, _TURN):
            if result != _library.AGAIN:
                text = _c.capstan_error(self._handle).decode(errors="replace")
                code = _c.capstan_error_name(self._handle).decode()
                raise error_of(result, code, text)
        self._collected += 1
        if not self._prepares:
            self._end_watch()  # a script may average by hand

    @contextlib.contextmanager
    def _preparing(self) -> Iterator[None]:
        """Collectives inside average no gradients."""
        before, self._prepares = self._prepares, True
        try:
            yield
        finally:
            self._prepares = before

    def barrier(self) -> None:
        """Waits until every trainer of the run calls it.

        Collectives come after init(), before start() or between steps. All
        ranks call the same in the same order. A rank that is lost, or does not
        call within timeouts.step, is PeerLost, and later collectives are too,
        until a rank has joined in place of one that was lost.
        """
        self._collect(_c.capstan_barrier)

    def all_gather(self, array: Any) -> np.ndarray:
        """ARRAY of each rank, of shape (size, *ARRAY.shape), by rank."""
        own = _plain(array, "all_gather")
        found = np.empty((self.size, *own.shape), own.dtype)
        self._collect(
            _c.capstan_all_gather, _address(own), own.nbytes, _address(found)
        )
        return found

    def all_gather_object(self, obj: Any) -> list[Any]:
        """OBJ of each rank, by rank; it can be pickled."""
        own = np.frombuffer(pickle.dumps(obj), np.uint8)
        sizes = self.all_gather(np.array(own.size))
        padded = np.zeros(sizes.max(), np.uint8)
        padded[: own.size] = own
        found = self.all_gather(padded)
        return [
            pickle.loads(part[:size].tobytes())
            for part, size in zip(found, sizes)
        ]

    def broadcast(self, array: Any, root: int = 0) -> np.ndarray:
        """Rank ROOT's ARRAY; those of others have its shape and type."""
        found = _plain(array, "broadcast").copy()
        self._collect(
            _c.capstan_broadcast, _address(found), found.nbytes, root
        )
        return found

    def broadcast_object(self, obj: Any = None, root: int = 0) -> Any:
        """Rank ROOT's OBJ, which can be pickled."""
        data = pickle.dumps(obj) if self.rank == root else b""
        size = int(self.broadcast(np.array(len(data)), root))
        own = np.frombuffer(data or bytes(size), np.uint8)
        return pickle.loads(self.broadcast(own, root).tobytes())

    def all_reduce(self, array: Any, op: str = "sum") -> np.ndarray:
        """ARRAY reduced over all ranks, computed in its type in rank order.

        OP is "sum", "mean", "min", "max" or "product"; a mean is one of
        floating point. float16 is computed as float32, and bool as uint8.
        Whole numbers wrap around.
        """
        own = _plain(array, "all_reduce")
        wider = {"float16": np.float32, "bool": np.uint8}
        found = own.astype(wider.get(own.dtype.name, own.dtype))
        number = _library.NUMBERS.get(found.dtype.name)
        if number is None or op not in _library.REDUCTIONS:
            raise ConfigError(
                f"all_reduce of {own.dtype} by {op}; allowed are "
                f"{', '.join((*_library.NUMBERS, *wider))} by "
                f"{', '.join(_library.REDUCTIONS)}",
                "USAGE",
            )
        if own.dtype == bool and op in ("sum", "mean"):
            raise ConfigError(
                f"all_reduce of bool by {op}; use max (any), min (all), or "
                "an array of whole numbers",
                "USAGE",
            )
        self._collect(
            *(_c.capstan_all_reduce, _address(found), found.size, number),
            _library.REDUCTIONS[op],
        )
        return found.astype(own.dtype)

    @property
    def position(self) -> Position:
        """Where the run is; after start()."""
        self._located = True
        return self._position()

    def _position(self) -> Position:
        found = _library.Position()
        _c.capstan_where(self._handle, byref(found))
        total = None if found.total == 2**64 - 1 else found.total
        self._joined = found.resumed == _library.JOINED
        return Position(
            found.step,
            total,
            bool(found.resumed),
            found.epoch,
            found.epoch_step,
            found.updates,
        )

    def state(self, tensor: int, key: str) -> Any:
        """The optimiser's state of a tensor after the last step, as an array.

        KEY is torch's name: "momentum_buffer", "exp_avg", "exp_avg_sq",
        "max_exp_avg_sq", "sum", "square_avg", "grad_avg"; of Ftrl "accum",
        "linear"; with any of them also "step", one number: the updates of the
        tensor to which some rank brought bytes. None: the optimiser has none of
        that name, or this rank has a part of it only (all-reduce with
        zero_optimization).
        """
        shape = () if key == "step" else self._values[tensor][0].shape
        array = np.empty(shape, np.float32)
        return array if self._state(tensor, key, _address(array)) else None

    def _state(self, tensor: int, key: str, address: int) -> bool:
        found = ctypes.c_int()
        self._await(
            _c.capstan_state, tensor, key.encode(), address, byref(found)
        )
        return bool(found.value)

    def begin_epoch(self, number: int) -> None:
        """Epoch NUMBER begins with the next step; epochs() calls it."""
        behind, self._behind = self._behind, 0
        if behind:
            self._check(
                _c.capstan_epoch_begun(self._handle, number, behind)
            )
        else:
            self._check(_c.capstan_epoch(self._handle, number))

    def epochs(self, count: int) -> Iterator[int]:
        """Epochs from the run's present one to COUNT - 1, while it goes on."""
        position = self.position
        epoch = max(position.epoch, self._complete_epochs)
        while epoch < count and not self.ended:
            within = epoch == position.epoch and position.epoch_step > 0
            if not within:
                self.begin_epoch(epoch)
            with self._within("epochs"):
                yield epoch
            epoch += 1
            self._complete_epochs = epoch
            if self._rewound:
                self._restore()
                position = self.position
                epoch = position.epoch
        if epoch < count:
            self._end_loop()

    def _end_loop(self) -> None:
        """A loop has ended before its count: after a signal raises Interrupted.

        Otherwise what follows the loop would run as if it were complete.
        """
        if process_hooks.is_signalled():
            self._finish()
            self._free()

    def steps(self, count: int) -> Iterator[int]:
        """Steps from the run's present one to COUNT - 1, while it goes on."""
        step = self._first_turn()
        while step < count and not self.ended:
            self._begin_turn(step)
            taken = self._count
            with self._within("steps"):
                yield step
            step = self._turn_after(step, taken)
            if self._rewound:
                self._restore()
                step = self._first_turn()
        if step < count:
            self._end_loop()

    def _first_turn(self) -> int:
        """The number with which steps() begins."""
        return self.position.step

    def _begin_turn(self, number: int) -> None:
        """A loop's turn NUMBER begins."""
        self._save_kept()

    def set_optimizer(self, name: str) -> None:
        """Sets the update rule, in place of the job's; before start().

        NAME is "SGD", "Adam", "AdamW", "Adagrad", "RMSprop", "Ftrl" or "None":
        then wait() brings means of gradients, which the script applies; with
        staleness a push is the change that the script's optimiser makes, which
        the run adds to the weights, and tensors have no MEAN.
        """
        self._check(_c.capstan_optimizer(self._handle, name.encode()))

    def set_group(self, group: int, key: str, value: float) -> None:
        """Sets KEY, such as "lr", of a group of tensors, between steps."""
        self._check(_c.capstan_set(self._handle, group, key.encode(), value))

    def checkpoint(self) -> None:
        """Requests a checkpoint at the next possible step."""
        self._check(_c.capstan_checkpoint(self._handle))

    @contextlib.contextmanager
    def _within(self, loop: str) -> Iterator[None]:
        before = set(self._loops)
        self._loops.add(loop)
        try:
            yield
        finally:
            self._loops &= before

    def keep(self, *objects: Any, rewinds: bool = False) -> None:
        """Saves OBJECTS and Python's and NumPy's generators with checkpoints.

        Each of OBJECTS has state_dict() and load_state_dict(). After start();
        in a resumed run they are as at the checkpoint then. Where a checkpoint
        is due, their state is taken when steps() or shard() begins the next
        step, in other loops with its first push. They are files in the
        checkpoint's folder, which this host must be able to write.

        A script that has called it, with nothing if it has nothing, goes back
        with the run after the death of a ps, or of a rank of all-reduce, if its
        loop is steps(), or epochs() with shard(): the loop then yields the checkpoint's step, or epoch and
        batch, again. REWINDS: so it does with a loop of its own, which goes on
        at position when step() has returned REWOUND.
        """
        self._keeps, self._follows = True, rewinds
        self._kept = objects
        self._load_kept()
        self._keep_own()

    def _share(self, item: Any) -> None:
        """Saves ITEM, which is alike on all ranks, from one of them.

        With staleness it is each rank's own: a rank takes its own back, else
        that of the lowest rank.
        """
        self._shared = item
        state, rank = self._read_shared()
        if self.is_stale and self._position().resumed and self.logs:
            what = {None: "without a state", self.rank: "with its own state"}
            print(
                f"capstan: {type(item).__name__} of rank {self.rank} goes on "
                + what.get(rank, f"with the state of rank {rank}"),
                file=sys.stderr,
            )
        if state is not None:
            item.load_state_dict(state)
        if self._kept is None:
            self._kept = ()
            self._load_kept(later=True)
            self._keep_own()

    def _read_shared(self) -> tuple[Any, int | None]:
        """The state that was shared, and the rank of which it is."""
        shared = self._read_kept(_SHARED)
        if shared is not None and not isinstance(shared, tuple):
            shared = shared, 0  # of a synchronous run
        if not self.is_stale and shared:
            return shared
        others = self._read_kept(_OTHERS)
        if not self.is_stale and others:
            raise ConfigError(
                "the checkpoint has a state of the optimiser of each rank, as "
                "strategy.staleness was set, and none of rank 0, which a "
                "synchronous run takes: go on with staleness until the next "
                "checkpoint",
                "MODEL_INVALID",
            )
        if others and others[1] == self.rank:
            return others
        return shared or others or (None, None)

    def _load_kept(self, later: bool = False) -> None:
        """LATER: the script may call keep() for what is not kept now."""
        if self._kept is None:
            return
        found = self._read_kept(_KEPT)
        if found is not None:
            states, own = found
            if later and states:
                return
            if len(states) != len(self._kept):
                raise ConfigError(
                    f"keep() has {len(self._kept)} objects, the checkpoint "
                    f"{len(states)}",
                    "MODEL_INVALID",
                )
            for item, state in zip(self._kept, states):
                item.load_state_dict(state)
            self._set_own_state(own)

    def _read_kept(self, name: bytes) -> Any:
        data, size = ctypes.c_void_p(), ctypes.c_size_t()
        arguments = self._handle, name, byref(data), byref(size)
        while result := _c.capstan_kept(*arguments):
            if result != _library.AGAIN:
                self._fail(result)
        return (
            pickle.loads(ctypes.string_at(data, size.value)) if data else None
        )

    def _save_kept(self, ending: bool = False) -> None:
        """Keeps the state after the last step, if a checkpoint needs it."""
        asked = self._asked_at == self._count and not ending
        if self._kept is None or asked or self._kept_at == self._count:
            return
        self._asked_at = self._count
        due = _c.capstan_due(self._handle, ending)
        # With staleness a checkpoint may be taken after this rank's end.
        if due == _library.NOT_DUE and not (ending and self.is_stale):
            return
        self._kept_at = self._count
        self._keep_own()
        if self._shared is None:
            return
        if self.is_stale:
            name = _OTHERS if self.rank else _SHARED
            self._keep(name, (self._shared.state_dict(), self.rank))
        else:
            lead = due == _library.DUE_LEAD
            self._keep(_SHARED, self._shared.state_dict() if lead else None)

    def _is_due(self) -> bool:
        """Will a checkpoint take the state after the last step?"""
        due = _c.capstan_due(self._handle, False)
        return self._kept is not None and due != _library.NOT_DUE

    def _is_saved(self) -> bool:
        """Does a checkpoint take the state after the last step?"""
        return self._kept_at == self._count

    def _keep_own(self) -> None:
        states = [item.state_dict() for item in self._kept or ()]
        self._keep(_KEPT, (states, self._own_state()))

    def _keep(self, name: bytes, value: Any) -> None:
        """Keeps VALUE; None: no more."""
        data = None
        if value is not None:
            data = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
        size = len(data) if data else 0
        self._check(_c.capstan_keep(self._handle, name, data, size))

    def _own_state(self) -> dict[str, Any]:
        return {"python": random.getstate(), "numpy": np.random.get_state()}

    def _set_own_state(self, states: dict[str, Any]) -> None:
        random.setstate(states["python"])
        np.random.set_state(states["numpy"])

    # The end

    def interrupt(self, number: int) -> None:
        """Does what the program does on signal NUMBER."""
        if self._open is not None:
            _c.capstan_interrupt(self._open, number)

    def report(self) -> str:
        """What this process does and waits for, its last events: a line.

        In the process that leads: a line for each process of the run, which it
        asks and waits for, about 2 s. "" where the run is over.
        """
        size = 1 << 16
        with self._reporting:
            while self._open is not None:
                text = ctypes.create_string_buffer(size)
                result = _c.capstan_report(self._open, text, size)
                if result <= 0:
                    return text.value.decode(errors="replace")
                size *= 4
        return ""

    def close(self, early: bool = False) -> None:
        """Ends this process's part with success and waits for the run's end.

        EARLY: this rank's data is over; the others go on without it.
        """
        if self._open is None:
            return
        if not self._started and not self.error and self._collected:
            self._start_empty()
        if not self._started and not self.error:
            text = "the script ends and has not started the run: " + self._hint
            self.fail(text)
            raise ConfigError(text, "USAGE")
        if not self.error and self._others:
            self._others.check()
        try:
            if not self.error:
                self._finish(early)
        finally:
            self._free()

    def _start_empty(self) -> None:
        """A run of collectives alone has a model of one number, to end as
        others do."""
        if not self._names and not self._tables:
            self.declare("capstan.none", np.zeros(1, np.float32))
            self.start()

    def _finish(self, early: bool = False) -> None:
        """Waits for the run's end. Its error is the script's, unless that
        closes the run."""
        self._save_kept(ending=not early)
        end = _library.EARLY if early else _library.DONE
        self._await(_c.capstan_end, end, None)

    def leave(self) -> None:
        """Ends this process's part as the signal says that it has got."""
        try:
            if self._started and not self.error and not self._within_step():
                self._finish()
        except Error:
            pass  # the signal is known
        finally:
            self._free()

    def _within_step(self) -> str:
        """Why this is not between two steps; "": it is."""
        return "pushes wait for step()" if self._pushed else ""

    def fail(self, text: str, status: int = 1) -> None:
        """Ends the run on all ranks, because of TEXT; STATUS 138: with it."""
        if self._open is None:
            return
        end = _library.RETRY if status == 138 else _library.FAILED
        try:
            if not self.error:
                self._await(_c.capstan_end, end, text.encode())
        except Error:
            pass  # the caller has the reason
        finally:
            self._free()

    def _free(self) -> None:
        self.ended = True
        if self._others:
            self._others.end()
        process_hooks.remove(self)
        with self._reporting:
            handle, self._open = self._open, None
            _c.capstan_close(handle)
        self._pushed.clear()

    def forget(self) -> None:
        """In a forked child: the run is the parent's."""
        self._reporting = threading.RLock()  # a thread there may have it
        self._open = None
        self._closed_because = "the run belongs to the parent process"

    def __enter__(self) -> Run:
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if error is None or _is_success(error):
            self.close()
        else:
            process_hooks.end(self, error)


def _is_success(error: BaseException) -> bool:
    return isinstance(error, SystemExit) and error.code in (None, 0)


def _check_array(name: str, array: Any, dtypes: tuple[str, ...]) -> None:
    """Raises ConfigError if the library cannot use ARRAY where it lies."""
    fault = ""
    if not isinstance(array, np.ndarray):
        fault = f"is of type {type(array).__name__}; expected is a NumPy array"
    elif array.dtype.name not in dtypes:
        fault = f"has the data type {array.dtype}; expected is "
        fault += " or ".join(dtypes)
    elif not array.flags.c_contiguous:
        fault = "is not contiguous in row-major order"
    if fault:
        raise ConfigError(f'tensor "{name}" {fault}', "MODEL_INVALID")


def _plain(array: Any, name: str) -> np.ndarray:
    """ARRAY as C has it."""
    own = np.asarray(array)
    if own.dtype.hasobject or not own.dtype.isnative:
        raise ConfigError(
            f"{name} of {own.dtype}; expected are numbers in the host's byte "
            f"order; {name}_object takes others"
            if name != "all_reduce"
            else f"{name} of {own.dtype}; expected are numbers",
            "USAGE",
        )
    return np.ascontiguousarray(own).reshape(own.shape)


def _address(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]


_current: Run | None = None
_rank_before = ""  # of a cluster, whose variables init() has taken
AnyRun = TypeVar("AnyRun", bound=Run)


def current() -> Run:
    """The run that this process opened last."""
    if _current is None:
        raise ConfigError("call capstan.init() first", "USAGE")
    return _current


def is_open() -> bool:
    """Is this process in a run?"""
    return _current is not None and _current._open is not None


def version() -> str:
    """The library's, "0.1.0"."""
    return _c.capstan_version().decode()


@described
def init(
    job: str | os.PathLike[str] | None = None,
    *,
    keep_env: bool = False,
    log: bool = True,
    **keys: Unpack[JobKeys],
) -> Run:
    """Finds this process's part in the run from the environment and joins it.

    JOB names the job file; KEYS are the job's keys (docs/job.md), such as
    strategy="allreduce", checkpoint="run/checkpoint", clip=1.0 or
    optimizer={"type": "SGD", "params": {"lr": 0.1}}, and win over the file's.
    Only the process that leads the run needs either. KEEP_ENV leaves the
    launcher's rank variables in os.environ. LOG: log to standard error.

    A ps, or a chief that only coordinates, serves here until the run ends and
    raises SystemExit with its result.
    """
    return join(Run, job, keep_env, log, keys)


def join(
    kind: type[AnyRun],
    job: str | os.PathLike[str] | None,
    keep_env: bool,
    log: bool,
    keys: Mapping[str, Any],
) -> AnyRun:
    """init() for a subclass of Run."""
    global _current
    if is_open():
        raise ConfigError(
            "init() was called before: use the run that it returned, or close "
            "that one first",
            "USAGE",
        )
    if _rank_before and process_hooks.taken.isdisjoint(os.environ):
        raise ConfigError(
            f"this process was {_rank_before} in a run that is closed, and "
            "another would be without the others: a process is in one run of "
            "its cluster. Start all processes again for another run, or, with "
            "all-reduce, take init(keep_env=True) in each",
            "USAGE",
        )
    texts = [text.encode() for text in overrides(keys)]
    handle = ctypes.c_void_p()
    result = _c.capstan_open(
        byref(handle),
        os.fsencode(job) if job is not None else None,
        (ctypes.c_char_p * (len(texts) + 1))(*texts, None),
        _library.LOG if log else 0,
    )
    if not handle:
        raise error_of(1, "NO_MEMORY", "out of memory")
    run = kind(handle, log)
    process_hooks.add(run)
    try:
        if _c.capstan_role(handle) == _library.EVALUATOR:
            print(
                "capstan: an evaluator does nothing for a script's model, "
                "which rank 0 evaluates: it ends",
                file=sys.stderr,
            )
            raise SystemExit(0)
        run._check(result)
        if not _c.capstan_trains(handle):
            run._serve()
        run._join()
    except BaseException:
        run._free()
        raise
    if not keep_env:
        _take_rank_variables(run)
    run._end_watch = alone.watch(run)
    _current = run
    return run


def _take_rank_variables(run: Run) -> None:
    global _rank_before
    descriptions = [os.environ.get(name, "") for name in _CLUSTER_VARIABLES]
    if run.size > 1 or any('"ps"' in text for text in descriptions):
        _rank_before = f"rank {run.rank} of {run.size}"
    for name in list(os.environ):
        if name in _RANK_VARIABLES or name.startswith(_RANK_PREFIXES):
            del os.environ[name]
            process_hooks.taken.add(name)
