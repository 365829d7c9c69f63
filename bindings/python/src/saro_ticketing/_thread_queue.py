"""The blocking face: one queue for each thread that blocks."""

from __future__ import annotations

import threading
from typing import Any, Callable, TypeVar

from ._queue import Call, Queue, Submit

T = TypeVar("T")

#: A wait in the core is that long at most, so that signals are handled meanwhile.
_SLICE_MS = 100


class _BlockingCall(Call[T]):
    __slots__ = ("done",)

    def __init__(self, build: Callable[[Any], T]) -> None:
        super().__init__(build)
        self.done = False

    def _tell(self) -> None:
        self.done = True


class ThreadQueue(Queue):
    """The queue of the thread that blocks on it."""

    def run(self, submit: Submit, build: Callable[[Any], T]) -> T:
        """Submit a call and wait for what it gives."""
        call = _BlockingCall(build)
        tag = self.enter(call)
        try:
            submit(self.number, tag)
            while not call.done:
                self.drain(_SLICE_MS)
        except BaseException:
            if call.done:
                call.give_back()
            else:
                self.give_up(tag, call)
            raise
        if call.error is not None:
            raise call.error
        return call.result  # type: ignore[return-value]


_local = threading.local()


def of_this_thread() -> ThreadQueue:
    """The queue of the calling thread; it ends with the thread."""
    queue = getattr(_local, "queue", None)
    if queue is None:
        queue = _local.queue = ThreadQueue()
    return queue


def run(submit: Submit, build: Callable[[Any], T]) -> T:
    """Submit a call and block until it has ended."""
    return of_this_thread().run(submit, build)


def forget() -> None:
    """In a child: the queues are the parent's."""
    global _local
    _local = threading.local()
