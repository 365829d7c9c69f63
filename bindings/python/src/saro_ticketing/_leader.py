"""Leadership by fenced terms: one leader of a name at a time, for as long as it lives."""

from __future__ import annotations

from typing import Any, ClassVar

from . import _fence, _loop_queue, _thread_queue
from ._arguments import Duration, milliseconds, utf8
from ._broker import TicketBroker
from ._core import core
from ._queue import Owner, Submit
from ._ticket import ReleaseOutcome, release_outcome

_DEFAULT_MARGIN = -1


class Candidate:
    """Somebody who would lead: a broker object, the name, and how long a term is.

    `lease` is each term's, 1-250 s: for so long at most nobody leads after a leader has died.
    `margin` is how long before the end of its last term a leader is told of the loss, so that it
    can stop its work: at most half of the lease, and a fifth of it if left out.
    """

    def __init__(
        self,
        broker: TicketBroker,
        name: str,
        lease: Duration = 30,
        margin: Duration | None = None,
    ) -> None:
        self._broker = broker
        self._name = name
        self._encoded = utf8("name", name)
        self._lease_ms = milliseconds("lease", lease)
        self._margin_ms = _DEFAULT_MARGIN if margin is None else milliseconds("margin", margin)

    async def campaign(self) -> Leadership:
        """Stand until this candidate leads; cancelling the task withdraws it.

        Raises `InvalidInputError` and `UnsupportedDurationError` for name, lease and margin;
        `ClosedError`, `AuthError` and `ProtocolError`. It tries again after everything else.
        """
        return await _loop_queue.run(self._submit, self._build)

    def campaign_sync(self) -> Leadership:
        """As `campaign`, blocking the thread."""
        return _thread_queue.run(self._submit, self._build)

    def _submit(self, queue: int, tag: int) -> None:
        core.submit_campaign(
            self._broker.number, queue, tag, self._encoded, self._lease_ms, self._margin_ms
        )

    def _build(self, elected: Any) -> Leadership:
        return Leadership(elected.leadership, self._name)


class Leadership(Owner):
    """The leadership of a name, from an election until it is lost or resigned.

    It goes from term to term in the background. `with` and `async with` resign it at the end of
    the block without waiting for the outcome, and so does its collection: end the work first.
    """

    __slots__ = ("_name",)

    drop = staticmethod(core.leadership_drop)
    live: ClassVar[set[int]] = set()

    def __init__(self, number: int, name: str) -> None:
        super().__init__(number)
        self._name = name

    @property
    def name(self) -> str:
        """The name that is led."""
        return self._name

    @property
    def token(self) -> int:
        """The fencing token of the current term; those of later terms and leaders are higher."""
        return int(core.leadership_token(self._number))

    @property
    def remaining(self) -> float:
        """For how many seconds this leads for certain if no further term follows."""
        return float(core.leadership_remaining_ms(self._number)) / 1000

    async def next_term(self, token: int) -> int | None:
        """Wait for the term after the one with `token` and give its token; `None` once lost."""
        if not self._owned:
            return None
        return await _loop_queue.run(self._next(token), _token)

    async def lost(self) -> None:
        """End when the leadership is lost, `margin` before its end: stop the work then."""
        token: int | None = self.token
        while token is not None:
            token = await self.next_term(token)

    def lost_sync(self) -> None:
        """As `lost`, blocking the thread."""
        token: int | None = self.token
        while token is not None and self._owned:
            token = _thread_queue.run(self._next(token), _token)

    async def resign(self) -> ReleaseOutcome:
        """Let go at once, so that another can lead; end the work first."""
        return await _loop_queue.run(self._submit_resign, release_outcome)

    def resign_sync(self) -> ReleaseOutcome:
        """As `resign`, blocking the thread."""
        return _thread_queue.run(self._submit_resign, release_outcome)

    def fence(self, cursor: Any) -> None:
        """Fence the caller's transaction under the current term, in the row of the name.

        As `Ticket.fence_again`, for any number of transactions.
        """
        _fence.fence(cursor, (self._name,), self.token, again=True)

    def _next(self, token: int) -> Submit:
        return lambda queue, tag: core.submit_next_term(queue, tag, self._number, token)

    def _submit_resign(self, queue: int, tag: int) -> None:
        core.submit_resign(queue, tag, self._number)

    def __repr__(self) -> str:
        return f"Leadership(name={self._name!r}, token={self.token}, remaining={self.remaining})"


def _token(outcome: Any) -> int | None:
    return outcome.token if isinstance(outcome, core.Outcome.TERM) else None
