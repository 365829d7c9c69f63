"""Acquire and release on both faces, and what a ticket tells."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from datetime import timedelta

import pytest
from conftest import SOON, is_free, soon, until

from saro_ticketing import (
    ClosedError,
    InsufficientLeaseError,
    InvalidInputError,
    ReleaseOutcome,
    Ticket,
    TicketBroker,
    TicketError,
    TicketListener,
    TimeoutError,
    UnsupportedDurationError,
)


async def test_a_ticket_has_key_keys_token_and_remaining(broker: TicketBroker, key: str) -> None:
    async with await broker.acquire(key, 5, 30, 10) as ticket:
        assert ticket.key == key
        assert ticket.keys == (key,)
        assert 2**60 < ticket.token < 2**63
        assert 20 < ticket.remaining <= 30
        assert repr(ticket.token) in repr(ticket)


def test_c5_a_set_is_sorted_and_without_repetition(broker: TicketBroker, key: str) -> None:
    keys = [f"{key}-b", f"{key}-a", f"{key}-b"]
    with broker.acquire_set_sync(iter(keys), 5, 30, 10) as ticket:
        assert ticket.keys == (f"{key}-a", f"{key}-b")
        assert ticket.key == f"{key}-a"
        for one in keys:
            assert not is_free(broker, one)
    until(lambda: is_free(broker, keys[0]) and is_free(broker, keys[1]))


async def test_c18_a_release_says_how_it_went_and_is_sent_once(
    broker: TicketBroker, key: str
) -> None:
    first = await broker.acquire(key, 5, 30, 10)
    assert await first.release() is ReleaseOutcome.RELEASED
    async with await broker.acquire(key, 0, 30, 10) as second:
        assert second.token > first.token
        assert await first.release() is ReleaseOutcome.RELEASED
        assert first.release_sync() is ReleaseOutcome.RELEASED
        assert second.remaining > 0 and not is_free(broker, key)
    assert broker.stats().released >= 1


async def test_c18_a_scope_gives_back_also_when_it_is_left_by_an_exception(
    broker: TicketBroker, key: str
) -> None:
    with pytest.raises(ZeroDivisionError):
        async with await broker.acquire(key, 5, 30, 10):
            1 / 0  # noqa: B018
    with pytest.raises(ZeroDivisionError), broker.acquire_sync(key, 5, 30, 10):
        1 / 0  # noqa: B018
    (await broker.acquire(key, 5, 30, 10)).close()


def test_c18_a_ticket_that_is_collected_is_given_back(broker: TicketBroker, key: str) -> None:
    ticket = broker.acquire_sync(key, 5, 250, 10)
    assert not is_free(broker, key)
    del ticket
    gc.collect()
    until(lambda: is_free(broker, key))


def test_c18_a_kept_ticket_is_not_given_back(broker: TicketBroker, key: str) -> None:
    with broker.acquire_sync(key, 5, 2, 0) as ticket:
        began = time.monotonic()
        ticket.keep()
    del ticket
    gc.collect()
    assert not is_free(broker, key)
    with broker.acquire_sync(key, SOON, 200, 0):
        assert time.monotonic() - began > 1.5


async def test_c12_a_key_that_is_not_free_is_a_timeout(broker: TicketBroker, key: str) -> None:
    async with await broker.acquire(key, 5, 30, 10):
        with pytest.raises(TimeoutError) as caught:
            await broker.acquire(key, 0, 30, 10)
        assert isinstance(caught.value, TicketError)
        assert caught.value.kind == "Timeout"
        began = time.monotonic()
        with pytest.raises(__builtins__["TimeoutError"]):  # type: ignore[index]
            broker.acquire_sync(key, 1, 30, 10)
        assert time.monotonic() - began >= 0.9


async def test_c17_the_end_of_the_validity_can_be_awaited(broker: TicketBroker, key: str) -> None:
    ticket = await broker.acquire(key, 5, 1, 0)
    assert ticket.remaining > 0
    await soon(ticket.expired())
    assert ticket.remaining == 0
    assert await ticket.release() is ReleaseOutcome.NOT_CURRENT


@pytest.mark.parametrize("duration", [3, 3.0, 2.1, timedelta(seconds=3)])
def test_c4_durations_are_numbers_or_timedelta(
    broker: TicketBroker, key: str, duration: float
) -> None:
    with broker.acquire_sync(key, duration, duration, 0) as ticket:
        assert 2 < ticket.remaining <= 3


NEVER = [float("nan"), float("inf"), float("-inf"), -1, -0.001, timedelta(microseconds=-1)]


@pytest.mark.parametrize("argument", ["wait", "lease", "min_work"])
@pytest.mark.parametrize("value", NEVER)
def test_c4_what_is_no_duration_is_invalid_input(
    broker: TicketBroker, key: str, argument: str, value: float
) -> None:
    with pytest.raises(InvalidInputError) as caught:
        broker.acquire_sync(key, **{"wait": 5, "lease": 5, "min_work": 0, argument: value})
    assert caught.value.argument == argument
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize(("argument", "most"), [("wait", 255), ("lease", 250), ("min_work", 250)])
@pytest.mark.parametrize("value", [255.001, 1e30, 10**40, 2**63, timedelta.max])
def test_c4_what_is_too_long_is_refused_and_never_clamped(
    broker: TicketBroker, key: str, argument: str, most: int, value: float
) -> None:
    with pytest.raises(UnsupportedDurationError) as caught:
        broker.acquire_sync(key, **{"wait": 5, "lease": 250, "min_work": 0, argument: value})
    assert (caught.value.argument, caught.value.max_seconds) == (argument, most)
    assert str(most) in str(caught.value)


def test_c3_min_work_above_the_lease_says_both(broker: TicketBroker, key: str) -> None:
    with pytest.raises(InsufficientLeaseError) as caught:
        broker.acquire_sync(key, 5, 2, 2.5)
    assert (caught.value.remaining_ms, caught.value.min_work_ms) == (2000, 2500)


@pytest.mark.parametrize("wrong", ["", "a b", "\ud83d", "x" * 129, "x" * 70000, "\n"])
def test_c5_a_wrong_key_is_invalid_input(broker: TicketBroker, wrong: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        broker.acquire_sync(wrong, 5, 5, 0)
    assert caught.value.argument == "key"


def test_c5_a_set_is_1_to_16_keys_and_no_string(broker: TicketBroker) -> None:
    for keys in ([], [str(n) for n in range(17)]):
        with pytest.raises(InvalidInputError) as caught:
            broker.acquire_set_sync(keys, 5, 5, 0)
        assert caught.value.argument == "keys"
    with pytest.raises(TypeError, match="use acquire"):
        broker.acquire_set_sync("abc", 5, 5, 0)


def test_wrong_types_are_type_errors(broker: TicketBroker, key: str) -> None:
    with pytest.raises(TypeError, match="wait"):
        broker.acquire_sync(key, "5", 5, 0)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="lease"):
        broker.acquire_sync(key, 5, True, 0)
    with pytest.raises(TypeError, match="key"):
        broker.acquire_sync(b"key", 5, 5, 0)  # type: ignore[arg-type]


def test_c6_a_wrong_address_is_invalid_input() -> None:
    with pytest.raises(InvalidInputError) as caught:
        TicketBroker.connect("no port")
    assert caught.value.argument == "addrs"


async def test_c27_after_close_a_call_says_closed(addr: str, key: str) -> None:
    async with TicketBroker.connect(addr) as broker:
        assert await broker.wait_ready(SOON)
        ticket = await broker.acquire(key, 5, 30, 0)
        waiting = asyncio.ensure_future(broker.acquire(key, 50, 30, 0))
        while not broker.stats().sent:
            await asyncio.sleep(0.001)
        assert await ticket.release() is ReleaseOutcome.RELEASED
        (await waiting).close()
    with pytest.raises(ClosedError):
        await broker.acquire(key, 5, 30, 0)
    await broker.close()
    assert not broker.wait_ready_sync(0.1)


def test_a_dropped_broker_object_closes_by_itself(addr: str) -> None:
    broker = TicketBroker.connect(addr)
    assert broker.wait_ready_sync(SOON)
    del broker
    gc.collect()


async def test_calls_from_a_task_group_and_many_threads(broker: TicketBroker, key: str) -> None:
    tokens: list[int] = []

    def work() -> None:
        for _ in range(20):
            with broker.acquire_sync(key, SOON, 30, 0) as ticket:
                tokens.append(ticket.token)
                ticket.release_sync()

    async def work_async() -> None:
        for _ in range(20):
            async with await broker.acquire(key, SOON, 30, 0) as ticket:
                tokens.append(ticket.token)
                await ticket.release()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    await asyncio.gather(*(work_async() for _ in range(4)))
    while any(thread.is_alive() for thread in threads):
        await asyncio.sleep(0.01)
    assert len(tokens) == 160
    assert tokens == sorted(tokens)


class Heard(TicketListener):
    def __init__(self) -> None:
        self.said: list[tuple[str, str]] = []

    def on_acquired(self, key: str, wait: float) -> None:
        assert wait >= 0
        self.said.append(("acquired", key))

    def on_released(self, key: str, wait: float, hold: float) -> None:
        assert wait >= 0 and hold >= 0
        self.said.append(("released", key))

    def on_failed(self, key: str, wait: float, error: BaseException) -> None:
        self.said.append((type(error).__name__, key))
        raise RuntimeError("what a listener raises goes no further")


async def test_a_listener_hears_of_every_call(addr: str, key: str) -> None:
    heard = Heard()
    async with TicketBroker.connect(addr, listener=heard) as broker:
        ticket: Ticket = await broker.acquire(key, 5, 30, 0)
        with pytest.raises(TimeoutError):
            await broker.acquire(key, 0, 30, 0)
        await ticket.release()
        ticket.close()
    assert heard.said == [("acquired", key), ("TimeoutError", key), ("released", key)]
