"""Texts of others as people may be shown them: what a pod, an event or a log says could move the cursor, hide lines, or name the window.

Kubernetes' own client does so for what it prints for people since 1.26 (CVE-2021-25743). What programs read stays as it is, and so does
a log that was asked for.
"""

import re
from typing import Final

_CONTROL: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""All but the ends of lines and tabs, and those behind ASCII, by which some terminals go as well."""
_ASCII: Final = 0x80


def harmless(text: str) -> str:
    """The text with its control characters written out: `^[` for an escape."""
    return _CONTROL.sub(_written_out, text)


def _written_out(found: re.Match[str]) -> str:
    number = ord(found[0])
    return f"^{chr(number ^ 0x40)}" if number < _ASCII else f"\\x{number:02x}"
