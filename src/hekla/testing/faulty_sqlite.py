"""A SQLite driver that fails on demand: the full disk and the broken cable of the store's tests.

It wraps a real driver, so that everything but the injected failure is SQLite's own behaviour.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from hekla.apiserver.sqlite_driver import Code, Connection, Driver, Row, SqliteError, best_driver


class FaultyDriver:
    """Opens connections whose statements fail when told to."""

    def __init__(self, driver: Driver | None = None) -> None:
        self._driver = driver or best_driver()
        self.refuse_commits = 0
        """How many of the next commits fail, before SQLite hears of them."""

        self.fail_after_commit = False
        """Whether those commits reach the disk all the same, as when only the answer is lost."""

        self.code = Code.FULL
        self.is_dead = False
        """Whether every statement that writes fails, new connections included."""

        self.commits = 0

    def __call__(self, path: Path) -> Connection:
        """Open a connection."""
        return _FaultyConnection(self, self._driver(path))

    def before(self, sql: str) -> None:
        """Called with every statement; raises if it is to fail."""
        if self.is_dead and not sql.startswith(("select", "pragma", "rollback")):
            raise SqliteError("disk I/O error (injected)", Code.IOERR)

    def before_commit(self, carry_out: Callable[[], object]) -> None:
        """Called with what ends a transaction, or is one by itself; raises if it is to fail."""
        self.commits += 1
        if self.refuse_commits:
            self.refuse_commits -= 1
            if self.fail_after_commit:
                carry_out()
            raise SqliteError("database or disk is full (injected)", self.code)


class _FaultyConnection:
    def __init__(self, driver: FaultyDriver, real: Connection) -> None:
        self._driver, self._real = driver, real
        self._is_in_transaction = False

    def run(self, sql: str, values: Sequence[Any] = ()) -> list[Row]:
        self._driver.before(sql)
        if sql == "commit" or (sql.startswith("insert into log") and not self._is_in_transaction):
            self._driver.before_commit(lambda: self._real.run(sql, values))
        if sql in ("begin immediate", "commit", "rollback"):
            self._is_in_transaction = sql == "begin immediate"
        return self._real.run(sql, values)

    def run_many(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        self._driver.before(sql)
        self._real.run_many(sql, rows)

    def scan(self, sql: str) -> Iterator[Row]:
        return self._real.scan(sql)

    def close(self) -> None:
        self._real.close()
