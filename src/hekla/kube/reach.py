"""Says once that an API server cannot be reached, whatever number of informers have lost it, and once that it is reached again.

A watch that breaks and is taken up again is no news: connections end, servers restart. Told one by one, a server that was away for ten
minutes filled the log with a thousand lines that said the same.
"""

import structlog

log = structlog.get_logger()

TRIES = 4
"""Failures in a row of one informer before anything is said: with its pauses, some two thirds of a second."""


class Reach:
    """What the informers of one client know together of the way to its server."""

    def __init__(self) -> None:
        self._is_told = False

    def lost(self, why: str, failures: int) -> None:
        """An informer could not reach the server, so often in a row."""
        if failures >= TRIES and not self._is_told:
            self._is_told = True
            log.warning("the API server cannot be reached", why=why, so="it is tried again every half minute at least")

    def found(self) -> None:
        """An informer heard from the server."""
        if self._is_told:
            self._is_told = False
            log.info("the API server is reached again")
