"""New pods of one template are worked out once: a controller, or whoever starts thousands, sends the same text but for the name.

What a create makes of a pod (types, defaults, admission, checks) takes two thirds of its time. A pod whose text differs
from an earlier one's in nothing but its name is given what that one was given, as long as nothing has changed that the
rules looked up: each write of a kind counts its version on. It is remembered only where all rules that saw the pod say that
they go by nothing else (`AdmissionRule`), where nobody outside was asked, where there was nothing to warn of, and where
whoever sent it wanted to be warned. `handlers_write.py` asks here first; whatever is out of the ordinary goes the long way,
`writes.create`, and is told there what is wrong.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from hekla.api.meta import Document
from hekla.apiserver.admission import AdmissionRequest, AdmissionRule, Reader
from hekla.apiserver.bodies import encode, rest_of
from hekla.apiserver.decoding import key_count
from hekla.apiserver.store import Store

MOST_TEMPLATES = 4096
"""Templates that are remembered, and texts that have been seen once; then all are forgotten."""

MOST_BYTES = 16 << 20
"""Bytes of texts that are remembered, as they came; what they became is half as long again."""

LONGEST_TEXT = 65_536
"""Longer pods go the long way: remembering them would push out hundreds of others."""

MOST_STALE = 16
"""Who was out of date so often goes by objects that change all the time: looking again would cost and never help."""

_PARTS = frozenset({"apiVersion", "kind", "metadata", "spec"})
_NAME = re.compile(rb'"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?"').fullmatch
"""A name with which nothing is wrong and of which nobody is warned; any other goes the long way."""

_texts = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class Sent(NamedTuple):
    """A pod's text, taken apart."""

    text: bytes
    """All but its name, if it has one: what pods of one template have in common. A zero byte, which no JSON has, is between the parts."""
    body: bytes
    """As it came."""
    name: str
    """Empty where it is to be made up."""

    @property
    def keys(self) -> int:
        """How many there are at least: a text that says one twice has more than one that does not."""
        return key_count(self.body)


@dataclass(frozen=True, slots=True)
class PodTemplate:
    """What was made of the pod that was sent first. Nothing of it may be changed: others share it."""

    metadata: Document
    rest: bytes
    """The stored body behind its metadata."""
    fields: dict[str, str]
    keys: int
    versions: tuple[tuple[str, int], ...]
    """Kinds that the rules looked into, and what they were then."""


@dataclass(slots=True)
class _Known:
    """What is known of one text: nothing yet, when it has been seen once."""

    template: PodTemplate | None = None
    stale: int = 0


@dataclass
class Lesson:
    """A pod on the long way, from which pods of its template may be made. A `Reader` that notes which kinds it is asked for."""

    sent: Sent
    known: _Known
    store: Store
    reader: Reader
    versions: dict[str, int] = field(default_factory=dict)

    def get(self, resource: str, namespace: str, name: str) -> Document | None:
        """One object, noted."""
        self._note(resource)
        return self.reader.get(resource, namespace, name)

    def list(self, resource: str, namespace: str = "") -> Sequence[Document]:
        """All objects, noted."""
        self._note(resource)
        return self.reader.list(resource, namespace)

    def learn(
        self, document: Document, rules: Sequence[AdmissionRule], request: AdmissionRequest, fields: dict[str, str]
    ) -> None:
        """Remember what became of the pod, if others of its text will become the same."""
        if request.has_waited or request.is_rewritten or document["spec"].get("schedulingGates"):
            return  # a gated pod's status tells the time
        if not all(getattr(rule, "goes_by_template", False) for rule in rules):
            return
        metadata = {key: value for key, value in document["metadata"].items() if key != "managedFields"}
        self.known.template = PodTemplate(
            metadata=metadata,
            rest=rest_of(document),
            fields=fields,
            keys=self.sent.keys,
            versions=tuple(self.versions.items()),
        )

    def _note(self, resource: str) -> None:
        self.versions.setdefault(resource, self.store.version_of(resource))


class PodTemplates:
    """Templates by the text of what was sent."""

    def __init__(self, store: Store, reader: Reader) -> None:
        self._store, self._reader = store, reader
        self._known: dict[bytes, _Known] = {}
        self._bytes = 0
        # hashes alone, of which two alike only have somebody learn early: pods that are all unlike took 15 us more, and take 5
        self._seen_once: set[int] = set()

    def find(self, sent: Sent) -> "PodTemplate | Lesson | None":
        """The template of such a pod, the chance to learn it, or neither where it is seen for the first time."""
        known = self._known.get(sent.text) or self._met_again(sent.text)
        if known is None:
            return None
        template = known.template
        if template is not None:
            version_of = self._store.version_of
            for resource, version in template.versions:
                if version_of(resource) != version:
                    break
            else:
                known.stale -= known.stale > 0
                return template if template.keys == sent.keys else None
            known.template = None
            known.stale += 1
        return Lesson(sent, known, self._store, self._reader) if known.stale < MOST_STALE else None

    def _met_again(self, text: bytes) -> _Known | None:
        """A place for what is seen for the second time."""
        mark = hash(text)
        if mark not in self._seen_once:
            if len(self._seen_once) >= MOST_TEMPLATES:
                self._seen_once.clear()
            self._seen_once.add(mark)
            return None
        self._seen_once.discard(mark)
        if len(self._known) >= MOST_TEMPLATES or self._bytes >= MOST_BYTES:
            self._known.clear()
            self._bytes = 0
        self._bytes += len(text)
        known = self._known[text] = _Known()
        return known


def taken_apart(body: bytes, namespace: str) -> Sent | None:
    """A new pod's text in parts; None for one that is not like most."""
    if len(body) > LONGEST_TEXT:
        return None
    try:
        parts = _texts(body)
        metadata = _texts(parts["metadata"])
        spec = bytes(parts["spec"])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, KeyError):
        return None  # what is wrong with it is told on the long way
    if not _PARTS.issuperset(parts):
        return None
    given = metadata.pop("name", None)
    if given is None and "generateName" not in metadata:
        return None
    named = b'""' if given is None else bytes(given)
    if given is not None and _NAME(named) is None:
        return None
    del parts["metadata"], parts["spec"]
    others = [
        encode((namespace, given is None, [*parts], [*metadata])),
        *map(bytes, parts.values()),
        *map(bytes, metadata.values()),
    ]
    return Sent(b"\0".join((spec, *others)), body, named[1:-1].decode())
