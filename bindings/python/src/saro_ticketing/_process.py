"""The package's end, and its beginning in a child after `fork` (C30)."""

from __future__ import annotations

import atexit
import os

from . import _logs, _loop_queue, _thread_queue
from ._core import core
from ._leader import Leadership
from ._ticket import Ticket

_OWNERS = (Ticket, Leadership)

#: How long the end of the process waits for releases and sockets.
_STOP_MS = 2000


def _stop() -> None:
    """Before the interpreter ends: what is held is given back, then the library's threads end."""
    for owner in _OWNERS:
        for number in list(owner.live):
            owner.drop(number)
    _loop_queue.end_closed_loops()
    core.stop(_STOP_MS)
    _logs.pull_now()


def _forget() -> None:
    """In a child: everything is the parent's, and stays with it."""
    for owner in _OWNERS:
        owner.live.clear()
    _loop_queue.forget()
    _thread_queue.forget()


def install() -> None:
    """Once, when the package is imported."""
    atexit.register(_stop)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_forget)
