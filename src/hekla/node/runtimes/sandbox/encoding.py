"""Messages to supervisors and daemons as bytes: a tenth of what the standard library takes, which is all that the other ends have."""

import json

import msgspec

from hekla.node.shim.sandbox.packets import Message

_encode = msgspec.json.Encoder().encode


def encoded(message: Message) -> bytes:
    """One JSON object; names that are no UTF-8, as files may have them, get there as they are."""
    try:
        return _encode(message)
    except UnicodeEncodeError:
        return json.dumps(message).encode()
