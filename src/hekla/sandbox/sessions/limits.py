"""How many sessions an owner may have, and all together: decided before anything is made."""

from collections.abc import Mapping
from dataclasses import dataclass, field


class RefusedError(Exception):
    """What was asked is not granted. The status, a stable reason and a sentence are for who asked."""

    def __init__(self, status: int, reason: str, sentence: str, *, retry_after_s: float = 0.0) -> None:
        super().__init__(sentence)
        self.status, self.reason, self.sentence, self.retry_after_s = status, reason, sentence, retry_after_s


@dataclass(frozen=True, kw_only=True)
class SessionLimits:
    """Bounds of sessions."""

    per_owner: int = 100
    """Live sessions of one owner; one more is refused with 429."""
    owners: Mapping[str, int] = field(default_factory=dict)
    """Other numbers for owners by name."""
    total: int = 20_000
    """Live sessions of all; one more is refused with 429."""
    create_timeout_s: float = 120.0
    """To a sandbox that answers; beyond it 504, and what was made is taken away."""
    longest_timeout_s: float = 24 * 3600.0
    """How long a session may be asked to live without being asked again."""
    forks: int = 100
    """Copies that one call may make."""
    metadata_bytes: int = 16 * 1024
    """Metadata and environment of one session, each."""

    def of(self, owner: str) -> int:
        """How many sessions an owner may have."""
        return self.owners.get(owner, self.per_owner)


def check_room(limits: SessionLimits, owner: str, wanted: int, live: Mapping[str, int]) -> None:
    """Refuse more sessions than may be; `live` counts those there are by owner."""
    has, may = live.get(owner, 0), limits.of(owner)
    if has + wanted > may:
        raise RefusedError(
            429, "owner_limit", f'"{owner}" has {has} of at most {may} sessions; end some first', retry_after_s=1.0
        )
    if sum(live.values()) + wanted > limits.total:
        raise RefusedError(
            429,
            "total_limit",
            f"there are {limits.total} sessions, as many as may be; try again later",
            retry_after_s=1.0,
        )
