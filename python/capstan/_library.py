# SPDX-License-Identifier: Apache-2.0
"""The C interface, library/capstan.h, by ctypes. That header is the manual."""

from __future__ import annotations

import ctypes
import os
from ctypes import (
    POINTER,
    c_char_p,
    c_double,
    c_float,
    c_int,
    c_size_t,
    c_uint,
    c_uint32,
    c_uint64,
    c_void_p,
)
from pathlib import Path

AGAIN = -1
ALL = 2**32 - 1
LOG = 1
GOES_ON, ENDS, REWOUND = 0, 1, 2
DONE, EARLY, FAILED, RETRY = 0, 1, 2, 3
JOINED = 2  # of Position.resumed
NOT_DUE, DUE, DUE_LEAD = 0, 1, 2
DTYPES = {"float32": 0, "int64": 1}
NUMBERS = {  # enum capstan_number
    "float32": 0,
    "float64": 1,
    "int8": 2,
    "int16": 3,
    "int32": 4,
    "int64": 5,
    "uint8": 6,
}
REDUCTIONS = {"sum": 0, "mean": 1, "min": 2, "max": 3, "product": 4}
EVALUATOR = 3  # enum capstan_role
KINDS = {"trained": 0, "averaged": 1, "assigned": 2}


class Tensor(ctypes.Structure):
    """struct capstan_tensor"""

    _fields_ = [
        ("name", c_char_p),
        ("num_dims", c_uint32),
        ("dims", POINTER(c_uint32)),
        ("dtype", c_int),
        ("kind", c_int),
        ("group", c_uint32),
        ("values", c_void_p),
        ("mean", c_void_p),
    ]


class Table(ctypes.Structure):
    """struct capstan_table"""

    _fields_ = [
        ("name", c_char_p),
        ("dim", c_uint32),
        ("init_range", c_float),
        ("optimizer", c_char_p),
        ("admit", c_uint32),
        ("expire", c_uint64),
        ("max_rows", c_uint64),
    ]


class Rows(ctypes.Structure):
    """struct capstan_rows"""

    _fields_ = [
        ("table", c_uint32),
        ("count", c_size_t),
        ("ids", c_void_p),
        ("values", c_void_p),
        ("num_bags", c_size_t),
        ("offsets", c_void_p),
        ("weights", c_void_p),
        ("combiner", c_int),
    ]


class Position(ctypes.Structure):
    """struct capstan_position; a library without epochs leaves them 0."""

    _fields_ = [
        ("step", c_uint64),
        ("total", c_uint64),
        ("resumed", c_int),
        ("epoch", c_uint64),
        ("epoch_step", c_uint64),
        ("updates", c_uint64),
    ]


_RUN = c_void_p
_FUNCTIONS = {
    "open": [POINTER(_RUN), c_char_p, POINTER(c_char_p), c_uint],
    "role": [_RUN],
    "trains": [_RUN],
    "serve": [_RUN, c_double],
    "join": [_RUN, c_double],
    "rank": [_RUN],
    "size": [_RUN],
    "local_rank": [_RUN],
    "staleness": [_RUN],
    "skips": [_RUN],
    "backup_workers": [_RUN],
    "declare": [_RUN, POINTER(Tensor), POINTER(c_uint32)],
    "declare_table": [_RUN, POINTER(Table), POINTER(c_uint32)],
    "set_table": [_RUN, c_uint32, c_char_p, c_double],
    "lookup": [_RUN, POINTER(Rows), c_size_t, c_double],
    "prefetch": [_RUN, POINTER(Rows), c_size_t],
    "push_rows": [_RUN, POINTER(Rows), c_size_t],
    "ids": [_RUN, c_uint32, c_void_p, c_size_t, POINTER(c_size_t), c_double],
    "write_rows": [_RUN, POINTER(Rows), c_size_t],
    "optimizer": [_RUN, c_char_p],
    "set": [_RUN, c_uint32, c_char_p, c_double],
    "start": [_RUN, c_double],
    "where": [_RUN, POINTER(Position)],
    "push": [_RUN, c_uint32, c_void_p, c_size_t, c_int],
    "push_tensors": [_RUN, c_void_p, c_void_p, c_size_t],
    "wait": [_RUN, c_uint32, c_double],
    "step": [_RUN, c_double, c_uint64, c_uint64, POINTER(c_int), c_double],
    "barrier": [_RUN, c_double],
    "all_gather": [_RUN, c_void_p, c_size_t, c_void_p, c_double],
    "broadcast": [_RUN, c_void_p, c_size_t, c_uint32, c_double],
    "all_reduce": [_RUN, c_void_p, c_size_t, c_int, c_int, c_double],
    "epoch": [_RUN, c_uint64],
    "epoch_begun": [_RUN, c_uint64, c_uint64],
    "state": [
        *(_RUN, c_uint32, c_char_p, c_void_p, POINTER(c_int), c_double)
    ],
    "keep": [_RUN, c_char_p, c_char_p, c_size_t],
    "kept": [_RUN, c_char_p, POINTER(c_void_p), POINTER(c_size_t)],
    "due": [_RUN, c_int],
    "brought": [_RUN, ctypes.c_uint32],
    "had_batch": [_RUN],
    "checkpoint": [_RUN],
    "interrupt": [_RUN, c_int],
    "rewinds": [_RUN, c_int],
    "is_behind": [_RUN],
    "report": [_RUN, c_char_p, c_size_t],
    "end": [_RUN, c_int, c_char_p, c_double],
    "close": [_RUN],
    "error": [_RUN],
    "error_name": [_RUN],
    "version": [],
}
_RESULTS = {
    "staleness": c_uint64,
    "where": None,
    "interrupt": None,
    "close": None,
    "error": c_char_p,
    "error_name": c_char_p,
    "version": c_char_p,
}


_NAME = "libcapstan.so.0"


def _find() -> str:
    """The library's file, or its name for the dynamic linker."""
    named = os.environ.get("CAPSTAN_LIBRARY")
    if named:
        return named
    package = Path(__file__).resolve().parent
    for folder in (
        package / "lib",  # of a wheel
        package.parent.parent / "build",  # of a checkout
    ):
        if (folder / _NAME).exists():
            return str(folder / _NAME)
    return _NAME


def folder() -> Path:
    """Where the library, which is loaded, and its plugins are."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        if "/libcapstan.so" in line:
            return Path(line.split(maxsplit=5)[5]).parent
    raise FileNotFoundError(_NAME)


def _load() -> ctypes.CDLL:
    library = ctypes.CDLL(_find())
    for name, arguments in _FUNCTIONS.items():
        function = getattr(library, "capstan_" + name)
        function.argtypes = arguments
        function.restype = _RESULTS.get(name, c_int)
    return library


capstan = _load()
