"""Signals: a blocking wait ends at once, and none loses a completion."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from conftest import SOON, until

from saro_ticketing import TicketBroker, _thread_queue
from saro_ticketing._core import core

uvloop = pytest.importorskip("uvloop")

ROUNDS = 3000

INTERRUPTED = """
import os, signal, sys, threading, time
from saro_ticketing import TicketBroker, TicketError

addr, key, workers = sys.argv[1], sys.argv[2], int(sys.argv[3])
broker = TicketBroker.connect(addr)

def waiting():
    try:
        broker.acquire_sync(key, 200, 250, 0)
    except TicketError:
        pass  # the process ends

for _ in range(workers):
    threading.Thread(target=waiting, daemon=True).start()

def interrupt():
    while broker.stats().sent < workers + 1:
        time.sleep(0.01)
    print(time.monotonic(), flush=True)
    os.kill(os.getpid(), signal.SIGINT)

threading.Thread(target=interrupt).start()
try:
    waiting()
except KeyboardInterrupt:
    print(time.monotonic(), flush=True)
"""


@pytest.mark.parametrize("workers", [0, 4])
def test_ctrl_c_ends_a_blocking_wait(
    broker: TicketBroker, addr: str, key: str, workers: int
) -> None:
    with broker.acquire_sync(key, 5, 250, 0):
        command = [sys.executable, "-c", INTERRUPTED, addr, key, str(workers)]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=2 * SOON)
        assert (ended.returncode, ended.stderr) == (0, "")
        sent, seen = map(float, ended.stdout.split())
        assert seen - sent < SOON / 2
    # The waiters that it had are gone from the line.
    broker.acquire_sync(key, SOON, 30, 0).close()


@contextmanager
def torn_after(seconds: float) -> Iterator[None]:
    """Within, a signal handler raises `KeyboardInterrupt` once, after so long."""
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 1e-6))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


@pytest.fixture
def alarms_raise() -> Iterator[None]:
    def tear(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, tear)
    yield
    signal.signal(signal.SIGALRM, before)


def usual_time(broker: TicketBroker, key: str) -> float:
    began = time.perf_counter()
    for _ in range(50):
        broker.acquire_sync(key, 5, 30, 0).release_sync()
    return (time.perf_counter() - began) / 50


@pytest.mark.usefixtures("alarms_raise")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_no_signal_loses_a_completion_of_a_blocking_call(broker: TicketBroker, key: str) -> None:
    usual = usual_time(broker, key)
    whole = torn = 0
    for n in range(ROUNDS):
        try:
            with torn_after(random.random() * usual * 1.2):
                broker.acquire_sync(f"{key}{n % 7}", SOON, 250, 0).release_sync()
            whole += 1
        except KeyboardInterrupt:
            torn += 1
    assert whole > 0 and torn > ROUNDS / 10
    for n in range(7):
        broker.acquire_sync(f"{key}{n}", SOON, 30, 0).release_sync()
    queue = _thread_queue.of_this_thread()
    until(lambda: queue.drain(0) or not [c for c in queue._calls.values() if not c.abandoned])


@pytest.mark.parametrize("make", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_no_torn_drain_loses_a_completion_of_a_loop(
    broker: TicketBroker, key: str, make: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    """As if a signal handler raised when a batch had been taken, but nobody had it yet."""
    torn = 0
    take = core.queue_next

    def take_and_tear(*arguments: int) -> list[object]:
        nonlocal torn
        batch: list[object] = take(*arguments)
        if batch and random.random() < 0.3:
            torn += 1
            raise KeyboardInterrupt
        return batch

    async def work(n: int) -> None:
        for _ in range(ROUNDS // 30):
            async with await broker.acquire(f"{key}{n}", SOON, 250, 0) as ticket:
                await ticket.release()

    loop = make()
    core.queue_next = take_and_tear
    try:
        tasks = [loop.create_task(work(n)) for n in range(8)]
        end = time.monotonic() + 2 * SOON
        while not all(task.done() for task in tasks):
            assert time.monotonic() < end, "a completion was lost"
            stop = loop.call_later(0.05, loop.stop)
            with contextlib.suppress(KeyboardInterrupt):
                loop.run_forever()
            stop.cancel()
    finally:
        core.queue_next = take
    assert torn > 10
    for n, task in enumerate(tasks):
        task.result()
        loop.run_until_complete(broker.acquire(f"{key}{n}", SOON, 30, 0)).close()
    loop.close()
