"""One exception for each kind of error, the same kinds in every language."""

from __future__ import annotations

import builtins
from typing import Any

from ._core import core


class TicketError(Exception):
    """Why a call did not end in a ticket or a release; the base of all kinds."""

    #: The kind's name, the same in every language.
    kind = "TicketError"
    #: What happened, for people.
    detail: str

    def __init__(self, detail: str) -> None:
        super().__init__(detail)
        self.detail = detail


class TimeoutError(TicketError, builtins.TimeoutError):
    """The key was not free within the wait. Nothing is held; ask again when it suits."""

    kind = "Timeout"


class CancelledError(TicketError):
    """The caller gave up before the request was sent. Nothing is held."""

    kind = "Cancelled"


class ClosedError(TicketError):
    """The broker object was closed, or was inherited through `fork`."""

    kind = "Closed"


class BusyError(TicketError):
    """The broker is at a limit. Nothing is queued or held; back off and ask anew."""

    kind = "Busy"


class ClientCapacityError(TicketError):
    """`max_pending` acquires are outstanding here. Nothing was sent."""

    kind = "ClientCapacity"


class NotConnectedError(TicketError):
    """No connection was usable in time. Nothing is held."""

    kind = "NotConnected"


class AuthError(TicketError):
    """The broker rejects the client token."""

    kind = "Auth"


class IndeterminateError(TicketError):
    """It is not known whether the request took effect. Do not enter the critical section."""

    kind = "Indeterminate"


class InsufficientLeaseError(TicketError):
    """The grant came too late for `min_work`, or `min_work` exceeds the lease. Nothing is held."""

    kind = "InsufficientLease"
    #: The validity that was left, in milliseconds.
    remaining_ms: int
    #: The validity that was asked for, in milliseconds.
    min_work_ms: int

    def __init__(self, detail: str, remaining_ms: int, min_work_ms: int) -> None:
        super().__init__(detail)
        self.remaining_ms = remaining_ms
        self.min_work_ms = min_work_ms

    def __str__(self) -> str:
        return (
            f"{self.remaining_ms} ms of validity do not hold {self.min_work_ms} ms of work: "
            f"{self.detail}"
        )


class UnsupportedDurationError(TicketError, ValueError):
    """A duration above its range; nothing is ever clamped."""

    kind = "UnsupportedDuration"
    #: The argument's name.
    argument: str
    #: The most that it can be, in seconds.
    max_seconds: int

    def __init__(self, detail: str, argument: str, max_seconds: int) -> None:
        super().__init__(detail)
        self.argument = argument
        self.max_seconds = max_seconds

    def __str__(self) -> str:
        return f"{self.argument!r} is at most {self.max_seconds} s: {self.detail}"


class InvalidInputError(TicketError, ValueError):
    """An argument that no call could serve."""

    kind = "InvalidInput"
    #: The argument's name.
    argument: str

    def __init__(self, detail: str, argument: str) -> None:
        super().__init__(detail)
        self.argument = argument

    def __str__(self) -> str:
        return f"{self.argument!r} is not valid: {self.detail}"


class ProtocolError(TicketError):
    """The broker refused the request as wrong, or its bytes were not the protocol's."""

    kind = "Protocol"
    #: The code's name.
    code: str

    def __init__(self, detail: str, code: str) -> None:
        super().__init__(detail)
        self.code = code

    def __str__(self) -> str:
        return f"{self.code}: {self.detail}"


class TlsError(TicketError):
    """TLS could not be set up."""

    kind = "Tls"


class IoError(TicketError):
    """A file could not be read."""

    kind = "Io"


class InternalError(TicketError):
    """A bug of ours, caught at a boundary; please report it."""

    kind = "Internal"


class StaleTicketError(Exception):
    """A later ticket's work is already in the database: this one must not write.

    Let it leave the transaction's block, so that the transaction is rolled back.
    """

    #: The key whose row refused.
    key: str
    #: The refused token.
    token: int

    def __init__(self, key: str, token: int) -> None:
        super().__init__(
            f"the ticket is stale: key {key!r} has been written under a token of {token} or later"
        )
        self.key = key
        self.token = token


_KINDS: dict[str, type[TicketError]] = {kind.kind: kind for kind in TicketError.__subclasses__()}

#: What the generated code raises.
CORE_ERROR: type[Exception] = core.TicketError.Timeout.__mro__[1]


def from_core(error: Any) -> TicketError:
    """Turn the core's error into the package's."""
    kind = _KINDS[type(error).__name__]
    return kind(**vars(error))


def is_a(error: BaseException) -> TicketError | None:
    """Turn an error into the package's, or `None` if it is none of ours."""
    if isinstance(error, TicketError):
        return error
    return from_core(error) if isinstance(error, CORE_ERROR) else None
