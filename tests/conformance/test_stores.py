from pathlib import Path

from hekla.apiserver.change_window import WindowLimits
from hekla.apiserver.memory_store import MemoryStore
from hekla.apiserver.sqlite_driver import ApswConnection, Driver, StandardConnection
from hekla.apiserver.sqlite_store import SqliteStore
from hekla.apiserver.store import Store
from hekla.testing.conformance.stores import StoreContract
from hekla.testing.faulty_sqlite import FaultyDriver


class TestMemoryStore(StoreContract):
    def open_store(self, directory: Path, limits: WindowLimits | None = None) -> Store:
        return MemoryStore(limits=limits)

    def refuse_commits(self, store: Store, count: int) -> None:
        assert isinstance(store, MemoryStore)
        store.refuse_commits = count


class _OnSqlite(StoreContract):
    driver: Driver

    def open_store(self, directory: Path, limits: WindowLimits | None = None) -> Store:
        self.faults = FaultyDriver(type(self).driver)
        return SqliteStore(directory, limits=limits, driver=self.faults)

    def refuse_commits(self, store: Store, count: int) -> None:
        self.faults.refuse_commits = count


class TestSqliteStoreWithApsw(_OnSqlite):
    driver = ApswConnection


class TestSqliteStoreWithTheStandardLibrary(_OnSqlite):
    driver = StandardConnection
