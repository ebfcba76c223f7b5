"""What is wrong with events, told by the older API's names.

An event with an `eventTime` must say who reports it, whichever API it comes by; only the newer one must have such a time.
"""

from hekla.api.meta import Document
from hekla.apiserver.fielderrors import IMMUTABLE, FieldError, invalid, required
from hekla.apiserver.validation import names

_WITHOUT_NAMESPACE = ("default", "kube-system")
"""Where events with a time about objects of the cluster are; those without one are in the first only."""

_TYPES = ("Normal", "Warning")
_LONGEST, _LONGEST_NOTE = 128, 1024
_OLDER = (
    ("deprecatedFirstTimestamp", "firstTimestamp"),
    ("deprecatedLastTimestamp", "lastTimestamp"),
    ("deprecatedCount", "count"),
    ("deprecatedSource", "source"),
)
_KEPT = (
    ("regarding", "involvedObject"),
    ("reason", "reason"),
    ("note", "message"),
    ("type", "type"),
    ("eventTime", "eventTime"),
    ("action", "action"),
    ("related", "related"),
    ("reportingController", "reportingController"),
    ("reportingInstance", "reportingInstance"),
    *_OLDER,
)
"""Fields of the newer API and what they are called in errors."""


def check_event(event: Document) -> list[FieldError]:
    """An event of the older API."""
    return _check(event, event.get("involvedObject") or {}, event.get("reportingComponent", ""), "message")


def check_newer_event(event: Document) -> list[FieldError]:
    """An event of the newer API."""
    return _check(event, event.get("regarding") or {}, event.get("reportingController", ""), "note")


def check_new_newer_event(event: Document) -> list[FieldError]:
    """What only a new event must keep to."""
    errors = _check_series(event) + ([] if event.get("eventTime") else [required("eventTime")])
    kind = event.get("type", "")
    if kind not in _TYPES:
        errors.append(invalid("type", "", f"has invalid value: {kind}"))
    return errors + [invalid(name, "", "needs to be unset") for key, name in _OLDER if event.get(key)]


def check_newer_event_update(new: Document, old: Document) -> list[FieldError]:
    """Only how often it happened changes."""
    errors = _check_series(new) if new.get("series") != old.get("series") else []
    return errors + [
        invalid(name, new.get(key, "" if isinstance(old.get(key), str) and key != "eventTime" else None), IMMUTABLE)
        for key, name in _KEPT
        if (new.get(key) or None) != (old.get(key) or None)
    ]


def _check(event: Document, about: Document, controller: str, note: str) -> list[FieldError]:
    namespace, theirs = event["metadata"].get("namespace", ""), about.get("namespace", "")
    if event.get("eventTime"):
        is_placed = bool(theirs) or namespace in _WITHOUT_NAMESPACE
    else:
        is_placed = namespace == (theirs or _WITHOUT_NAMESPACE[0])
    errors = [] if is_placed else [invalid("involvedObject.namespace", theirs, "does not match event.namespace")]
    return errors + (_check_words(event, controller, event.get(note, "")) if event.get("eventTime") else [])


def _check_words(event: Document, controller: str, note: str) -> list[FieldError]:
    errors = [] if controller else [required("reportingController")]
    errors += [invalid("reportingController", controller, said) for said in names.qualified_name(controller)]
    for key in ("reportingInstance", "action", "reason"):
        if not event.get(key):
            errors.append(required(key))
        else:
            errors += _check_length(key, event[key], _LONGEST)
    return errors + _check_length("message", note, _LONGEST_NOTE)


def _check_length(name: str, text: str, bound: int) -> list[FieldError]:
    """What Go calls characters are bytes."""
    is_longer = len(text.encode()) > bound
    return [invalid(name, "", f"can have at most {bound} characters")] if is_longer else []


def _check_series(event: Document) -> list[FieldError]:
    series = event.get("series")
    if series is None:
        return []
    errors = [invalid("series.count", "", "should be at least 2")] if series.get("count", 0) < 2 else []
    return errors if series.get("lastObservedTime") else [*errors, required("series.lastObservedTime")]
