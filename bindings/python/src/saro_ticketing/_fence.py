"""The fenced write (C20): the statement comes from the core, here it meets Python's drivers."""

from __future__ import annotations

import enum
import re
import sys
from collections.abc import Sequence
from typing import Any

from ._core import core
from ._errors import StaleTicketError


class Dialect(enum.Enum):
    """A database's dialect of the fence."""

    #: SQLite 3.24 or later.
    SQLITE = core.Dialect.SQLITE
    #: PostgreSQL 9.5 or later.
    POSTGRESQL = core.Dialect.POSTGRE_SQL
    #: MySQL and MariaDB.
    MYSQL = core.Dialect.MY_SQL


#: The drivers that `fence` knows, by the package of their cursors.
_DRIVERS = {
    "sqlite3": Dialect.SQLITE,
    "psycopg": Dialect.POSTGRESQL,
    "psycopg2": Dialect.POSTGRESQL,
    "pg8000": Dialect.POSTGRESQL,
    "pymysql": Dialect.MYSQL,
    "MySQLdb": Dialect.MYSQL,
    "mysql": Dialect.MYSQL,
    "mariadb": Dialect.MYSQL,
}

_MOST_TOKEN = 2**63 - 1
_NOT_NULL = {Dialect.POSTGRESQL: "23502", Dialect.MYSQL: "1048"}


def fence_statement(dialect: Dialect, again: bool = False) -> str:
    """Give the fence itself; its parameters are the key and the token.

    For drivers that `Ticket.fence` does not know (asynchronous ones): run it first in the
    transaction, once for each key in key order, never in autocommit mode, and roll back when it
    fails. With `again`, a second transaction under the same ticket passes too.
    """
    return str(core.fence_statement(dialect.value, again))


def fence_table(dialect: Dialect) -> str:
    """Give the statement that makes the fence table, one for all keys."""
    return str(core.fence_table(dialect.value))


def fence(cursor: Any, keys: Sequence[str], token: int, again: bool) -> None:
    """Run the fence for each key; see `Ticket.fence`."""
    if token > _MOST_TOKEN:
        raise ValueError(f"token {token} exceeds 2^63 - 1, the most that the fence column holds")
    execute, connection = _executor(cursor)
    package = _package(connection)
    dialect = _DRIVERS.get(package)
    if dialect is None:
        raise TypeError(
            f"fence does not know the driver {package!r}; run fence_statement() yourself, "
            f"first in the transaction"
        )
    if _autocommits(connection):
        raise ValueError(
            "the connection is in autocommit mode, where the fence alone protects nothing; "
            "begin a transaction"
        )
    statement, named = _with_paramstyle(fence_statement(dialect, again), package)
    for key in keys:
        try:
            execute(statement, {"k": key, "t": token} if named else (key, token))
        except Exception as e:
            if _refused(dialect, getattr(e, "orig", None) or e):
                raise StaleTicketError(key, token) from e
            raise


def _executor(target: Any) -> tuple[Any, Any]:
    """Give what runs a statement, and the driver's own connection."""
    sqlalchemy = sys.modules.get("sqlalchemy")
    if sqlalchemy is not None:
        orm = sys.modules.get("sqlalchemy.orm")
        if orm is not None and isinstance(target, (orm.Session, orm.scoped_session)):
            target = target.connection()
        if isinstance(target, sqlalchemy.Connection):
            return target.exec_driver_sql, target.connection.driver_connection
    connection = getattr(target, "connection", None)
    if connection is None or not hasattr(target, "execute"):
        raise TypeError(f"fence takes a DB-API cursor or a SQLAlchemy session, not {target!r}")
    return target.execute, connection


def _package(connection: Any) -> str:
    """Name the driver; a class derived from its connection is still its own."""
    for base in type(connection).__mro__:
        package = base.__module__.partition(".")[0]
        if package in _DRIVERS:
            return package
    return type(connection).__module__.partition(".")[0]


def _autocommits(connection: Any) -> bool:
    if hasattr(connection, "in_transaction") and not callable(connection.in_transaction):  # sqlite3
        implicit = getattr(connection, "autocommit", -1)
        begins = connection.isolation_level is not None if implicit == -1 else not implicit
        return not (connection.in_transaction or begins)
    if hasattr(connection, "get_autocommit"):  # PyMySQL, mysqlclient
        return bool(connection.get_autocommit())
    if not getattr(connection, "autocommit", False):
        return False
    # psycopg in autocommit mode, inside `with connection.transaction():`, has a transaction.
    status = getattr(getattr(connection, "info", None), "transaction_status", 0)
    return not status


def _with_paramstyle(statement: str, package: str) -> tuple[str, bool]:
    """Rewrite the statement's two placeholders as the driver wants them; whether by name."""
    style = getattr(sys.modules[package], "paramstyle", None) or "format"
    marks = {
        "qmark": ("?", "?"),
        "numeric": (":1", ":2"),
        "format": ("%s", "%s"),
        "pyformat": ("%s", "%s"),
        "named": (":k", ":t"),
    }[style]
    following = iter(marks)
    rewritten = re.sub(r"\?\d?|\$\d", lambda _: next(following), statement)
    return rewritten, style == "named"


def _refused(dialect: Dialect, error: Any) -> bool:
    """Tell whether the fence's NOT NULL rule was broken, which is how a stale token shows."""
    if dialect is Dialect.SQLITE:
        return "NOT NULL constraint failed: ticketing_fence.token" in str(error)
    return _code(error) == _NOT_NULL[dialect] and "token" in str(error)


def _code(error: Any) -> str | None:
    first = error.args[0] if error.args else None
    code = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
    if code is None or str(code) == "23000":
        code = getattr(error, "errno", None) or (
            first.get("C") if isinstance(first, dict) else first
        )
    return None if code is None else str(code)
