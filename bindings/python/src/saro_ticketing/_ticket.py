"""Tickets: what a granted acquire hands to the caller (C16-C18)."""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from . import _fence, _loop_queue, _thread_queue
from ._core import core
from ._errors import InsufficientLeaseError
from ._queue import Owner

if TYPE_CHECKING:
    from ._listener import Told

#: The event loop's clock may stand still while the machine sleeps, so it is asked that often.
_LONGEST_SLEEP = 1.0


class ReleaseOutcome(enum.Enum):
    """How a release ended."""

    #: The grant was held and is gone now.
    RELEASED = "Released"
    #: No such grant is held: the lease had run out, or an earlier try of the same release took
    #: effect and its answer was lost.
    NOT_CURRENT = "NotCurrent"


def release_outcome(outcome: Any) -> ReleaseOutcome:
    """Turn the core's outcome of a release into the package's."""
    is_released = isinstance(outcome, core.Outcome.RELEASED)
    return ReleaseOutcome.RELEASED if is_released else ReleaseOutcome.NOT_CURRENT


class Ticket(Owner):
    """The right to work on its keys until it is released or its validity ends.

    It belongs to no thread and no loop. `with` and `async with` give it back at the end of the
    block, in the background and without an exception of their own; so does its collection.
    """

    __slots__ = ("_keys", "_outcome", "_token", "_told")

    drop = staticmethod(core.ticket_drop)
    live: ClassVar[set[int]] = set()

    def __init__(
        self, number: int, token: int, keys: Sequence[str] | None, told: Told | None
    ) -> None:
        super().__init__(number)
        self._token = token
        self._keys: tuple[str, ...] = tuple(core.ticket_keys(number) if keys is None else keys)
        self._told = told
        self._outcome: ReleaseOutcome | None = None

    @property
    def key(self) -> str:
        """The key; of a set the first one."""
        return self._keys[0]

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys, sorted and without repetition."""
        return self._keys

    @property
    def token(self) -> int:
        """The fencing token: it rises with every grant of every key, for ever (C20)."""
        return self._token

    @property
    def remaining(self) -> float:
        """How many seconds the ticket is valid for certain; 0 once that has ended (C16)."""
        return float(core.ticket_remaining_ms(self._number)) / 1000

    async def expired(self) -> None:
        """End when `remaining` reaches 0: stop working then."""
        while left := self.remaining:
            await asyncio.sleep(min(left, _LONGEST_SLEEP))

    async def release(self) -> ReleaseOutcome:
        """Give the grant back and say how that went.

        Repeated until the broker answers or 5 s have passed (C19), also when the task is
        cancelled. A second call returns the first one's outcome and sends nothing.

        Raises `IndeterminateError` (sent, but no answer within 5 s; the lease runs out by itself),
        `NotConnectedError` (it could not be sent within 5 s), `ClosedError` or `ProtocolError`.
        """
        if self._outcome is None:
            self._outcome = await _loop_queue.run(self._submit_release, release_outcome)
            self._tell_released()
        return self._outcome

    def release_sync(self) -> ReleaseOutcome:
        """As `release`, blocking the thread."""
        if self._outcome is None:
            self._outcome = _thread_queue.run(self._submit_release, release_outcome)
            self._tell_released()
        return self._outcome

    def close(self) -> None:
        """Give the grant back in the background, unless that was done or `keep` called."""
        super().close()
        self._tell_released()

    def keep(self) -> None:
        """No automatic release: the lease runs out by itself, which makes a cool-down."""
        core.ticket_keep(self._number)

    def fence(self, cursor: Any) -> None:
        """Fence the caller's transaction (C20): call it first in the transaction.

        `cursor` is a DB-API cursor, or a SQLAlchemy `Session` or `Connection`; do the business
        write after it, commit, then release. It allows one transaction per ticket.

        Raises `StaleTicketError` when a later ticket's work is already there: let it leave the
        transaction's block. A connection in autocommit mode is a `ValueError`.
        """
        _fence.fence(cursor, self._keys, self._token, again=False)

    def fence_again(self, cursor: Any) -> None:
        """As `fence`, for a further transaction under the same ticket."""
        _fence.fence(cursor, self._keys, self._token, again=True)

    def require(self, min_work_ms: int) -> None:
        """Check C16 the last time, where the caller resumes: give back what came too late."""
        left = core.ticket_remaining_ms(self._number)
        if left <= 0 or left < min_work_ms:
            self.close()
            raise InsufficientLeaseError(
                "the caller resumed too late; the grant is given back", left, min_work_ms
            )

    def _submit_release(self, queue: int, tag: int) -> None:
        core.submit_release(queue, tag, self._number)

    def _tell_released(self) -> None:
        if self._told is not None:
            self._told.released()

    def __repr__(self) -> str:
        return f"Ticket(keys={self._keys!r}, token={self._token}, remaining={self.remaining})"
