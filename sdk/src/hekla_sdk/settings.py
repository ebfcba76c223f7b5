"""Which gateway, and with which key: $HEKLA_AGENTS_URL and $HEKLA_AGENTS_KEY, else the platform's data directory."""

import os
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from hekla_sdk.errors import SettingsError


@dataclass(frozen=True, slots=True)
class Gateway:
    """Where the gateway of sandboxes listens, and a key to it."""

    url: str
    key: str = field(repr=False)

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise SettingsError(f'the gateway\'s address is "{self.url}"; it must be like http://127.0.0.1:8090')
        if not self.key or not self.key.isascii() or not self.key.isprintable():
            raise SettingsError(f"the key to the gateway at {self.url} is empty or no line of plain characters")
        object.__setattr__(self, "url", self.url.rstrip("/"))


def find_gateway(data_dir: str | os.PathLike[str] | None = None) -> Gateway:
    """The gateway of the environment, or of the platform that runs on a data directory here."""
    url, key = os.environ.get("HEKLA_AGENTS_URL", ""), os.environ.get("HEKLA_AGENTS_KEY", "")
    if url and data_dir is None:
        if not key:
            raise SettingsError("HEKLA_AGENTS_URL is set and HEKLA_AGENTS_KEY is not; set both")
        return Gateway(url, key)
    root = Path(data_dir) if data_dir is not None else _default_data_dir()
    try:
        url = (root / "agents.url").read_text().strip()
        lines = (root / "agents.key").read_text().splitlines()
    except OSError:
        raise SettingsError(
            f"no gateway of sandboxes runs on {root}; start one with `hekla up --detach`, or set HEKLA_AGENTS_URL and HEKLA_AGENTS_KEY"
        ) from None
    keys = [line.partition(":")[2].strip() for line in lines if line.strip() and not line.startswith("#")]
    if not keys:
        raise SettingsError(f"{root / 'agents.key'} has no key; write one as `owner: key`")
    return Gateway(url, keys[0])


def _default_data_dir() -> Path:
    chosen = os.environ.get("HEKLA_DATA_DIR")
    if chosen:
        return Path(chosen)
    home = os.environ.get("XDG_DATA_HOME") or str(Path.home() / ".local" / "share")
    return Path(home) / "hekla"
