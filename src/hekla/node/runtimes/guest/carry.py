"""The one file that travels into a sandbox: the bridge, the daemon and what both need, for whatever Python is there.

The same source makes the same bytes, so one that lies there already is used again.
"""

import functools
import importlib.util
import io
import marshal
import os
import struct
import zipfile
from pathlib import Path

import hekla.node.shim
from hekla.api.agents.node_contract import DAEMON_MODULE

EPOCH = (1980, 1, 1, 0, 0, 0)
UNCHECKED = 1
"""A flag of compiled files: they are not compared with their source."""
START = b"""import sys

from hekla.node.shim.guest.entry import main

sys.exit(main())
"""


def carried_into(directory: Path) -> Path:
    """The file, in a directory of ours."""
    target = directory / "guest.pyz"
    part = directory / f".guest.{os.getpid()}"
    if not target.exists() or target.read_bytes() != contents():
        part.write_bytes(contents())
        os.replace(part, target)
    return target


@functools.cache
def contents() -> bytes:
    """Its bytes."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name, content in sorted(_modules().items()):
            archive.writestr(zipfile.ZipInfo(name, EPOCH), content)
            archive.writestr(zipfile.ZipInfo(f"{name}c", EPOCH), _compiled(name, content))
    return file.getvalue()


def _compiled(name: str, source: bytes) -> bytes:
    """For a Python like ours, which starts in half the time; others find that it is not theirs and take the source."""
    head = importlib.util.MAGIC_NUMBER + struct.pack("<I", UNCHECKED) + importlib.util.source_hash(source)
    return head + marshal.dumps(compile(source, name, "exec", dont_inherit=True))


def _modules() -> dict[str, bytes]:
    found = {
        "__main__.py": START,
        "hekla/__init__.py": b"",
        "hekla/node/__init__.py": b"",
        "hekla/sandbox/__init__.py": b"",
    }
    shim = Path(hekla.node.shim.__file__).parent
    daemon = importlib.util.find_spec(DAEMON_MODULE)
    assert daemon is not None, "the daemon is part of this package"
    for directory, place in ((shim, "hekla/node/shim"), (Path(daemon.origin or "").parent, "hekla/sandbox/daemon")):
        for file in directory.rglob("*.py"):
            found[f"{place}/{file.relative_to(directory)}"] = file.read_bytes()
    return found
