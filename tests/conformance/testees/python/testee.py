"""The Python testee: `saro_ticketing` does what the runner says (PROTOCOL.md), on both faces."""

from __future__ import annotations

import argparse
import asyncio
import concurrent.futures
import gc
import itertools
import json
import logging
import os
import sys
import threading
import time
import weakref
from datetime import timedelta
from pathlib import Path
from typing import Any

import saro_ticketing
from saro_ticketing import Ticket, TicketBroker, TicketError

logging.basicConfig(stream=sys.stderr, level=1)
logging.getLogger("asyncio").setLevel(logging.WARNING)

COMMON = [
    "cancelled_before",
    "scope",
    "drop",
    "gc",
    "expired",
    "float_durations",
    "negative_durations",
    "huge_durations",
    "utf16_keys",
    "fork",
    "block_consumer",
]
CAPABILITIES = {
    "async": [*COMMON, "cancel", "deadline", "loops", "exit_after_loop"],
    "blocking": [c for c in COMMON if c not in ("cancelled_before", "block_consumer")],
}
FIELDS = ("argument", "max_seconds", "remaining_ms", "min_work_ms", "code")
STATS = saro_ticketing.Stats.__dataclass_fields__

brokers: dict[str, TicketBroker] = {}
tickets: dict[str, Ticket] = {}
running: dict[int, asyncio.Task[None]] = {}
loops: dict[str, asyncio.AbstractEventLoop] = {}
threads: dict[str, concurrent.futures.ThreadPoolExecutor] = {}
output = threading.Lock()


class Thrown(Exception):
    """The testee's own, thrown inside a scope."""


def say(line: dict[str, Any]) -> None:
    text = json.dumps(line) + "\n"
    with output:
        sys.stdout.write(text)
        sys.stdout.flush()


def error_of(error: BaseException) -> dict[str, Any]:
    if isinstance(error, TicketError):
        fields = {name: getattr(error, name) for name in FIELDS if hasattr(error, name)}
        return {"kind": error.kind, "detail": error.detail, "message": str(error), **fields}
    kind = "other"
    if isinstance(error, (asyncio.CancelledError, KeyboardInterrupt)):
        kind = "cancelled"
    elif isinstance(error, (TimeoutError, asyncio.TimeoutError)):
        kind = "deadline"
    return {"kind": kind, "detail": "", "message": str(error), "type": type(error).__name__}


def duration(command: dict[str, Any], name: str) -> Any:
    value = command[name]
    if isinstance(value, str):
        return float(value)
    return timedelta(seconds=value) if command.get("durations") == "native" else value


def key(value: Any) -> str:
    if isinstance(value, str):
        return value
    return "".join(map(chr, value["utf16"]))


def connect(command: dict[str, Any]) -> dict[str, Any]:
    options = {n: command[n] for n in ("token", "tls", "cluster", "max_pending") if n in command}
    if isinstance(options.get("tls"), dict):
        options["tls"] = Path(options["tls"]["ca"])
    addrs = command["addrs"]
    if len(addrs) == 1 and not options:
        broker = TicketBroker.connect(addrs[0])
    else:
        broker = TicketBroker(addrs, **options)
    brokers[command["broker"]] = broker
    return {}


def held(ticket: Ticket) -> dict[str, Any]:
    remaining = int(ticket.remaining * 1000)
    return {"remaining_ms": remaining, "token": str(ticket.token), "keys": list(ticket.keys)}


def arguments(command: dict[str, Any]) -> tuple[Any, ...]:
    durations = [duration(command, name) for name in ("wait", "lease", "min_work")]
    keys = [key(k) for k in command["keys"]]
    return (keys if command.get("set") else keys[0], *durations)


