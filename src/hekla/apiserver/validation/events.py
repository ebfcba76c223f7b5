"""What is wrong with events. The older API asks for little; the newer one has rules, told by the older one's names."""

from hekla.api.meta import Document
from hekla.apiserver.fielderrors import IMMUTABLE, FieldError, invalid, required
from hekla.apiserver.validation import names

_WITHOUT_NAMESPACE = ("default", "kube-system")
"""Where events about objects of the cluster are."""

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
    return _check_namespace(event, event.get("involvedObject") or {})


def check_newer_event(event: Document) -> list[FieldError]:
    """An event of the newer API, which need not lie where its object does."""
    about = event.get("regarding") or {}
    errors = [] if about.get("namespace") else _check_namespace(event, about)
    return errors + _check_words(event) + _check_series(event)


def check_new_newer_event(event: Document) -> list[FieldError]:
    """What only a new event must keep to."""
    errors = [] if event.get("eventTime") else [required("eventTime")]
    kind, note = event.get("type", ""), event.get("note", "")
    if kind not in _TYPES:
        errors.append(invalid("type", "", f"has invalid value: {kind}"))
    if len(note) > _LONGEST_NOTE:
        errors.append(invalid("message", "", f"can have at most {_LONGEST_NOTE} characters"))
    return errors + [invalid(name, "", "needs to be unset") for key, name in _OLDER if event.get(key)]


def check_newer_event_update(new: Document, old: Document) -> list[FieldError]:
    """Only how often it happened changes."""
    return [
        invalid(name, new.get(key, "" if isinstance(old.get(key), str) and key != "eventTime" else None), IMMUTABLE)
        for key, name in _KEPT
        if (new.get(key) or None) != (old.get(key) or None)
    ]


def _check_namespace(event: Document, about: Document) -> list[FieldError]:
    namespace, theirs = event["metadata"].get("namespace", ""), about.get("namespace", "")
    if theirs == namespace or (not theirs and namespace in _WITHOUT_NAMESPACE):
        return []
    return [invalid("involvedObject.namespace", theirs, "does not match event.namespace")]


def _check_words(event: Document) -> list[FieldError]:
    controller = event.get("reportingController", "")
    errors = [] if controller else [required("reportingController")]
    errors += [invalid("reportingController", controller, said) for said in names.qualified_name(controller)]
    for key in ("reportingInstance", "action", "reason"):
        text = event.get(key, "")
        if not text:
            errors.append(required(key))
        elif len(text) > _LONGEST:
            errors.append(invalid(key, "", f"can have at most {_LONGEST} characters"))
    return errors


def _check_series(event: Document) -> list[FieldError]:
    series = event.get("series")
    if series is None:
        return []
    errors = [invalid("series.count", "", "should be at least 2")] if series.get("count", 0) < 2 else []
    return errors if series.get("lastObservedTime") else [*errors, required("series.lastObservedTime")]
