"""What the tests share: a broker of the fixture, broker objects, bounded waits."""

from __future__ import annotations

import asyncio
import itertools
import os
import re
import shutil
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, TypeVar

import pytest

from saro_ticketing import TicketBroker, TimeoutError
from saro_ticketing.pytest_plugin import RunningBroker

T = TypeVar("T")

#: Long enough for a loaded machine; nothing waits for its end.
SOON = 30

_numbers = itertools.count()


@pytest.fixture
def program() -> str:
    """The `ticketing` program."""
    found = os.environ.get("TICKETING_PROGRAM") or shutil.which("ticketing")
    assert found
    return found


@pytest.fixture
def addr(ticketing_broker: RunningBroker) -> str:
    return ticketing_broker.addr


@pytest.fixture
def broker(addr: str) -> Iterator[TicketBroker]:
    broker = TicketBroker.connect(addr)
    yield broker
    broker.close_sync()


@pytest.fixture
def key(request: pytest.FixtureRequest) -> str:
    """A key of the test's own."""
    return f"{next(_numbers)}-" + re.sub(r"[^a-z0-9_.-]", "-", request.node.name.lower())[:100]


def soon(awaitable: Awaitable[T]) -> Awaitable[T]:
    return asyncio.wait_for(awaitable, SOON)


def until(condition: Callable[[], Any]) -> None:
    end = time.monotonic() + SOON
    while not condition():
        assert time.monotonic() < end, "it never came to that"
        time.sleep(0.005)


async def until_async(condition: Callable[[], Any]) -> None:
    end = time.monotonic() + SOON
    while not condition():
        assert time.monotonic() < end, "it never came to that"
        await asyncio.sleep(0.005)


def is_free(broker: TicketBroker, key: str) -> bool:
    try:
        with broker.acquire_sync(key, 0, 5, 0) as ticket:
            ticket.release_sync()
        return True
    except TimeoutError:
        return False
