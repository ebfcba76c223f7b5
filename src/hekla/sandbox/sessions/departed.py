"""Sessions that ended by themselves, remembered for a while: their owners learn when and why; whoever else asks learns nothing.

In memory: a gateway that was started anew tells of those before as of ones that never were.
"""

from collections import OrderedDict
from datetime import UTC, datetime
from typing import Final

from hekla.sandbox.sessions.records import Sees, Session, is_seen

MOST: Final = 10_000
"""The first go first; each is 0.3 KiB."""
KEPT_S: Final = 24 * 3600.0
_LONGEST: Final = 300


class Departed:
    """Those of one gateway."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, tuple[str, str, float, str]] = OrderedDict()
        """By id: whose it was and where, when it ended, and why."""

    def __len__(self) -> int:
        """How many are remembered."""
        return len(self._known)

    def add(self, row: Session, why: str, now_s: float) -> None:
        """One that ends now."""
        self._known.setdefault(row.id, (row.owner, row.namespace, now_s, why[:_LONGEST]))
        while len(self._known) > MOST or next(iter(self._known.values()))[2] < now_s - KEPT_S:
            self._known.popitem(last=False)

    def sentence(self, session: str, owner: Sees, now_s: float) -> str:
        """What its owner is told beside that it is not there; empty for others, and where it is not said who asks."""
        whose, namespace, ended_s, why = self._known.get(session, ("", "", 0.0, ""))
        if not why or owner is None or not is_seen(whose, namespace, owner) or ended_s < now_s - KEPT_S:
            return ""
        return f": it ended at {datetime.fromtimestamp(ended_s, UTC):%Y-%m-%dT%H:%M:%SZ}: {why}"
