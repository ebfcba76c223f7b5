"""The store that forgets: for tests, and for servers whose data may go with the process.

It passes the same conformance suite as `sqlite_store.py`, group commit and undoing included: a batch becomes durable
in the next turn of the event loop, and `refuse_commits` stands for a full disk.
"""

import asyncio
from collections.abc import Sequence

from hekla.apiserver.change_window import WindowLimits
from hekla.apiserver.revision_log import RevisionLog
from hekla.apiserver.store import GENESIS, Change, StoreFullError


class MemoryStore(RevisionLog):
    """A `Store` in memory."""

    def __init__(self, *, limits: WindowLimits | None = None) -> None:
        super().__init__(revision=GENESIS, oldest=GENESIS, limits=limits)
        self.refuse_commits = 0
        """How many of the next batches fail, as on a full disk."""

    def _commit(self, changes: Sequence[Change]) -> None:
        error = None
        if self.refuse_commits:
            self.refuse_commits -= 1
            error = StoreFullError("the store was told to refuse this commit")
        asyncio.get_running_loop().call_soon(self._finished, error)

    def _forget(self, fallen: Sequence[Change]) -> None:
        """Nothing else keeps the past."""

    async def close(self) -> None:
        """Finish what was decided and take nothing more."""
        await self._drain()
