"""One completion queue of the core: calls out under tags, their outcomes back.

A drain may be torn anywhere by an exception (a signal handler's, say). So it has two phases. The
first records outcomes and moves `seen`: torn, the core hands the rest out again. The second
delivers what is recorded: torn, the next drain goes on with it. Each step may run twice.
"""

from __future__ import annotations

import itertools
import os
import weakref
from types import TracebackType
from typing import Any, Callable, ClassVar, Generic, TypeVar

from . import _logs
from ._core import core
from ._errors import TicketError, from_core

T = TypeVar("T")

_MOST_AT_ONCE = 1024
_FAILED = core.Outcome.FAILED

Submit = Callable[[int, int], None]
"""Submits a call, given the queue's number and the call's tag."""


def finish(act: Callable[..., None], *arguments: int) -> None:
    """Do what must not be left out, also when a signal handler raises in the middle of it."""
    try:
        act(*arguments)
    except BaseException:
        act(*arguments)
        raise


Owned = TypeVar("Owned", bound="Owner")


class Owner:
    """What a call may give that must be given back: a ticket, a leadership.

    `with` and `async with` give it back at the end of the block; so does its collection, and the
    end of the process.
    """

    __slots__ = ("__weakref__", "_number", "_owned")

    #: The core's function that takes it back.
    drop: ClassVar[Any]
    #: The numbers of all that are owned.
    live: ClassVar[set[int]]

    def __init__(self, number: int) -> None:
        self._number = number
        self._owned = False

    def own(self) -> None:
        """From now on its end gives it back. May be called again."""
        self.live.add(self._number)
        self._owned = True

    def close(self) -> None:
        """Give it back in the background. May be called again."""
        finish(self.drop, self._number)
        self.live.discard(self._number)
        self._owned = False

    def __enter__(self: Owned) -> Owned:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    async def __aenter__(self: Owned) -> Owned:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self, finish: Callable[..., None] = finish) -> None:
        # The module may be gone by then.
        if self._owned:
            finish(self.drop, self._number)
            self.live.discard(self._number)


class Call(Generic[T]):
    """One submitted call, and what it gave once it has ended."""

    __slots__ = ("_build", "abandoned", "error", "result")

    def __init__(self, build: Callable[[Any], T]) -> None:
        self._build = build
        self.result: T | None = None
        self.error: TicketError | None = None
        #: Whoever waited was ended by an exception.
        self.abandoned = False

    def settle(self, outcome: Any) -> None:
        """Take the outcome and tell whoever waits. May be called again with the same one."""
        if self.result is None and self.error is None:
            if type(outcome) is _FAILED:
                self.error = from_core(outcome.error)
            else:
                self.result = self._build(outcome)
        if self.abandoned:
            self.give_back()
            return
        if isinstance(self.result, Owner):
            self.result.own()
        self._tell()

    def give_back(self) -> None:
        """Nobody takes the result."""
        if isinstance(self.result, Owner):
            self.result.close()

    def _tell(self) -> None:
        raise NotImplementedError


class Queue:
    """A queue of the core and the calls that wait in it. It belongs to one consumer."""

    def __init__(self) -> None:
        self.number: int = core.queue_open()
        self.process = os.getpid()
        self._tags = itertools.count(1)
        self._seen = 0
        self._calls: dict[int, Call[Any]] = {}
        self._recorded: dict[int, Any] = {}
        self.close = weakref.finalize(self, core.queue_close, self.number)
        self.close.atexit = False

    def enter(self, call: Call[Any]) -> int:
        """Choose a tag for a call; before it is submitted."""
        tag = next(self._tags)
        self._calls[tag] = call
        return tag

    def give_up(self, tag: int, call: Call[Any]) -> None:
        """Whoever waited for this call does so no more (C8-C10)."""
        call.abandoned = True
        finish(core.cancel, self.number, tag)

    def drain(self, timeout_ms: int) -> None:
        """Settle what has completed, waiting so long for the first."""
        self._deliver()
        for completion in core.queue_next(self.number, self._seen, _MOST_AT_ONCE, timeout_ms):
            # A signal handler that drained this queue meanwhile may be further.
            if completion.seq > self._seen:
                self._recorded[completion.tag] = completion.outcome
                self._seen = completion.seq
        self._deliver()
        _logs.pull()

    def _deliver(self) -> None:
        while self._recorded:
            # A signal handler that drains this queue may empty it meanwhile.
            tag = next(iter(self._recorded), 0)
            call, outcome = self._calls.get(tag), self._recorded.get(tag)
            if call is not None and outcome is not None:
                call.settle(outcome)
            self._calls.pop(tag, None)
            self._recorded.pop(tag, None)
