"""Makes one file of the sandboxes' daemon, which any Python from 3.9 on runs: `python tools/build_daemon.py [FILE]`.

The same source makes the same bytes, so that an image that carries it can be compared.
"""

import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "hekla" / "sandbox" / "daemon"
START = b"""import sys

from hekla.sandbox.daemon.server import main

sys.exit(main())
"""
EPOCH = (1980, 1, 1, 0, 0, 0)


def main() -> int:
    """Write the file and say how large it is."""
    target = Path(sys.argv[1] if len(sys.argv) > 1 else "hekla-daemon.pyz")
    contents = {"__main__.py": START, "hekla/__init__.py": b"", "hekla/sandbox/__init__.py": b""}
    contents |= {f"hekla/sandbox/daemon/{one.name}": one.read_bytes() for one in sorted(SOURCE.glob("*.py"))}
    with target.open("wb") as file:
        file.write(b"#!/usr/bin/env python3\n")
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in contents.items():
                entry = zipfile.ZipInfo(name, EPOCH)
                entry.compress_type = zipfile.ZIP_DEFLATED
                archive.writestr(entry, content)
    target.chmod(0o755)
    print(f"{target}: {target.stat().st_size} bytes, {len(contents)} files")
    return 0


if __name__ == "__main__":
    sys.exit(main())
