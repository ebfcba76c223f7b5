"""Moments as Kubernetes writes them, to and from text. Pure, for decisions; `clock.py` says what time it is."""

from datetime import UTC, datetime


def rfc3339(moment: datetime) -> str:
    """A moment as Kubernetes writes it in `metadata` and conditions: UTC, whole seconds."""
    return (
        moment.astimezone(UTC).isoformat(timespec="seconds")[: -len("+00:00")] + "Z"
    )  # strftime takes ten times as long


def rfc3339_micro(moment: datetime) -> str:
    """The same with microseconds, as leases and events.k8s.io write it."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds")[: -len("+00:00")] + "Z"


def parse_rfc3339(text: str | None) -> datetime | None:
    """The moment that an object's field names, in UTC where it has no zone; None for an absent or unreadable one."""
    if not text:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
