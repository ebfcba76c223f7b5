"""Notes on sandboxes in a notebook that the supervisor holds as well: what is written there outlives this process, and wakes nobody.

A note by packet woke the supervisor two times a session, on a processor that the sandbox wants at that moment. Another notebook is begun
where one has grown long; until the supervisor says that it has it, the one before holds and both are written.
"""

from collections.abc import Callable, Iterator

import structlog

from hekla.node.shim.sandbox.notebook import Notebook

log = structlog.get_logger(__name__)

LONG_BYTES = 1024 * 1024
"""A notebook that has grown so long, and to more than twice what holds of it, is followed by another."""


class Notebooks:
    """The one that is written, and the one that is to follow it."""

    def __init__(self, offer: Callable[[int], bool], withdraw: Callable[[], None]) -> None:
        """`offer` hands a descriptor to the supervisor at once, or says that it cannot now; `taken` is its answer. `withdraw` tells it to
        read what it has and to expect no more.
        """
        self._offer, self._withdraw = offer, withdraw
        self._current: Notebook | None = None
        self._offered: Notebook | None = None
        self._latest: dict[str, bytes] = {}
        """The last entry of each sandbox."""
        self._latest_bytes = 0
        self._notes_to_wait = 0
        """Notes until another is begun, where the last one was begun in vain."""
        self.is_wanted = False
        """Whether the supervisor takes any."""

    def write(self, sandbox: str, entry: bytes) -> bool:
        """Whether it is written down for the next life; if not, it has to get there by itself."""
        if not self.is_wanted:
            return False
        self._remember(sandbox, entry)
        for book in self._open():
            try:
                book.write(entry)
            except OSError as problem:
                log.warning("notes on sandboxes go by packets again", error=str(problem))
                self.close()
                self._withdraw()
                return False
        self._notes_to_wait = max(0, self._notes_to_wait - 1)
        if self._offered is None and not self._notes_to_wait and self._is_due():
            self._begin()
        return self._current is not None

    def forget(self, sandbox: str) -> None:
        """It is gone."""
        self._latest_bytes -= len(self._latest.pop(sandbox, b""))

    def taken(self, *, is_taken: bool) -> None:
        """The supervisor has the one that was offered, or had no room for it and keeps the one before."""
        book, self._offered = self._offered, None
        if book is None:
            return
        if not is_taken:
            self._give_up(book)
            return
        if self._current is not None:
            self._current.close()
        self._current = book

    def close(self) -> None:
        """The supervisor is gone, or notes take another way from now on."""
        for book in self._open():
            book.close()
        self._current = self._offered = None
        self._latest.clear()
        self._latest_bytes = self._notes_to_wait = 0
        self.is_wanted = False

    def _remember(self, sandbox: str, entry: bytes) -> None:
        self.forget(sandbox)
        self._latest[sandbox] = entry
        self._latest_bytes += len(entry)

    def _open(self) -> Iterator[Notebook]:
        return (book for book in (self._current, self._offered) if book is not None)

    def _is_due(self) -> bool:
        return self._current is None or self._current.size > max(LONG_BYTES, 2 * self._latest_bytes)

    def _begin(self) -> None:
        try:
            book = Notebook()
        except OSError as problem:
            log.debug("no notebook", error=str(problem))
            return
        try:
            for entry in self._latest.values():
                book.write(entry)
            is_offered = self._offer(book.descriptor)
        except OSError as problem:
            log.debug("no notebook", error=str(problem))
            is_offered = False
        if is_offered:
            self._offered = book
        else:
            self._give_up(book)

    def _give_up(self, book: Notebook) -> None:
        """Another is begun after as many notes as this one took: begun with each, a burst's work would be its number squared."""
        book.close()
        self._notes_to_wait = len(self._latest)
