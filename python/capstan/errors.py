# SPDX-License-Identifier: Apache-2.0
"""The ends of a run other than success, by exit status (docs/running.md)."""


class Error(RuntimeError):
    """A run has ended without success.

    `status` is the exit status with which the program would end, `code` the
    stable name of the cause, such as "PEER_LOST".
    """

    status = 1
    code = "NONE"

    def __init__(self, text: str, code: str = "NONE", status: int = 0):
        super().__init__(text)
        self.code = code
        self.status = status or type(self).status


class Failed(Error):
    """Exit status 1: a retry would fail again."""


class ConfigError(Error):
    """Exit status 2: the configuration or a call is wrong."""

    status = 2


class PeerLost(Error):
    """Exit status 138: start the same command again."""

    status = 138


class Interrupted(Error):
    """Exit status 129, 130 or 143: this process received a signal."""

    status = 143


class KeyboardInterrupted(Interrupted, KeyboardInterrupt):
    """Exit status 130: Ctrl-C, as a script without a run gets it."""

    status = 130


_BY_STATUS = {
    1: Failed,
    2: ConfigError,
    129: Interrupted,
    130: KeyboardInterrupted,
    138: PeerLost,
    143: Interrupted,
}


def error_of(status: int, code: str, text: str) -> Error:
    """The exception for a result of the C interface."""
    return _BY_STATUS.get(status, Error)(text, code, status)
