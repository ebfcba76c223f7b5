"""What an image's name means on a node without a registry: a registered root file system, or the host's own.

Hekla pulls nothing. An administrator registers a directory under a name (`python:3.12` -> /srv/roots/python-3.12); every
other image runs on the host's file system, read-only, and an event says so. Commands are looked up in PATH, which leads
with the virtual environment that Hekla runs in: so `python` finds Python with NumPy.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

DEFAULT_COMMANDS: Mapping[str, tuple[str, ...]] = {
    "alpine": ("/bin/sh",),
    "bash": ("bash",),
    "busybox": ("sh",),
    "debian": ("bash",),
    "nginx": ("nginx", "-g", "daemon off;"),
    "pause": ("sleep", "infinity"),
    "pytorch": ("bash",),
    "python": ("python3",),
    "redis": ("redis-server",),
    "ubuntu": ("bash",),
}
"""What well-known images run when a pod names no command; looked for on the host like any other command."""

HOST_ROOTFS = "HostRootfs"
"""The reason of the event that tells that an image's name was not followed."""


@dataclass(frozen=True)
class ImageRegistry:
    """Root file systems by image name."""

    roots: Mapping[str, Path] = field(default_factory=dict)

    @classmethod
    def of_directory(cls, directory: Path) -> "ImageRegistry":
        """Every `<name>/<tag>` (a `/` of the name written as `__`) below a directory is a root file system."""
        roots = {}
        for tagged in sorted(directory.glob("*/*")) if directory.is_dir() else []:
            roots[f"{tagged.parent.name.replace('__', '/')}:{tagged.name}"] = tagged
        return cls(roots)

    def rootfs_of(self, image: str) -> Path | None:
        """The directory registered for an image; None is the host's own."""
        return next((self.roots[name] for name in _spellings(image) if name in self.roots), None)

    def refusal_of(self, image: str) -> str:
        """Why no registry could have such an image, in the kubelet's words; empty if one could, or it is registered here."""
        why = "" if self.rootfs_of(image) is not None else malformed(image)
        return (
            f'Failed to apply default image tag "{image}": couldn\'t parse image name "{image}": {why}' if why else ""
        )

    def default_command(self, image: str) -> tuple[str, ...]:
        """What the image would run by itself, if that is known; for a registered one it is its `.command` file."""
        rootfs = self.rootfs_of(image)
        if rootfs is not None and (rootfs / ".command").is_file():
            return tuple((rootfs / ".command").read_text().splitlines())
        name = image.partition("@")[0].rpartition("/")[2].partition(":")[0]
        return DEFAULT_COMMANDS.get(name, ())

    def sentence_for(self, image: str) -> str:
        """What an event says of an image that is not registered."""
        return (
            f'image "{image}" is not registered on this node and was not pulled; '
            "the container runs on the host's own file system, read-only"
        )


_HOST = r"(?:[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?(?:\.[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?)*|\[[0-9a-fA-F:]+\])(?::\d+)?"
_PART = r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*"
_IMAGE = re.compile(
    rf"(?:{_HOST}/)?{_PART}(?:/{_PART})*(?::\w[\w.-]{{0,127}})?(?:@[A-Za-z][A-Za-z0-9]*(?:[-_+.][A-Za-z][A-Za-z0-9]*)*:[0-9a-fA-F]{{32,}})?",
    re.ASCII,
)

_NUMBER = re.compile(r"[a-f0-9]{64}")
_MOST_LETTERS = 255
"""Of a repository's name without its registry's."""
_DEFAULT_HOSTS = ("docker.io", "index.docker.io")


def malformed(image: str) -> str:
    """What is wrong with an image's name; empty if nothing is."""
    if _NUMBER.fullmatch(image) is not None:
        return f"invalid repository name ({image}), cannot specify 64-byte hexadecimal strings"
    host, slash, rest = image.partition("/")
    is_host = slash and (set(".:") & set(host) or host == "localhost" or host != host.lower())
    path = (rest if is_host else image).partition("@")[0]
    name = path.rpartition(":")[0] or path
    if _IMAGE.fullmatch(image) is not None and name == name.lower():
        is_official = "/" not in name and (not is_host or host in _DEFAULT_HOSTS)
        letters = len(name) + len("library/") * is_official
        return f"repository name must not be more than {_MOST_LETTERS} characters" if letters > _MOST_LETTERS else ""
    is_tall = name != name.lower() and _IMAGE.fullmatch(image.lower()) is not None
    return "invalid reference format" + (f": repository name ({name}) must be lowercase" if is_tall else "")


def _spellings(image: str) -> list[str]:
    name = image.partition("@")[0]
    for prefix in ("docker.io/library/", "docker.io/", "library/"):
        name = name.removeprefix(prefix)
    last = name.rpartition("/")[2]
    return [image, name] if ":" in last else [image, name, f"{name}:latest"]
