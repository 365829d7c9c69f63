"""A real broker for your own tests: the fixture `ticketing_broker`, by `saro-ticketing[pytest]`.

It keeps everything in memory, takes a free port on loopback, and is there for the whole session.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from typing import NamedTuple

import pytest

_STOP_SECONDS = 10


class RunningBroker(NamedTuple):
    """A broker that a fixture started."""

    #: Where it listens, as `TicketBroker` takes it.
    addr: str
    #: Its process id.
    pid: int


@pytest.fixture(scope="session")
def ticketing_broker() -> Iterator[RunningBroker]:
    """Start an in-memory broker with the `ticketing` program, for as long as the tests run."""
    program = os.environ.get("TICKETING_PROGRAM") or shutil.which("ticketing")
    if program is None:
        pytest.fail(
            "the 'ticketing' program is not on PATH: build it (cargo build --release -p ticketing "
            "in Ticketing's repository) and put it there, or name it in TICKETING_PROGRAM",
            pytrace=False,
        )
    command = [program, "serve", "--memory", "--listen", "127.0.0.1:0", "--log", "warn"]
    try:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)  # noqa: S603
    except OSError as e:
        pytest.fail(f"{program} can't be started: {e}; see TICKETING_PROGRAM", pytrace=False)
    with process:
        try:
            assert process.stdout is not None  # noqa: S101
            first = process.stdout.readline().split()
            if first[:2] != ["listening", "on"]:
                pytest.fail(f"{program} did not begin to listen; see above", pytrace=False)
            yield RunningBroker(first[2], process.pid)
        finally:
            process.terminate()
            try:
                process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
