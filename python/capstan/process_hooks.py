# SPDX-License-Identifier: Apache-2.0
"""What a process does with its runs on a signal, exception, exit or fork."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import re
import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

from .errors import Error, error_of

if TYPE_CHECKING:
    from .run import Run

_DEFAULTS: dict[signal.Signals, Any] = {
    signal.SIGINT: signal.default_int_handler,
    signal.SIGTERM: signal.SIG_DFL,
    signal.SIGUSR1: signal.SIG_DFL,
    signal.SIGQUIT: signal.SIG_DFL,
}
taken: set[str] = set()  # by init(), out of os.environ
_runs: list[Run] = []  # those that are open
_installed: dict[signal.Signals, int] = {}  # with the handler's address
_signalled = 0  # the signal that ends the runs
_previous_excepthook: Any = None
_wraps_exit = False


def add(run: Run) -> None:
    """RUN is open: signals and the script's end are now its end."""
    global _previous_excepthook
    _runs.append(run)
    _install_handlers()
    if _previous_excepthook is None:
        _previous_excepthook = sys.excepthook
        sys.excepthook = _on_exception
        # Before every function of atexit, of which none has run then.
        threading._register_atexit(_on_exit)


def remove(run: Run) -> None:
    """RUN is closed."""
    if run in _runs:
        _runs.remove(run)
    if not _runs:
        _restore_handlers()


def end(run: Run, error: BaseException) -> None:
    """Closes RUN because of ERROR, which the caller reports.

    What a script raises after a signal, such as for DataLoader workers that it
    has ended too, is no failure of the run.
    """
    with contextlib.suppress(AttributeError):  # for _on_exception
        error._has_ended_a_run = True  # type: ignore[attr-defined]
    if _signalled and not isinstance(error, Error):
        return run.leave()
    if isinstance(error, KeyboardInterrupt):
        run.interrupt(signal.SIGINT)
    text = "".join(traceback.format_exception_only(type(error), error)).strip()
    found = (e.status for e in _chain(error) if isinstance(e, Error))
    run.fail(text, next(found, 1))


def expect_wrapped_exit() -> None:
    """A framework may make another exception of the SystemExit that follows."""
    global _wraps_exit
    _wraps_exit = True


def is_signalled() -> bool:
    """Has a signal that ends the runs arrived?"""
    return _signalled > 0


def status_of(error: Error) -> int:
    """The exit status after ERROR, which may be due to a signal here."""
    if error.status == 138 and _signalled:
        return 128 + _signalled
    return error.status


def _handler_of(number: signal.Signals) -> int:
    """The address of NUMBER's handler, 0: the default.

    Python does not know of handlers such as those of faulthandler.
    """
    action = (ctypes.c_void_p * 32)()  # more than a struct sigaction
    ctypes.CDLL(None).sigaction(int(number), None, action)
    return action[0] or 0


def _install_handlers() -> None:
    if threading.current_thread() is not threading.main_thread():
        return
    for number, default in _DEFAULTS.items():
        foreign = default is signal.SIG_DFL and _handler_of(number) != 0
        if signal.getsignal(number) is default and not foreign:
            signal.signal(number, _on_signal)
            _installed[number] = _handler_of(number)
    # `capstan local` starts it blocked, so that an early one does not kill.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR1})


def _restore_handlers() -> None:
    if threading.current_thread() is not threading.main_thread():
        return
    while _installed:
        number, address = _installed.popitem()
        ours = _handler_of(number) == address
        if ours and signal.getsignal(number) is _on_signal:
            signal.signal(number, _DEFAULTS[number])


def _on_signal(number: int, frame: FrameType | None) -> None:
    """SIGUSR1 cuts a checkpoint, SIGQUIT logs a report; others end the run, a
    second one at once."""
    global _signalled
    for run in _runs:
        run.interrupt(number)
    if number in (signal.SIGUSR1, signal.SIGQUIT):
        return
    if _signalled:
        code = "INTERRUPTED" if number == signal.SIGINT else "TERMINATED"
        name = signal.Signals(number).name
        raise error_of(128 + number, code, f"a second {name}")
    _signalled = number


