"""The asyncio face: one queue for each event loop.

The loop watches the queue's descriptor. Where it can't (Windows' default loop), a reader thread
waits for completions and calls into the loop; it takes nothing itself.
"""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from typing import Any, Callable, TypeVar

from ._core import core
from ._queue import Call, Queue, Submit

T = TypeVar("T")

#: So long the reader thread waits at most before it looks whether its queue is still there.
_READER_SLICE_MS = 1000


class _LoopCall(Call[T]):
    __slots__ = ("future",)

    def __init__(self, build: Callable[[Any], T], future: asyncio.Future[T]) -> None:
        super().__init__(build)
        self.future = future

    def settle(self, outcome: Any) -> None:
        # Its task was cancelled, and will see that after this.
        self.abandoned = self.abandoned or self.future.cancelled()
        super().settle(outcome)

    def _tell(self) -> None:
        if self.future.done():
            return
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.result)  # type: ignore[arg-type]


class LoopQueue(Queue):
    """The queue of one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        # The loop holds the queue, by its watch; not the other way round.
        self._loop = weakref.ref(loop)
        self.drained = threading.Event()
        try:
            descriptor = core.queue_fd(self.number)
            if descriptor < 0:
                raise NotImplementedError
            loop.add_reader(descriptor, self._on_ready)
        except NotImplementedError:
            _start_reader(self, loop)

    async def run(self, submit: Submit, build: Callable[[Any], T]) -> T:
        """Submit a call and await what it gives. Cancelling the task cancels the call (C8-C10)."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        call = _LoopCall(build, future)
        tag = self.enter(call)
        try:
            submit(self.number, tag)
            return await future
        except BaseException:
            # A result that crossed the cancellation goes to nobody.
            if future.done() and not future.cancelled():
                if future.exception() is None:
                    call.give_back()
            else:
                self.give_up(tag, call)
            raise

    def end(self) -> None:
        """End the queue of a loop that was closed."""
        loop = self._loop()
        if loop is not None and not loop.is_closed() and self.process == os.getpid():
            loop.remove_reader(core.queue_fd(self.number))
        self.close()

    def _on_ready(self) -> None:
        loop = self._loop()
        # A child of a `fork` leaves the parent's completions alone.
        if loop is None or self.process != os.getpid():
            return
        # Torn by an exception, the drain is made again.
        again = loop.call_soon(self._on_ready)
        self.drain(0)
        again.cancel()
        self.drained.set()


def _start_reader(queue: LoopQueue, loop: asyncio.AbstractEventLoop) -> None:
    reader = threading.Thread(
        target=_read,
        args=(weakref.ref(queue), queue.number, queue.drained, weakref.ref(loop)),
        name="ticketing-reader",
        daemon=True,
    )
    reader.start()


def _read(
    queue: weakref.ref[LoopQueue],
    number: int,
    drained: threading.Event,
    loop: weakref.ref[asyncio.AbstractEventLoop],
) -> None:
    def is_over() -> bool:
        of, on = queue(), loop()
        return of is None or not of.close.alive or on is None or on.is_closed()

    def call_the_loop() -> bool:
        of, on = queue(), loop()
        if of is None or on is None:
            return False
        try:
            on.call_soon_threadsafe(of._on_ready)
        except RuntimeError:  # it was closed meanwhile
            return False
        return True

    while not is_over():
        if core.queue_wait(number, _READER_SLICE_MS):
            drained.clear()
            if not call_the_loop():
                return
            while not drained.wait(_READER_SLICE_MS / 1000):
                if is_over():
                    return


_lock = threading.Lock()
_queues: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, LoopQueue] = (
    weakref.WeakKeyDictionary()
)


def of_this_loop() -> LoopQueue:
    """The queue of the running loop."""
    loop = asyncio.get_running_loop()
    return _queues.get(loop) or _make(loop)


def _make(loop: asyncio.AbstractEventLoop) -> LoopQueue:
    with _lock:
        end_closed_loops()
        queue = _queues[loop] = LoopQueue(loop)
    return queue


def end_closed_loops() -> None:
    """End the queues of loops that were closed, also with calls pending."""
    for loop, queue in list(_queues.items()):
        if loop.is_closed():
            del _queues[loop]
            queue.end()


async def run(submit: Submit, build: Callable[[Any], T]) -> T:
    """Submit a call and await its end."""
    return await of_this_loop().run(submit, build)


_parents: list[Any] = []


def forget() -> None:
    """In a child: the queues are the parent's, and so are their descriptors."""
    global _lock, _queues
    _parents.append(_queues)  # kept, so that nothing of it is ever finalised here
    _lock = threading.Lock()
    _queues = weakref.WeakKeyDictionary()
