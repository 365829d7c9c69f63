"""Many loops and threads, loops that end early, loops that can't watch a descriptor."""

from __future__ import annotations

import asyncio
import gc
import selectors
import threading

import pytest
from conftest import SOON, is_free, until, until_async

from saro_ticketing import TicketBroker, _loop_queue

uvloop = pytest.importorskip("uvloop")


class Unwatched(asyncio.SelectorEventLoop):
    """As Windows' default loop: it watches no descriptors."""

    def add_reader(self, *args: object) -> None:
        raise NotImplementedError


def run(loop: asyncio.AbstractEventLoop, coroutine: object) -> object:
    asyncio.set_event_loop(loop)
    try:
        return loop.run_until_complete(coroutine)  # type: ignore[arg-type]
    finally:
        loop.close()
        asyncio.set_event_loop(None)


LOOPS = [asyncio.SelectorEventLoop, uvloop.new_event_loop, Unwatched]


@pytest.mark.parametrize("make", LOOPS)
def test_every_kind_of_loop(broker: TicketBroker, key: str, make: type) -> None:
    async def work(n: int) -> int:
        async with await broker.acquire(f"{key}{n % 3}", SOON, 30, 0) as ticket:
            await ticket.release()
            return ticket.token

    async def main() -> list[int]:
        return await asyncio.gather(*(work(n) for n in range(60)))

    tokens = run(make(), main())
    assert len(set(tokens)) == 60  # type: ignore[arg-type, call-overload]


@pytest.mark.parametrize("make", LOOPS)
def test_a_loop_that_is_closed_with_calls_pending(
    broker: TicketBroker, key: str, make: type
) -> None:
    async def main() -> None:
        pending = asyncio.ensure_future(broker.acquire(key, 200, 250, 0))
        pending._log_destroy_pending = False  # type: ignore[attr-defined]
        await until_async(lambda: broker.stats().sent)

    with broker.acquire_sync(key, 5, 250, 0) as ticket:
        run(make(), main())
        gc.collect()
        # The next loop finds the one that ended.
        asyncio.run(_nothing(broker))
        ticket.release_sync()
    broker.acquire_sync(key, SOON, 30, 0).close()
    until(lambda: not broker.stats().sent)


async def _nothing(broker: TicketBroker) -> None:
    await broker.wait_ready(SOON)


def test_one_loop_after_another_leaves_no_queue_behind(broker: TicketBroker, key: str) -> None:
    for _ in range(50):
        asyncio.run(_nothing(broker))
    _loop_queue.end_closed_loops()
    assert not [loop for loop in _loop_queue._queues if loop.is_closed()]


def test_loops_in_many_threads_share_a_broker_object(broker: TicketBroker, key: str) -> None:
    tokens: list[int] = []

    async def main() -> None:
        for _ in range(25):
            async with await broker.acquire(key, SOON, 30, 0) as ticket:
                tokens.append(ticket.token)
                await ticket.release()

    threads = [threading.Thread(target=lambda: asyncio.run(main())) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SOON)
    assert len(tokens) == 150 and tokens == sorted(tokens)


def test_a_ticket_outlives_its_loop(broker: TicketBroker, key: str) -> None:
    async def main() -> object:
        return await broker.acquire(key, 5, 250, 0)

    ticket = run(asyncio.SelectorEventLoop(selectors.SelectSelector()), main())
    assert not is_free(broker, key)
    ticket.release_sync()  # type: ignore[attr-defined]
    assert is_free(broker, key)
