"""Cancellation: of tasks, by deadlines, and as it crosses a grant (C8-C10)."""

from __future__ import annotations

import asyncio
import random
import sys

import pytest
from conftest import SOON, is_free, soon, until_async

from saro_ticketing import TicketBroker, _loop_queue


async def test_c9_a_cancelled_waiter_leaves_the_line(broker: TicketBroker, key: str) -> None:
    async with await broker.acquire(key, 5, 250, 0) as ticket:
        waiting = asyncio.ensure_future(broker.acquire(key, 200, 250, 0))
        await until_async(lambda: broker.stats().sent)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await soon(waiting)
        await ticket.release()
    # Nobody stands before it: what the cancelled one was granted meanwhile is given back.
    (await broker.acquire(key, SOON, 30, 0)).close()


async def test_c8_a_task_that_is_cancelled_before_it_runs_sends_nothing(
    broker: TicketBroker, key: str
) -> None:
    before = broker.stats()
    task = asyncio.ensure_future(broker.acquire(key, 5, 30, 0))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    after = broker.stats()
    assert (after.granted, after.given_up, after.sent) == (before.granted, 0, 0)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="asyncio.timeout and TaskGroup are of 3.11")
async def test_c9_a_deadline_and_a_task_group(broker: TicketBroker, key: str) -> None:
    async with await broker.acquire(key, 5, 250, 0):
        with pytest.raises(TimeoutError) as caught:
            async with asyncio.timeout(0.2):
                await broker.acquire(key, 200, 250, 0)
        assert type(caught.value) is TimeoutError  # asyncio's own
        with pytest.raises(BaseExceptionGroup) as group:  # noqa: F821
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(broker.acquire(key, 200, 250, 0))
                tasks.create_task(_fails())
        assert group.group_contains(ZeroDivisionError)
    (await broker.acquire(key, SOON, 30, 0)).close()


async def _fails() -> None:
    await asyncio.sleep(0.1)
    1 / 0  # noqa: B018


async def test_c10_a_cancel_that_crosses_the_grant_loses_nothing(
    broker: TicketBroker, key: str
) -> None:
    """Thousands of cancels around the delivery: each ticket is the caller's or given back."""
    got = cancelled = 0
    for _ in range(2000):
        task = asyncio.ensure_future(broker.acquire(key, SOON, 250, 0))
        for _ in range(random.randrange(12)):
            await asyncio.sleep(0)
        if random.random() < 0.5:
            await asyncio.sleep(random.random() * 0.0008)
        task.cancel()
        try:
            ticket = await task
        except asyncio.CancelledError:
            cancelled += 1
        else:
            got += 1
            await ticket.release()
    assert got + cancelled == 2000
    await until_async(lambda: not broker.stats().sent)
    (await broker.acquire(key, SOON, 30, 0)).close()
    queue = _loop_queue.of_this_loop()
    await until_async(lambda: not queue._calls)


async def test_c10_a_cancel_after_the_result_gives_the_ticket_back(
    broker: TicketBroker, key: str
) -> None:
    task = asyncio.ensure_future(broker.acquire(key, 5, 250, 0))
    queue = _loop_queue.of_this_loop()
    call = None
    while call is None or not call.future.done():  # type: ignore[attr-defined]
        await asyncio.sleep(0)
        call = call or next(iter(queue._calls.values()), None)
    task.cancel()
    try:
        ticket = await task
    except asyncio.CancelledError:
        (await broker.acquire(key, SOON, 30, 0)).close()
    else:  # it was resumed first
        ticket.close()


def test_a_cancelled_release_goes_on(broker: TicketBroker, key: str) -> None:
    async def main() -> None:
        ticket = await broker.acquire(key, 5, 250, 0)
        task = asyncio.ensure_future(ticket.release())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until_async(lambda: broker.stats().released)

    asyncio.run(main())
    assert is_free(broker, key)
