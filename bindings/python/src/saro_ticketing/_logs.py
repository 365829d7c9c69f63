"""The library's log, handed to Python's `logging` under the name `saro_ticketing`."""

from __future__ import annotations

import logging
import time
from typing import Any

from ._core import core

logger = logging.getLogger("saro_ticketing")

_LEVELS = {
    core.LogLevel.ERROR: logging.ERROR,
    core.LogLevel.WARN: logging.WARNING,
    core.LogLevel.INFO: logging.INFO,
    core.LogLevel.DEBUG: logging.DEBUG,
    core.LogLevel.TRACE: logging.DEBUG - 5,
    core.LogLevel.OFF: logging.CRITICAL + 1,
}

_SECONDS_BETWEEN = 0.1

_next_pull = 0.0
_level = core.LogLevel.WARN


def pull() -> None:
    """Hand over what the library said; at most ten times a second, since it costs a call."""
    global _next_pull
    now = time.monotonic()
    if now >= _next_pull:
        _next_pull = now + _SECONDS_BETWEEN
        pull_now()


def pull_now() -> None:
    """Hand over what the library said, and take up the level that the logger has by now."""
    global _level
    level = _wanted(logger.getEffectiveLevel())
    if level is not _level:
        core.set_log_level(level)
        _level = level
    for record in core.drain_logs():
        logger.log(_LEVELS[record.level], "%s: %s", record.target, record.message)


def _wanted(effective: int) -> Any:
    for level, number in sorted(_LEVELS.items(), key=lambda item: item[1]):
        if number >= effective:
            return level
    return core.LogLevel.OFF
