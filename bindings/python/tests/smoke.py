"""The main job with the package alone: a fenced write, on both faces. Run by package-python."""

import asyncio
import os
import sqlite3
import subprocess

from saro_ticketing import Dialect, ReleaseOutcome, StaleTicketError, TicketBroker, fence_table


def write(database: sqlite3.Connection, ticket) -> None:
    with database:
        ticket.fence(database.cursor())
        database.execute("INSERT INTO work VALUES (?)", (ticket.token,))


async def main(addr: str, database: sqlite3.Connection) -> None:
    async with TicketBroker.connect(addr) as broker:
        async with await broker.acquire("order-42", wait=5, lease=30, min_work=10) as ticket:
            write(database, ticket)
        with broker.acquire_sync("order-42", wait=5, lease=30, min_work=10) as later:
            write(database, later)
            assert later.release_sync() is ReleaseOutcome.RELEASED
        try:
            write(database, ticket)
        except StaleTicketError as e:
            print(e)
        else:
            raise AssertionError("a stale ticket wrote")


command = [os.environ["TICKETING_PROGRAM"], "serve", "--memory", "--listen", "127.0.0.1:0"]
with subprocess.Popen(
    command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
) as serving:
    try:
        addr = serving.stdout.readline().split()[-1]
        database = sqlite3.connect(":memory:")
        database.execute(fence_table(Dialect.SQLITE))
        database.execute("CREATE TABLE work (token int)")
        asyncio.run(main(addr, database))
        assert database.execute("SELECT count(*) FROM work").fetchone() == (2,)
    finally:
        serving.terminate()
print("the package works")
