"""A PostgreSQL of the tests' own, on a free port of loopback and in a temporary folder."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg


def _program(name: str) -> str:
    found = shutil.which(name) or max(
        map(str, Path("/usr/lib/postgresql").glob(f"*/bin/{name}")), default=None
    )
    assert found, f"{name} is missing: install PostgreSQL (Debian: apt-get install postgresql)"
    return found


@contextmanager
def running() -> Iterator[str]:
    """Give the connection string of a server that runs meanwhile."""
    # PostgreSQL refuses to run as root.
    user = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []
    with tempfile.TemporaryDirectory() as folder:
        if user:
            shutil.chown(folder, "postgres")
        data = f"{folder}/data"
        init = [_program("initdb"), "-D", data, "-U", "test", "-A", "trust", "-N"]
        subprocess.run([*user, *init], check=True, stdout=subprocess.DEVNULL, cwd=folder)
        settings = ["listen_addresses=", f"unix_socket_directories={folder}", "fsync=off"]
        command = [_program("postgres"), "-D", data]
        command += [part for setting in settings for part in ("-c", setting)]
        server = subprocess.Popen([*user, *command], stderr=subprocess.DEVNULL, cwd=folder)
        try:
            where = f"host={folder} user=test dbname=postgres"
            _wait_for(where)
            yield where
        finally:
            _stop(server, data)


def _wait_for(where: str) -> None:
    end = time.monotonic() + 60
    while True:
        try:
            return psycopg.connect(where).close()
        except psycopg.OperationalError:
            assert time.monotonic() < end, "PostgreSQL never listened"
            time.sleep(0.05)


def _stop(server: subprocess.Popen[bytes], data: str) -> None:
    # `runuser` stands between: the server itself is told, by its own file.
    first = Path(f"{data}/postmaster.pid").read_text().splitlines()[0]
    os.kill(int(first), 3)
    server.wait(60)