def _meets_no_group(error: BaseException) -> bool:
    """Did a function of torch.distributed raise ERROR for want of a group?"""
    module = sys.modules.get("torch.distributed.distributed_c10d")
    if module is None or module.is_initialized():
        return False
    frames = traceback.walk_tb(error.__traceback__)
    return any(f.f_globals is vars(module) for f, _ in frames)


def _meets_next_weights(error: BaseException) -> bool:
    """Did a backward pass raise ERROR for weights into which a run may write?"""
    exchanges = [getattr(run, "exchange", None) for run in _runs]
    writes = any(e is not None and e.in_place for e in exchanges)
    return writes and "modified by an inplace operation" in str(error)


def _hint(error: BaseException) -> str:
    """What to write in place of what ERROR is about, where that is known."""
    if isinstance(error, Error):
        return ""
    if _meets_next_weights(error):
        return (
            "capstan: by rule 'server' the next weights come into a parameter "
            "as soon as backward() has its gradient. A graph that reads it "
            "later, such as one with parameter.detach() or one that is kept "
            "for another pass, takes backward() in run.no_sync(), and step() "
            "sends its gradients; or DistributedOptimizer(..., rule='worker')"
        )
    if _meets_no_group(error):
        return (
            "capstan: this run has no process group of torch.distributed, as "
            "init(process_group=False) or destroy_process_group() has left it "
            "without: run.init_process_group() makes one of its trainers, for "
            "barrier, all_reduce and the other collectives; leave "
            "DistributedDataParallel out, as gradients are averaged by "
            "DistributedOptimizer; run.rank and run.size are get_rank and "
            "get_world_size"
        )
    missed = sorted(n for n in taken if re.search(rf"\b{n}\b", str(error)))
    if not missed:
        return ""
    return (
        f"capstan: init() has taken {', '.join(missed)} out of os.environ, so "
        "that nothing else starts a second data parallelism: write run.rank, "
        "run.size and run.local_rank, or init(keep_env=True)"
    )


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """ERROR and those that it came of, each once."""
    seen = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def _on_exception(
    kind: type[BaseException],
    error: BaseException,
    trace: TracebackType | None,
) -> None:
    if _wraps_exit and any("SystemExit: 0" in str(e) for e in _chain(error)):
        raise SystemExit(0)
    _previous_excepthook(kind, error, trace)
    if hint := _hint(error):
        print(hint, file=sys.stderr)
    # A run that stands in a `with` is closed by now.
    has_ended = any(getattr(e, "_has_ended_a_run", False) for e in _chain(error))
    if not _runs and not isinstance(error, Error) and not has_ended:
        return
    # A framework may have made another exception of the run's own.
    causes = [*_chain(error), *(run.error for run in _runs)]
    for run in list(_runs):
        end(run, error)
    if isinstance(error, KeyboardInterrupt):
        raise SystemExit(128 + signal.SIGINT)
    found = (status_of(e) for e in causes if isinstance(e, Error))
    raise SystemExit(next(found, 128 + _signalled if _signalled else 1))


def _on_exit() -> None:
    """Falling off the script's end is success, unless the run says no."""
    status = 0
    for run in list(_runs):
        if run.error:
            status = status_of(run.error)
        run._closed_because = (
            "the run was closed as the main thread ended: join() a thread that "
            "goes on with it"
        )
        try:
            run.close()
        except Error as error:
            status = status_of(error)
            if not run.logs or not run.error:
                print(f"error: {error}", file=sys.stderr)
    if status:
        atexit.register(_exit, status)  # runs first


def _exit(status: int) -> NoReturn:
    """Ends with STATUS, which no function of atexit can return."""
    atexit.unregister(_exit)
    with contextlib.suppress(BaseException):  # of other packages
        atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _in_child() -> None:
    for run in _runs:
        run.forget()
    _runs.clear()
    _restore_handlers()


os.register_at_fork(after_in_child=_in_child)