async def acquire(command: dict[str, Any]) -> dict[str, Any]:
    broker = brokers[command["broker"]]
    ask = broker.acquire_set if command.get("set") else broker.acquire
    if command.get("cancelled_before"):
        task = asyncio.ensure_future(ask(*arguments(command)))
        task.cancel()
        await task
    call = ask(*arguments(command))
    if "deadline" in command:
        call = asyncio.wait_for(call, command["deadline"])
    ticket = await call
    if "scope" not in command:
        answer = held(ticket)
        tickets[command["ticket"]] = ticket
        return answer
    threw = False
    try:
        async with ticket:
            answer = held(ticket)
            if command["scope"] == "throw":
                raise Thrown
    except Thrown:
        threw = True
    return {**answer, "threw": threw}


def acquire_sync(command: dict[str, Any]) -> dict[str, Any]:
    broker = brokers[command["broker"]]
    ask = broker.acquire_set_sync if command.get("set") else broker.acquire_sync
    ticket = ask(*arguments(command))
    if "scope" not in command:
        answer = held(ticket)
        tickets[command["ticket"]] = ticket
        return answer
    threw = False
    try:
        with ticket:
            answer = held(ticket)
            if command["scope"] == "throw":
                raise Thrown
    except Thrown:
        threw = True
    return {**answer, "threw": threw}


def collect(command: dict[str, Any]) -> dict[str, Any]:
    if "ticket" in command:
        gone = weakref.ref(tickets.pop(command["ticket"]))
        end = time.monotonic() + 5
        while gone() is not None and time.monotonic() < end:
            gc.collect()
    else:
        gc.collect()
    return {}


def stats(command: dict[str, Any]) -> dict[str, Any]:
    now = brokers[command["broker"]].stats()
    return {name: getattr(now, name) for name in STATS}


def drop(command: dict[str, Any]) -> dict[str, Any]:
    tickets.pop(command["ticket"]).close()
    return {}


def keep(command: dict[str, Any]) -> dict[str, Any]:
    tickets[command["ticket"]].keep()
    return {}


def remaining(command: dict[str, Any]) -> dict[str, Any]:
    return {"remaining_ms": int(tickets[command["ticket"]].remaining * 1000)}


def fork(command: dict[str, Any]) -> dict[str, Any]:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reading)
            told = json.dumps(in_child(command)).encode()
            os.write(writing, told)
        finally:
            os._exit(0)
    os.close(writing)
    end = time.monotonic() + 20
    with os.fdopen(reading, "rb") as pipe:
        told = pipe.read()
    while os.waitpid(child, os.WNOHANG)[0] == 0:
        if time.monotonic() > end:
            os.kill(child, 9)
        time.sleep(0.01)
    return dict(json.loads(told))


def in_child(command: dict[str, Any]) -> dict[str, Any]:
    def answer(call: Any) -> dict[str, Any]:
        try:
            return {"ok": call() or {}}
        except BaseException as e:
            return {"error": error_of(e)}

    def child() -> dict[str, Any]:
        own = TicketBroker.connect(command["addrs"][0])
        ticket = own.acquire_sync("child", 5, 30, 0)
        token = str(ticket.token)
        ticket.release_sync()
        own.close_sync()
        return {"token": token}

    broker, ticket = brokers[command["broker"]], tickets.get(command.get("ticket", ""))
    return {
        "acquire": answer(lambda: held(broker.acquire_sync("forked", 1, 5, 0))),
        "release": answer(lambda: {"outcome": ticket.release_sync().value} if ticket else {}),
        "child": answer(child),
    }


AT_ONCE = {
    "connect": connect,
    "gc": collect,
    "stats": stats,
    "drop": drop,
    "keep": keep,
    "remaining": remaining,
    "fork": fork,
}


