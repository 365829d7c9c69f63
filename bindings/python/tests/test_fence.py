"""The fenced write on real databases, by every kind of cursor (C20)."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from conftest import SOON

from saro_ticketing import (
    Dialect,
    StaleTicketError,
    Ticket,
    TicketBroker,
    TicketError,
    fence_statement,
    fence_table,
)

psycopg = pytest.importorskip("psycopg")
sqlalchemy = pytest.importorskip("sqlalchemy")
orm = pytest.importorskip("sqlalchemy.orm")

import postgresql  # noqa: E402

Transaction = Callable[[Callable[[Any], None]], None]
"""Runs a function with a cursor or a session in a transaction of its own."""


@pytest.fixture(scope="module")
def postgres() -> Iterator[str]:
    with postgresql.running() as where:
        yield where


def _by_connection(connect: Callable[[], Any]) -> Transaction:
    def transact(work: Callable[[Any], None]) -> None:
        with closing(connect()) as connection, connection:
            work(connection.cursor())

    return transact


def _by_sqlalchemy(url: Any, **options: Any) -> Transaction:
    engine = sqlalchemy.create_engine(url, **options)

    def transact(work: Callable[[Any], None]) -> None:
        with orm.Session(engine) as session, session.begin():
            work(session)

    return transact


def _by_core_of_sqlalchemy(url: Any, **options: Any) -> Transaction:
    engine = sqlalchemy.create_engine(url, **options)

    def transact(work: Callable[[Any], None]) -> None:
        with engine.begin() as connection:
            work(connection)

    return transact


@pytest.fixture(params=["sqlite3", "sqlite by SQLAlchemy", "psycopg", "psycopg by SQLAlchemy"])
def transact(request: pytest.FixtureRequest, tmp_path: Path) -> Transaction:
    which = request.param
    if which.startswith("sqlite"):
        path = tmp_path / "rows.db"
        if which == "sqlite3":
            made = _by_connection(lambda: sqlite3.connect(path))
        else:
            made = _by_sqlalchemy(f"sqlite:///{path}")
        dialect = Dialect.SQLITE
    else:
        where = request.getfixturevalue("postgres")
        if which == "psycopg":
            made = _by_connection(lambda: psycopg.connect(where))
        else:
            made = _by_core_of_sqlalchemy(
                "postgresql+psycopg://", creator=lambda: psycopg.connect(where)
            )
        dialect = Dialect.POSTGRESQL
    made(lambda cursor: _run(cursor, fence_table(dialect)))
    return made


def _run(cursor: Any, statement: str) -> None:
    run = getattr(cursor, "exec_driver_sql", None)
    if run is None and isinstance(cursor, orm.Session):
        run = cursor.connection().exec_driver_sql
    (run or cursor.execute)(statement)


def test_c20_a_ticket_fences_one_transaction(
    broker: TicketBroker, key: str, transact: Transaction
) -> None:
    with broker.acquire_sync(key, 5, 30, 0) as ticket:
        transact(ticket.fence)
        with pytest.raises(StaleTicketError) as caught:
            transact(ticket.fence)
        assert (caught.value.key, caught.value.token) == (key, ticket.token)
        assert not isinstance(caught.value, TicketError)
        transact(ticket.fence_again)
    with broker.acquire_sync(key, 5, 30, 0) as later:
        transact(later.fence)
    with pytest.raises(StaleTicketError):
        transact(ticket.fence_again)


def test_c20_a_stale_ticket_rolls_the_transaction_back(
    broker: TicketBroker, key: str, transact: Transaction
) -> None:
    transact(lambda cursor: _run(cursor, "DROP TABLE IF EXISTS balance"))
    transact(lambda cursor: _run(cursor, "CREATE TABLE balance (amount int)"))

    def pays(ticket: Ticket) -> Callable[[Any], None]:
        def work(cursor: Any) -> None:
            ticket.fence(cursor)
            _run(cursor, "INSERT INTO balance VALUES (100)")

        return work

    stale = broker.acquire_sync(key, 5, 30, 0)
    stale.release_sync()
    with broker.acquire_sync(key, 5, 30, 0) as ticket:
        transact(pays(ticket))
    with pytest.raises(StaleTicketError):
        transact(pays(stale))
    rows: list[Any] = []

    def count(cursor: Any) -> None:
        run = cursor.connection().exec_driver_sql if isinstance(cursor, orm.Session) else None
        run = run or getattr(cursor, "exec_driver_sql", None) or cursor.execute
        rows.append((run("SELECT count(*) FROM balance") or cursor).fetchone()[0])

    transact(count)
    assert rows == [1]


def test_c20_a_set_fences_each_of_its_keys(broker: TicketBroker, key: str, tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "rows.db")) as database:
        database.execute(fence_table(Dialect.SQLITE))
        with broker.acquire_set_sync([f"{key}b", f"{key}a"], 5, 30, 0) as ticket, database:
            ticket.fence(database.cursor())
        rows = database.execute("SELECT key, token FROM ticketing_fence ORDER BY key").fetchall()
    assert rows == [(f"{key}a", ticket.token), (f"{key}b", ticket.token)]


def test_c20_autocommit_is_refused(
    broker: TicketBroker, key: str, postgres: str, tmp_path: Path
) -> None:
    with broker.acquire_sync(key, 5, 30, 0) as ticket:
        with closing(sqlite3.connect(tmp_path / "rows.db", isolation_level=None)) as database:
            database.execute(fence_table(Dialect.SQLITE))
            with pytest.raises(ValueError, match="autocommit"):
                ticket.fence(database.cursor())
            database.execute("BEGIN IMMEDIATE")
            ticket.fence(database.cursor())
            database.execute("COMMIT")
        with closing(psycopg.connect(postgres, autocommit=True)) as database:
            database.execute(fence_table(Dialect.POSTGRESQL))
            with pytest.raises(ValueError, match="autocommit"):
                ticket.fence(database.cursor())
            with database.transaction():
                ticket.fence(database.cursor())


def test_what_fence_does_not_know_is_said(broker: TicketBroker, key: str) -> None:
    class Cursor:
        connection = object()

        def execute(self, *_: object) -> None: ...

    with broker.acquire_sync(key, 5, 30, 0) as ticket:
        with pytest.raises(TypeError, match="fence_statement"):
            ticket.fence(Cursor())
        with pytest.raises(TypeError, match="cursor or a SQLAlchemy"):
            ticket.fence("cursor")
    assert fence_statement(Dialect.MYSQL) != fence_statement(Dialect.MYSQL, again=True)


HOLDER = """
import sqlite3, sys
from saro_ticketing import StaleTicketError, TicketBroker

