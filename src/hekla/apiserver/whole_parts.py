"""Parts of custom resources that a schema's walks leave as they are: nothing to prune, no null to take out, no default to fill in.

The walks are functions of a part and the schema, so what is like a part that came out as it went in is not walked again. Three walks of
a sandbox's spec, the same in each one of a pool, were 0.3 ms of the 0.6 that a change of its labels took. `custom_strategy.py` asks.
"""

from collections.abc import Collection
from typing import Any, NamedTuple

from hekla.api.meta import Document
from hekla.apiserver.bodies import encode

MOST_PARTS = 512
LONGEST_PART = 16 * 1024
"""Bytes. Longer ones are walked each time; so a version of a kind holds 8 MiB at most."""

HEAD = ("apiVersion", "kind", "metadata")
"""What every object has, and no schema of a custom resource speaks of."""


class Met(NamedTuple):
    """A document's parts before its walks."""

    known: Collection[str]
    """Those that need none."""

    texts: dict[str, bytes]
    """The others, as they are in JSON."""


class WholeParts:
    """What is known of one version of one kind."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, bytes], None] = {}

    def meet(self, document: Document) -> Met:
        """Look at a document that is about to be walked."""
        known, texts = set[str](), dict[str, bytes]()
        for name, value in document.items():
            if name in HEAD:
                continue
            text = _text(value)
            if (name, text) in self._known:
                known.add(name)
            elif 0 < len(text) <= LONGEST_PART:
                texts[name] = text
        return Met(known, texts)

    def learn(self, document: Document, texts: dict[str, bytes]) -> None:
        """The document after its walks: what came out as it went in is known from now on, the oldest knowledge forgotten for it."""
        for name, text in texts.items():
            if name in document and _text(document[name]) == text:
                self._known[name, text] = None
        while len(self._known) > MOST_PARTS:
            del self._known[next(iter(self._known))]


def _text(value: Any) -> bytes:
    try:
        return encode(value)
    except UnicodeEncodeError:  # half a character, which the checks will refuse; never known
        return b""
