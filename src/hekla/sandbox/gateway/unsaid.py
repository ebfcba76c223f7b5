"""Keeps out of the log what may be a secret that a client wrote where a name belongs: a key as a template, a token in a path.

A sentence that refuses repeats what was asked, for who asked; the log is read by others. Ids of sessions stay: the log is searched for them.
"""

import re
from typing import Final

SHOWN: Final = 4
"""Characters of it that stay, to tell one from another."""
LONGEST: Final = 1024
"""Characters of a sentence before and after what it quotes, which may be as long as a body."""
_WORD = re.compile(
    r"eyJ[\w.-]{8,}"
    r"|[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}"
    r"|(?=[\w-]*[0-9])(?=[\w-]*[A-Z])[\w-]{16,}"
    r"|[A-Za-z0-9]{20,}"
)
"""Tokens, which begin so; UUIDs; words with capitals and digits, as no name in Kubernetes has; what is long and has no dash."""
_SESSION = re.compile(r"[a-z2-7]{26}")
_SESSION_QUOTED = re.compile(r'\b(session|sandbox) "([a-z2-7]{26})"')
_QUOTE = re.compile(r"""\"|(?<!\w)'|'(?!\w)""")
"""Within a word it is an apostrophe."""


def unsaid(text: str) -> str:
    """The same, but for the most of long words that are no session's id: `e2b_b819...`. Of a path, where names must stay."""
    return _WORD.sub(_shortened, text)


def without_quotes(sentence: str, reason: str) -> str:
    """A refusal with the length of what it quotes in its place: `template (44 characters) not found`. A field that is its reason stays."""
    begin, text = f'"{reason}"', sentence
    field = begin if text.startswith(begin) else ""
    text = _SESSION_QUOTED.sub(r"\1 \2", text.removeprefix(field))
    opening = _QUOTE.search(text)
    if opening is None:
        return field + unsaid(text[:LONGEST])
    # from the first to the last, since what a client wrote may have some in it; to the end where one was not closed
    first = last = opening.start()
    for found in _QUOTE.finditer(text, max(first + 1, len(text) - LONGEST)):
        last = found.start()
    if first == last or text[last + 1 : last + 2].isalnum():
        last = len(text)
    return f"{field}{unsaid(text[:first][:LONGEST])}({last - first - 1} characters){unsaid(text[last + 1 :])}"


def _shortened(found: re.Match[str]) -> str:
    word = found[0]
    if (word.isalpha() and (word.islower() or word.isupper())) or _SESSION.fullmatch(word):
        return word
    return f"{word[:SHOWN]}..."
