"""The process behind `hekla up --detach`: serves a platform whose settings its parent hands it as JSON.

It goes around the command line, whose imports would cost a sixth of a second before the first of ours.
"""

import json
import sys
from dataclasses import asdict
from pathlib import Path

from hekla.app.data_directory import DataDirectory
from hekla.app.logging import bound_log
from hekla.app.serving import PlatformError, serve_platform
from hekla.app.settings import Settings


def pack_settings(settings: Settings) -> str:
    """Settings as one argument of a command line."""
    return json.dumps(asdict(settings), default=_plain)


def unpack_settings(text: str) -> Settings:
    """The same settings again."""
    said = json.loads(text)
    read = {
        "data_dir": Path(said["data_dir"]),
        "without": frozenset(said["without"]),
        **{name: said[name] and Path(said[name]) for name in ("scheduler_conf", "engine_python")},
    }
    return Settings(**{**said, **read})


def _plain(value: object) -> object:
    """What JSON has no word for: paths as text, sets as sorted lists."""
    return sorted(value) if isinstance(value, frozenset) else str(value)


def main(settings: str, ready_fd: str, lives_while: str) -> int:
    """Serve until told to stop; the parent reads from `ready_fd` how that began."""
    told = unpack_settings(settings)
    bound_log(DataDirectory(told.data_dir).log)
    try:
        serve_platform(told, lambda _platform: None, ready_fd=int(ready_fd), lives_while=int(lives_while))
    except PlatformError as error:
        print(f"hekla: {error}", file=sys.stderr)  # noqa: T201 - the log of a detached platform
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
