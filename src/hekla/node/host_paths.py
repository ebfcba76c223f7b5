"""Checks the path of a hostPath against its type, and makes what is missing where it may be made, as kubelets of 1.36 do.

Of no type nothing is checked. What is missing is a directory then too: kubelets leave it out, and containerd makes it, as the same user.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Final

from hekla.api.volumes import HostPathVolumeSource

_TYPES: Final[dict[str, tuple[Callable[[Path], bool], str]]] = {
    "Directory": (Path.is_dir, "directory"),
    "File": (Path.is_file, "file"),
    "Socket": (Path.is_socket, "socket file"),
    "CharDevice": (Path.is_char_device, "character device"),
    "BlockDevice": (Path.is_block_device, "block device"),
}
_OR_CREATE: Final = "OrCreate"
_DIRECTORY_MODE, _FILE_MODE = 0o755, 0o644


class HostPathTypeError(Exception):
    """What is there is not what was said; the sentence is a kubelet's."""


def made_host_path(source: HostPathVolumeSource) -> Path:
    """The path, checked, and made if it may be. Raises HostPathTypeError, and OSError where it cannot be made."""
    path, kind = Path(source.path), source.type.removesuffix(_OR_CREATE)
    if kind and kind not in _TYPES:
        raise HostPathTypeError(f"{source.type} is an invalid volume type")
    if not path.exists():
        if source.type in ("", f"Directory{_OR_CREATE}"):
            _make_directory(path)
        elif source.type == f"File{_OR_CREATE}":
            path.touch(_FILE_MODE)
    if kind:
        is_kind, words = _TYPES[kind]
        if not is_kind(path):
            raise HostPathTypeError(f"hostPath type check failed: {path} is not a {words}")
    return path


def _make_directory(path: Path) -> None:
    if not path.is_dir():
        _make_directory(path.parent)
        path.mkdir(_DIRECTORY_MODE, exist_ok=True)
