"""The one place where the generated module is imported, and where it must not be."""

from __future__ import annotations

import sys
from typing import Any


def _refuse_where_it_was_never_tried() -> None:
    """The library is one for the process: interpreters of one process can't share it."""
    name = "_interpreters" if sys.version_info >= (3, 13) else "_xxsubinterpreters"
    try:
        interpreters = __import__(name)
    except ImportError:
        pass
    else:
        current, main = interpreters.get_current(), interpreters.get_main()
        if current != main:
            raise ImportError(
                "saro_ticketing does not work in a sub-interpreter; import it in the main one"
            )
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        raise ImportError(
            "saro_ticketing does not work on a free-threaded Python; use the default build"
        )


_refuse_where_it_was_never_tried()

from ._ticketing import ticketing  # noqa: E402

#: The generated functions and types. Untyped here: the layer above has the types.
core: Any = ticketing

__all__ = ["core"]
