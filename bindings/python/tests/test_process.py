"""The process: its end, `fork`, prefork servers (C30)."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
import urllib.request
from pathlib import Path

import pytest
from conftest import SOON, is_free, until

from saro_ticketing import TicketBroker


def run(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    # Python 3.12 and later warn of any fork of a process that has threads.
    command = [
        sys.executable,
        "-W",
        "ignore::DeprecationWarning",
        "-c",
        textwrap.dedent(script),
        *arguments,
    ]
    return subprocess.run(command, capture_output=True, text=True, timeout=2 * SOON)


ENDS = {
    "with a ticket held": """
        ticket = broker.acquire_sync(key, 5, 250, 0)
    """,
    "with a ticket held in a cycle": """
        cycle = [broker.acquire_sync(key, 5, 250, 0)]
        cycle.append(cycle)
    """,
    "with a leadership": """
        leads = saro_ticketing.Candidate(broker, key).campaign_sync()
    """,
    "with a call pending in a thread": """
        import threading, time
        ticket = broker.acquire_sync(key, 5, 250, 0)
        threading.Thread(target=broker.acquire_sync, args=(key, 200, 250, 0), daemon=True).start()
        while not broker.stats().sent:
            time.sleep(0.01)
    """,
    "after its loop was closed with a call pending": """
        import asyncio
        async def main():
            ticket = await broker.acquire(key, 5, 250, 0)
            asyncio.ensure_future(broker.acquire(key, 200, 250, 0))
            while not broker.stats().sent:
                await asyncio.sleep(0.01)
            return ticket
        loop = asyncio.new_event_loop()
        ticket = loop.run_until_complete(main())
        loop.close()
    """,
    "by sys.exit within a task": """
        import asyncio
        async def main():
            async with await broker.acquire(key, 5, 250, 0):
                sys.exit()
        asyncio.run(main())
    """,
}


@pytest.mark.parametrize("how", ENDS)
def test_a_process_ends_cleanly(broker: TicketBroker, addr: str, key: str, how: str) -> None:
    begin = """
        import sys, saro_ticketing
        addr, key = sys.argv[1:]
        broker = saro_ticketing.TicketBroker.connect(addr)
    """
    began = time.monotonic()
    ended = run(textwrap.dedent(begin) + textwrap.dedent(ENDS[how]), addr, key)
    assert ended.returncode == 0, ended.stderr
    assert time.monotonic() - began < SOON
    until(lambda: is_free(broker, key) and is_free(broker, f"{key}.term-b"))


FORKED = """
    import os, sys, asyncio
    from saro_ticketing import ClosedError, TicketBroker

    addr, key = sys.argv[1:]
    broker = TicketBroker.connect(addr)
    ticket = broker.acquire_sync(key, 5, 250, 0)
    asyncio.run(broker.wait_ready(5))

    def fails(call):
        try:
            call()
        except ClosedError as e:
            assert "fork" in str(e), e
        else:
            raise AssertionError("it worked")

    child = os.fork()
    if child == 0:
        fails(lambda: broker.acquire_sync("forked", 1, 5, 0))
        fails(lambda: asyncio.run(broker.acquire("forked", 1, 5, 0)))
        fails(ticket.release_sync)
        assert ticket.remaining == 0
        ticket.close()
        own = TicketBroker.connect(addr)
        with own.acquire_sync("child", 5, 30, 0) as mine:
            mine.release_sync()
        async def main():
            async with await own.acquire("child", 5, 30, 0):
                pass
            await own.close()
        asyncio.run(main())
        sys.exit(0)
    assert os.waitpid(child, 0)[1] == 0
    # Nothing of the parent's was shut down or given back by the child.
    assert ticket.remaining > 0
    try:
        broker.acquire_sync(key, 0, 5, 0)
    except TimeoutError:
        pass
    assert ticket.release_sync().value == "Released"
    asyncio.run(broker.close())
"""


def test_c30_a_child_fails_clearly_and_works_with_what_is_its_own(addr: str, key: str) -> None:
    ended = run(FORKED, addr, key)
    assert (ended.returncode, ended.stderr) == (0, "")


APPLICATION = """
import os
from saro_ticketing import ClosedError, TicketBroker

addr = os.environ["ADDR"]
parents = TicketBroker.connect(addr)
parents.wait_ready_sync(10)
mine = {}

def application(environ, start_response):
    try:
        parents.acquire_sync("gunicorn", 5, 30, 0)
        told = "the parent's worked"
    except ClosedError as e:
        told = str(e)
    own = mine.setdefault("broker", None) or mine.setdefault("b", TicketBroker.connect(addr))
    with own.acquire_sync("gunicorn", 20, 30, 0) as ticket:
        ticket.release_sync()
        told += f" token {ticket.token}"
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [told.encode()]
"""


def test_c30_a_prefork_server(addr: str, tmp_path: Path) -> None:
    pytest.importorskip("gunicorn")
    (tmp_path / "application.py").write_text(APPLICATION)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "gunicorn", "--preload", "--workers", "2"]
    command += ["--bind", f"127.0.0.1:{port}", "--no-control-socket", "application"]
    if (
        b"--no-control-socket"
        not in subprocess.run([*command[:3], "--help"], capture_output=True, check=True).stdout
    ):
        command.remove("--no-control-socket")
    environment = {**os.environ, "ADDR": addr}
    with subprocess.Popen(command, cwd=tmp_path, env=environment) as server:
        try:
            answers = [_ask(port) for _ in range(6)]
        finally:
            server.send_signal(signal.SIGTERM)
            assert server.wait(SOON) == 0
    assert all("fork" in answer and " token " in answer for answer in answers), answers


def _ask(port: int) -> str:
    end = time.monotonic() + SOON
    while True:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=SOON) as answer:
                return str(answer.read().decode())
        except OSError:
            assert time.monotonic() < end, "the server never answered"
            time.sleep(0.05)


def test_it_refuses_a_sub_interpreter() -> None:
    script = """
        try:
            import _interpreters as interpreters
        except ImportError:
            import _xxsubinterpreters as interpreters
        number = interpreters.create()
        code = "try:\\n import saro_ticketing\\nexcept ImportError as e:\\n print(e)"
        interpreters.run_string(number, code)
    """
    ended = run(script)
    assert "sub-interpreter" in ended.stdout, ended
