"""What a broker object tells a listener, for metrics."""

from __future__ import annotations

import time

from . import _logs


class TicketListener:
    """Hears of every call's end; each method does nothing until it is overridden.

    Called where the call ends: on the event loop, or in the thread that called. It must not block.
    What it raises is logged and goes no further. Times are seconds.
    """

    def on_acquired(self, key: str, wait: float) -> None:
        """A ticket was handed out after `wait`."""

    def on_released(self, key: str, wait: float, hold: float) -> None:
        """A ticket that took `wait` was given back, or its release begun, after `hold`."""

    def on_failed(self, key: str, wait: float, error: BaseException) -> None:
        """An acquire ended without a ticket after `wait`, with a `TicketError` or cancelled."""


class Told:
    """One acquire, as its listener hears of it."""

    __slots__ = ("_acquired", "_asked", "_key", "_listener", "_released")

    def __init__(self, listener: TicketListener, key: str) -> None:
        self._listener = listener
        self._key = key
        self._asked = time.monotonic()
        self._acquired: float | None = None
        self._released = False

    def acquired(self) -> None:
        """Its ticket is handed out."""
        self._acquired = time.monotonic()
        try:
            self._listener.on_acquired(self._key, self._acquired - self._asked)
        except Exception:
            _logs.logger.exception("a listener's on_acquired failed")

    def failed(self, error: BaseException) -> None:
        """It ended without a ticket."""
        try:
            self._listener.on_failed(self._key, time.monotonic() - self._asked, error)
        except Exception:
            _logs.logger.exception("a listener's on_failed failed")

    def released(self) -> None:
        """Its ticket is given back; told once."""
        if self._released or self._acquired is None:
            return
        self._released = True
        wait, hold = self._acquired - self._asked, time.monotonic() - self._acquired
        try:
            self._listener.on_released(self._key, wait, hold)
        except Exception:
            _logs.logger.exception("a listener's on_released failed")
