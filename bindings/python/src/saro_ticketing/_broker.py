"""The broker object: made once at start-up, shared by all (C21)."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Callable, Union

from . import _logs, _loop_queue, _thread_queue
from ._arguments import Duration, Tls, encode_keys, milliseconds, tls_mode, utf8
from ._core import core
from ._errors import CORE_ERROR, from_core
from ._listener import TicketListener, Told
from ._queue import Submit
from ._ticket import Ticket

Addrs = Union[str, Iterable[str]]


@dataclass(frozen=True)
class Stats:
    """A snapshot of a broker object."""

    #: Sessions that can take a request now.
    sessions_usable: int
    #: Acquires that are not sent yet.
    waiting: int
    #: Acquires that are sent and unanswered.
    sent: int
    #: Tickets handed out, in all.
    granted: int
    #: Releases that the broker answered, in all.
    released: int
    #: Acquires that were given up after they were sent, in all.
    given_up: int
    #: Grants that came to nobody and were given back, in all.
    compensated: int
    #: Automatic releases that were dropped because too many waited; their leases run out.
    automatic_dropped: int
    #: The last connection error, if there was one.
    last_connection_error: str | None


class _Acquire:
    """One acquire: its arguments, checked and encoded, and what its outcome becomes."""

    __slots__ = ("_broker", "_encoded", "_keys", "_lease", "_told", "_wait", "min_work_ms")

    def __init__(
        self,
        broker: TicketBroker,
        keys: Sequence[str],
        is_set: bool,
        durations: tuple[Duration, Duration, Duration],
    ) -> None:
        self._broker = broker
        self._wait = milliseconds("wait", durations[0])
        self._lease = milliseconds("lease", durations[1])
        self.min_work_ms = milliseconds("min_work", durations[2])
        self._encoded = encode_keys(keys)
        self._keys = None if is_set else keys
        listener = broker.listener
        self._told = None if listener is None else Told(listener, keys[0] if keys else "")

    def submit(self, queue: int, tag: int) -> None:
        core.submit_acquire(
            self._broker.number,
            queue,
            tag,
            self._encoded,
            self._wait,
            self._lease,
            self.min_work_ms,
        )

    def build(self, granted: Any) -> Ticket:
        return Ticket(granted.ticket, granted.token, self._keys, self._told)

    def resume(self, ticket: Ticket) -> Ticket:
        ticket.require(self.min_work_ms)
        if self._told is not None:
            self._told.acquired()
        return ticket

    def failed(self, error: BaseException) -> None:
        if self._told is not None:
            self._told.failed(error)


class TicketBroker:
    """A client of one broker, or of one cluster of brokers.

    Made once at start-up and shared by all threads and event loops; it heals itself. Making it
    waits for nothing. The documented order at the end is: release, then close.

    `addrs` is one `host:port` or `[v6]:port`, or two to five of a cluster's nodes in slot order;
    `token` the client token; `tls` is `"off"`, `"system-roots"`, `"insecure-skip-verify"` (for
    tests alone) or the path of a CA file; `cluster` the cluster's name, or 64 hex digits for its
    identity; `max_pending` how many acquires may be outstanding, 1-16384; `listener` hears of
    every call's end.

    Raises `InvalidInputError`, `IoError` (an unreadable CA file) or `TlsError`.
    """

    def __init__(
        self,
        addrs: Addrs,
        token: str = "",
        tls: Tls = "off",
        cluster: str = "default",
        max_pending: int = 1024,
        listener: TicketListener | None = None,
    ) -> None:
        addrs = [addrs] if isinstance(addrs, str) else list(addrs)
        for argument, text in [("addrs", a) for a in addrs] + [("token", token)]:
            utf8(argument, text)
        utf8("cluster", cluster)
        self.listener = listener
        options = core.BrokerOptions(
            addrs=addrs,
            token=token,
            tls=tls_mode(tls),
            cluster=cluster,
            max_pending=max(0, min(max_pending, 2**32 - 1)),
        )
        _logs.pull_now()
        try:
            self.number: int = core.broker_open(options)
        except CORE_ERROR as e:
            raise from_core(e) from None
        finally:
            _logs.pull_now()
        weakref.finalize(self, core.broker_drop, self.number).atexit = False

    @classmethod
    def connect(
        cls,
        addrs: Addrs,
        token: str = "",
        tls: Tls = "off",
        cluster: str = "default",
        max_pending: int = 1024,
        listener: TicketListener | None = None,
    ) -> TicketBroker:
        """Make a broker object; the same as calling the class."""
        return cls(addrs, token, tls, cluster, max_pending, listener)

    async def wait_ready(self, timeout: Duration) -> bool:
        """Wait until a session is usable, at most `timeout`; say whether one is (C21)."""
        return await _loop_queue.run(self._ready(timeout), _is_usable)

    def wait_ready_sync(self, timeout: Duration) -> bool:
        """As `wait_ready`, blocking the thread."""
        return _thread_queue.run(self._ready(timeout), _is_usable)

    async def acquire(
        self, key: str, wait: Duration, lease: Duration, min_work: Duration
    ) -> Ticket:
        """Ask for a ticket on `key`.

        It stands in line for at most `wait` (0-255 s; 0 is one immediate attempt), is held for at
        most `lease` (1-250 s), and has at least `min_work` (0-lease) of validity left when this
        returns. The time in line counts against the lease (C16): choose a lease above
        `wait + min_work`. Durations are seconds or a `timedelta`; `wait` and `lease` are rounded
        up to whole seconds.

        Cancelling the task cancels the request; a grant that crosses this is given back.

        Raises a `TicketError` of the kind that says what to do next. No error means that the
        caller may enter its critical section, every error that it may not.
        """
        return await _acquire(_Acquire(self, (key,), False, (wait, lease, min_work)))

    def acquire_sync(self, key: str, wait: Duration, lease: Duration, min_work: Duration) -> Ticket:
        """As `acquire`, blocking the thread. Ctrl-C ends it, and cancels the request."""
        return _acquire_sync(_Acquire(self, (key,), False, (wait, lease, min_work)))

    async def acquire_set(
        self, keys: Iterable[str], wait: Duration, lease: Duration, min_work: Duration
    ) -> Ticket:
        """As `acquire`, for 1-16 keys at once: all or none, under one token."""
        return await _acquire(_Acquire(self, _listed(keys), True, (wait, lease, min_work)))

    def acquire_set_sync(
        self, keys: Iterable[str], wait: Duration, lease: Duration, min_work: Duration
    ) -> Ticket:
        """As `acquire_set`, blocking the thread."""
        return _acquire_sync(_Acquire(self, _listed(keys), True, (wait, lease, min_work)))

    def stats(self) -> Stats:
        """What it does at the moment, and what it did so far."""
        return Stats(**vars(core.broker_stats(self.number)))

    async def close(self) -> None:
        """End this broker object and wait until its sockets are gone, at most about 5 s (C27).

        Unsent acquires fail with `ClosedError`, sent ones with `IndeterminateError`; releases are
        finished first. Tickets that were handed out stay valid until their lease ends. Closing
        twice is fine.
        """
        await _loop_queue.run(self._submit_close, _nothing)
        _logs.pull_now()

    def close_sync(self) -> None:
        """As `close`, blocking the thread."""
        _thread_queue.run(self._submit_close, _nothing)
        _logs.pull_now()

    def _ready(self, timeout: Duration) -> Submit:
        ms = milliseconds("timeout", timeout)
        return lambda queue, tag: core.submit_ready(self.number, queue, tag, ms)

    def _submit_close(self, queue: int, tag: int) -> None:
        core.submit_close(self.number, queue, tag)

    def __enter__(self) -> TicketBroker:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close_sync()

    async def __aenter__(self) -> TicketBroker:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"TicketBroker({self.stats()!r})"


async def _acquire(acquire: _Acquire) -> Ticket:
    try:
        return acquire.resume(await _loop_queue.run(acquire.submit, acquire.build))
    except BaseException as e:
        acquire.failed(e)
        raise


def _acquire_sync(acquire: _Acquire) -> Ticket:
    try:
        return acquire.resume(_thread_queue.run(acquire.submit, acquire.build))
    except BaseException as e:
        acquire.failed(e)
        raise


def _listed(keys: Iterable[str]) -> Sequence[str]:
    """Keys that are a string would be its characters."""
    if isinstance(keys, (str, bytes)):
        raise TypeError(f"keys is an iterable of keys, not {keys!r}; for one key use acquire")
    return list(keys)


_is_usable: Callable[[Any], bool] = lambda outcome: bool(outcome.usable)  # noqa: E731


def _nothing(_: Any) -> None:
    """A call that gives nothing."""
