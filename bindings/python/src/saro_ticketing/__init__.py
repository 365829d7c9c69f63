"""Tickets on keys from a Ticketing broker, and the fenced write.

A process asks a broker for a ticket on a key (wait at most so long, hold at most so long, need at
least so much time to work), works while it holds it, and fences its database write with the
ticket's token, so that a holder that was paused past its lease can't overwrite a later one's work.

    broker = TicketBroker.connect("127.0.0.1:5225")
    async with await broker.acquire("order-42", wait=5, lease=30, min_work=10) as ticket:
        ...  # one transaction that begins with ticket.fence(cursor)

Clause numbers (C13) are those of the project's docs/semantics.md.
"""

from __future__ import annotations

from . import _process
from ._arguments import Duration, Tls
from ._broker import Stats, TicketBroker
from ._errors import (
    AuthError,
    BusyError,
    CancelledError,
    ClientCapacityError,
    ClosedError,
    IndeterminateError,
    InsufficientLeaseError,
    InternalError,
    InvalidInputError,
    IoError,
    NotConnectedError,
    ProtocolError,
    StaleTicketError,
    TicketError,
    TimeoutError,
    TlsError,
    UnsupportedDurationError,
)
from ._fence import Dialect, fence_statement, fence_table
from ._leader import Candidate, Leadership
from ._listener import TicketListener
from ._ticket import ReleaseOutcome, Ticket

__version__ = "0.1.0"

__all__ = [
    "AuthError",
    "BusyError",
    "CancelledError",
    "Candidate",
    "ClientCapacityError",
    "ClosedError",
    "Dialect",
    "Duration",
    "IndeterminateError",
    "InsufficientLeaseError",
    "InternalError",
    "InvalidInputError",
    "IoError",
    "Leadership",
    "NotConnectedError",
    "ProtocolError",
    "ReleaseOutcome",
    "StaleTicketError",
    "Stats",
    "Ticket",
    "TicketBroker",
    "TicketError",
    "TicketListener",
    "TimeoutError",
    "Tls",
    "TlsError",
    "UnsupportedDurationError",
    "fence_statement",
    "fence_table",
]

_process.install()