addr, key, path = sys.argv[1:]
broker = TicketBroker.connect(addr)
ticket = broker.acquire_sync(key, 5, 1, 0)
print("holds", flush=True)
sys.stdin.readline()
database = sqlite3.connect(path)
try:
    with database:
        ticket.fence(database.cursor())
        database.execute("INSERT INTO balance VALUES (1)")
except StaleTicketError:
    print("stale")
"""


def test_c20_a_holder_that_was_stopped_past_its_lease_writes_nothing(
    broker: TicketBroker, addr: str, key: str, tmp_path: Path
) -> None:
    path = tmp_path / "rows.db"
    with closing(sqlite3.connect(path)) as database:
        with database:
            database.execute(fence_table(Dialect.SQLITE))
            database.execute("CREATE TABLE balance (by int)")
        command = [sys.executable, "-c", HOLDER, addr, key, str(path)]
        pipe = subprocess.PIPE
        with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as holder:
            assert holder.stdout is not None and holder.stdin is not None
            assert holder.stdout.readline() == "holds\n"
            os.kill(holder.pid, signal.SIGSTOP)
            with broker.acquire_sync(key, SOON, 60, 0) as ticket, database:
                ticket.fence(database.cursor())
                database.execute("INSERT INTO balance VALUES (2)")
            os.kill(holder.pid, signal.SIGCONT)
            holder.stdin.write("\n")
            holder.stdin.close()
            assert holder.stdout.read() == "stale\n"
        assert holder.returncode == 0
        assert database.execute("SELECT by FROM balance").fetchall() == [(2,)]
