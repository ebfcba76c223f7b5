"""A request that waits until it is told to go on, as `beginning.py` and `holding.py` keep it."""

from collections.abc import Callable

from hekla.serving.router.plan import Refusal, Waiting


class Held(Waiting):
    """One request that is held."""

    __slots__ = ("_resume",)

    def __init__(self) -> None:
        self._resume: Callable[[Refusal | None], None] | None = None

    def when_ready(self, resume: Callable[[Refusal | None], None]) -> None:
        """Who is to be told to go on."""
        self._resume = resume

    def abandon(self) -> None:
        """Whoever waited has left."""
        self._resume = None

    @property
    def is_abandoned(self) -> bool:
        """Whether nobody waits for it any more."""
        return self._resume is None

    def go(self, refusal: Refusal | None) -> None:
        """Ask the desk again, or end."""
        if self._resume is not None:
            resume, self._resume = self._resume, None
            resume(refusal)
