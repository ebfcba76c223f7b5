"""How deep a YAML text nests, found without building it: PyYAML's C composer recurses and a deep text would take the
stack, and the process with it.
"""

import re

import yaml

MOST_DEPTH = 400
"""Levels; a few times what any kind needs, and far from what the composer survives (about 20,000)."""

_INDENTATION = re.compile(rb"^[ \-?:]+", re.MULTILINE)


def is_too_deep(text: bytes) -> bool:
    """Whether a text nests deeper than `MOST_DEPTH`. Nearly every text is cleared by counting brackets and spaces."""
    widest = max((len(found) for found in _INDENTATION.findall(text)), default=0)
    if text.count(b"{") + text.count(b"[") + widest < MOST_DEPTH:
        return False
    depth = 0
    try:
        for event in yaml.parse(text, Loader=yaml.CSafeLoader):
            if isinstance(event, yaml.CollectionStartEvent):
                depth += 1
                if depth > MOST_DEPTH:
                    return True
            elif isinstance(event, yaml.CollectionEndEvent):
                depth -= 1
    except yaml.YAMLError:
        return False  # the reader will say what is wrong with it
    return False
