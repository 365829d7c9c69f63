"""Leadership, logs, late resumption, connection faults."""

from __future__ import annotations

import asyncio
import logging
import socket
import subprocess
import time
from pathlib import Path

import pytest
from conftest import SOON, is_free, soon, until

from saro_ticketing import (
    Candidate,
    InsufficientLeaseError,
    InvalidInputError,
    IoError,
    NotConnectedError,
    ReleaseOutcome,
    TicketBroker,
    TlsError,
    _logs,
)


async def test_one_leads_at_a_time(broker: TicketBroker, key: str) -> None:
    first = await soon(Candidate(broker, key, lease=5).campaign())
    assert (first.name, first.remaining > 0) == (key, True)
    standing = asyncio.ensure_future(Candidate(broker, key, lease=5).campaign())
    token = first.token
    later = await soon(first.next_term(token))
    assert later is not None and later > token
    assert first.token >= later
    assert not standing.done()
    lost = asyncio.ensure_future(first.lost())
    assert await first.resign() is ReleaseOutcome.RELEASED
    await soon(lost)
    async with await soon(standing) as second:
        assert second.token > later


async def test_a_cancelled_candidate_withdraws(broker: TicketBroker, key: str) -> None:
    with Candidate(broker, key).campaign_sync():
        standing = asyncio.ensure_future(Candidate(broker, key).campaign())
        await asyncio.sleep(0.2)
        standing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await standing
    third = await soon(Candidate(broker, key).campaign())
    third.close()
    third.lost_sync()
    with pytest.raises(InvalidInputError):
        await Candidate(broker, "not a name").campaign()


async def test_c16_a_grant_that_came_too_late_for_the_caller_is_given_back(
    broker: TicketBroker, key: str
) -> None:
    """The event loop is blocked between the grant and the caller."""
    task = asyncio.ensure_future(broker.acquire(key, 5, 3, 2))
    await asyncio.sleep(0)
    time.sleep(1.2)
    with pytest.raises(InsufficientLeaseError) as caught:
        await task
    assert caught.value.remaining_ms < caught.value.min_work_ms == 2000
    until(lambda: is_free(broker, key))


def test_c25_without_a_broker_the_error_says_why() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        broker = TicketBroker.connect(f"127.0.0.1:{unused.getsockname()[1]}")
        assert not broker.wait_ready_sync(0.2)
        with pytest.raises(NotConnectedError, match="refused"):
            broker.acquire_sync("a", 1, 5, 0)
        assert "refused" in (broker.stats().last_connection_error or "")
        broker.close_sync()


def test_c6_a_wrong_ca_file_is_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(IoError, match="CA file"):
        TicketBroker("127.0.0.1:1", tls=tmp_path / "absent.pem")
    (tmp_path / "empty.pem").write_text("")
    with pytest.raises(TlsError, match="no certificate"):
        TicketBroker("127.0.0.1:1", tls=str(tmp_path / "empty.pem"))


def test_c28_tls_and_a_token(tmp_path: Path, program: str) -> None:
    folder = tmp_path / "broker"
    subprocess.run([program, "init", "--tls", str(folder)], check=True, stdout=subprocess.DEVNULL)
    command = [program, "serve", "--config", "broker.toml", "--memory", "--listen", "127.0.0.1:0"]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True) as serving:
        try:
            assert serving.stdout is not None
            addr = serving.stdout.readline().split()[-1]
            token = (folder / "client-token").read_text().strip()
            broker = TicketBroker(addr, token=token, tls=folder / "ca.pem")
            with broker.acquire_sync("key", 5, 5, 0) as ticket:
                assert ticket.release_sync() is ReleaseOutcome.RELEASED
            assert token not in repr(broker)
            broker.close_sync()
        finally:
            serving.terminate()


def test_the_log_goes_to_logging(caplog: pytest.LogCaptureFixture, addr: str) -> None:
    with caplog.at_level(logging.DEBUG, "saro_ticketing"):
        with TicketBroker.connect(addr, token="secret-token") as broker:
            assert broker.wait_ready_sync(SOON)
            _logs.pull_now()
        assert "connected" in caplog.text
        assert "secret-token" not in caplog.text
        caplog.clear()
        TicketBroker(addr, tls="insecure-skip-verify").close_sync()
        assert [r.levelname for r in caplog.records if "not verified" in r.message] == ["WARNING"]
