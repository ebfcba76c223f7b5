"""How close in the network the pods of a gang, or of a part of one, must be or would like to be."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Closeness:
    """A wish for one domain; the highest tier that it may be of is given by number, by name, or not at all."""

    is_hard: bool = True
    """Whether the pods rather wait than be further apart."""

    highest_tier: int | None = None
    tier_name: str = ""
