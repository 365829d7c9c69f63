"""What callers pass, on its way to the core. Ranges are the core's to check (C1-C5)."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from datetime import timedelta
from typing import Any, Union

from ._core import core
from ._errors import InvalidInputError

Duration = Union[int, float, timedelta]
"""Seconds, or a `timedelta`."""

Tls = Union[str, "os.PathLike[str]"]
"""`"off"`, `"system-roots"`, `"insecure-skip-verify"`, or the path of a CA file."""

_MOST_MS = 2**63 - 1
_MOST_KEY_BYTES = 0xFFFF


def milliseconds(argument: str, value: Duration) -> int:
    """Whole milliseconds, rounded up; what exceeds 64 bits saturates, for the core to refuse."""
    if isinstance(value, timedelta):
        us = (value.days * 86_400 + value.seconds) * 1_000_000 + value.microseconds
        is_negative, ms = us < 0, -(-us // 1000)
    elif isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{argument!r} is seconds (int or float) or a timedelta, not {value!r}")
    elif isinstance(value, float) and not math.isfinite(value):
        raise InvalidInputError(f"{value} is no duration; pass seconds", argument)
    else:
        # Beyond 64 bits a float is whole, and its product may be infinite.
        is_small = abs(value) < _MOST_MS
        is_negative, ms = value < 0, math.ceil(value * 1000) if is_small else int(value) * 1000
    if is_negative:
        raise InvalidInputError(f"{value} is negative", argument)
    return min(ms, _MOST_MS)


def encode_keys(keys: Iterable[str]) -> bytes:
    """Encode each key as a 16-bit length and its UTF-8."""
    if isinstance(keys, (str, bytes)):
        raise TypeError("keys is an iterable of keys; for one key use acquire")
    encoded = bytearray()
    for key in keys:
        raw = utf8("key", key)
        if len(raw) > _MOST_KEY_BYTES:
            raise InvalidInputError(f"{len(raw)} bytes; a key is at most 128", "key")
        encoded += len(raw).to_bytes(2, "big") + raw
    return bytes(encoded)


def utf8(argument: str, text: str) -> bytes:
    """Encode text strictly: a lone surrogate is an error."""
    if not isinstance(text, str):
        raise TypeError(f"{argument!r} is a str, not {type(text).__name__}")
    try:
        return text.encode()
    except UnicodeEncodeError as e:
        raise InvalidInputError(f"it is not valid Unicode: {e.reason}", argument) from None


def tls_mode(tls: Tls) -> Any:
    """Turn the TLS option into the core's."""
    path = os.fspath(tls)
    if path == "off":
        return core.TlsMode.OFF()
    if path == "system-roots":
        return core.TlsMode.SYSTEM_ROOTS()
    if path == "insecure-skip-verify":
        return core.TlsMode.INSECURE_SKIP_VERIFY()
    utf8("tls", path)
    return core.TlsMode.CA(path)