async def do(command: dict[str, Any]) -> dict[str, Any]:
    op = command["op"]
    if op == "acquire":
        return await acquire(command)
    if op == "wait_ready":
        ready = await brokers[command["broker"]].wait_ready(duration(command, "timeout"))
        return {"ready": ready}
    if op == "release":
        return {"outcome": (await tickets[command["ticket"]].release()).value}
    if op == "expired":
        try:
            await asyncio.wait_for(tickets[command["ticket"]].expired(), command["timeout"])
        except asyncio.TimeoutError:
            return {"expired": False}
        return {"expired": True}
    if op == "close":
        await brokers[command["broker"]].close()
        return {}
    raise NotImplementedError(op)


def do_sync(command: dict[str, Any]) -> dict[str, Any]:
    op = command["op"]
    if op == "acquire":
        return acquire_sync(command)
    if op == "wait_ready":
        ready = brokers[command["broker"]].wait_ready_sync(duration(command, "timeout"))
        return {"ready": ready}
    if op == "release":
        return {"outcome": tickets[command["ticket"]].release_sync().value}
    if op == "expired":
        end = time.monotonic() + command["timeout"]
        while tickets[command["ticket"]].remaining > 0 and time.monotonic() < end:
            time.sleep(0.01)
        return {"expired": tickets[command["ticket"]].remaining == 0}
    if op == "close":
        brokers[command["broker"]].close_sync()
        return {}
    raise NotImplementedError(op)


def answer(number: int, call: Any) -> None:
    try:
        say({"id": number, "ok": call()})
    except BaseException as e:
        say({"id": number, "error": error_of(e)})


async def answer_async(number: int, command: dict[str, Any]) -> None:
    try:
        say({"id": number, "ok": await do(command)})
    except BaseException as e:
        say({"id": number, "error": error_of(e)})
    finally:
        running.pop(number, None)


def loop(name: str) -> asyncio.AbstractEventLoop:
    """A loop on a thread of its own."""
    if name not in loops:
        loops[name] = asyncio.new_event_loop()
        threading.Thread(target=loops[name].run_forever, name=f"loop {name}", daemon=True).start()
    return loops[name]


def begin_async(command: dict[str, Any]) -> None:
    number, on = command["id"], loop(command.get("loop", ""))
    op = command["op"]
    if op == "cancel":
        # In the loop, after what was begun there before.
        def cancel() -> None:
            task = running.get(command["target"])
            if task is not None:
                task.cancel()
            say({"id": number, "ok": {"found": task is not None}})

        on.call_soon_threadsafe(cancel)
    elif op == "block_consumer":
        say({"id": number, "ok": {}})
        on.call_soon_threadsafe(time.sleep, command["ms"] / 1000)
    elif op in AT_ONCE:
        answer(number, lambda: AT_ONCE[op](command))
    else:

        def start() -> None:
            running[number] = on.create_task(answer_async(number, command))

        on.call_soon_threadsafe(start)


names = itertools.count()


def begin_blocking(command: dict[str, Any]) -> None:
    number, op = command["id"], command["op"]
    if op in AT_ONCE:
        answer(number, lambda: AT_ONCE[op](command))
    elif "thread" in command:
        pool = threads.setdefault(command["thread"], concurrent.futures.ThreadPoolExecutor(1))
        pool.submit(answer, number, lambda: do_sync(command))
    else:
        call = threading.Thread(target=answer, args=(number, lambda: do_sync(command)))
        call.daemon = True
        call.start()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--face", choices=list(CAPABILITIES), required=True)
    face = parser.parse_args().face
    say(
        {
            "hello": {
                "protocol": 1,
                "language": "python",
                "version": saro_ticketing.__version__,
                "interface": None,
                "faces": list(CAPABILITIES),
                "capabilities": CAPABILITIES[face],
            }
        }
    )
    for line in sys.stdin:
        command = json.loads(line)
        if command["op"] == "exit":
            if command["how"] == "after_loop":
                for one in loops.values():
                    one.call_soon_threadsafe(one.stop)
            return
        (begin_async if face == "async" else begin_blocking)(command)
    for broker in brokers.values():
        broker.close_sync()


if __name__ == "__main__":
    main()
