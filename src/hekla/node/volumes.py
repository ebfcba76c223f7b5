"""Makes a pod's volumes: directories with the files that config maps, secrets and the pod's own fields become.

`payload_of` decides what a volume holds; `VolumeMaker` writes it, so that a container sees each change whole (a new
directory, then one rename of a symbolic link, as the kubelet does it).
"""

import contextlib
import os
import shutil
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hekla.api.pods import Pod
from hekla.api.storage import PersistentVolume
from hekla.api.volumes import DownwardAPIVolumeFile, KeyToPath, Volume, VolumeMount
from hekla.node.fields import Self, field_value, resource_value
from hekla.node.host_paths import HostPathTypeError, made_host_path
from hekla.node.references import CONFIG_MAP, SECRET, Lookup
from hekla.node.runtimes import ConfigError, Mount, VolumeError

DEFAULT_MODE = 0o644


@dataclass(frozen=True, slots=True)
class File:
    """One file of a volume."""

    content: bytes
    mode: int


Payload = dict[str, File]
"""Files by their path within the volume."""

Tokens = Mapping[tuple[str, str], str]
"""Service-account tokens, fetched before, by volume name and path."""


def payload_of(volume: Volume, me: Self, lookup: Lookup, tokens: Tokens) -> Payload | None:
    """What a volume of files holds; None for one that is a plain directory."""
    if volume.config_map is not None:
        source = volume.config_map
        mode = _mode(source.default_mode)
        return dict(_keys(CONFIG_MAP, source.name, source.items, lookup, mode, optional=source.optional))
    if volume.secret is not None:
        secret = volume.secret
        mode = _mode(secret.default_mode)
        return dict(_keys(SECRET, secret.secret_name, secret.items, lookup, mode, optional=secret.optional))
    if volume.downward_api is not None:
        return dict(_fields(volume.downward_api.items, me, _mode(volume.downward_api.default_mode)))
    if volume.projected is not None:
        return _projected(volume, me, lookup, tokens)
    return None


def _projected(volume: Volume, me: Self, lookup: Lookup, tokens: Tokens) -> Payload:
    assert volume.projected is not None
    mode = _mode(volume.projected.default_mode)
    payload: Payload = {}
    for source in volume.projected.sources:
        if source.config_map is not None:
            each = source.config_map
            payload.update(_keys(CONFIG_MAP, each.name, each.items, lookup, mode, optional=each.optional))
        elif source.secret is not None:
            one = source.secret
            payload.update(_keys(SECRET, one.name, one.items, lookup, mode, optional=one.optional))
        elif source.downward_api is not None:
            payload.update(_fields(source.downward_api.items, me, mode))
        elif source.service_account_token is not None:
            path = source.service_account_token.path
            payload[path] = File(tokens.get((volume.name, path), "").encode(), mode)
    return payload


def _keys(
    kind: str, name: str, items: Sequence[KeyToPath], lookup: Lookup, mode: int, *, optional: bool
) -> Iterator[tuple[str, File]]:
    values = lookup.values(kind, name, optional=optional)
    if not items:
        yield from ((key, File(value, mode)) for key, value in values.items())
    for item in items:
        if item.key in values:
            yield _inside(item.path), File(values[item.key], _mode(item.mode, mode))
        elif not optional:
            raise ConfigError(f"references non-existent {kind} key: {item.key}")


def _fields(items: Sequence[DownwardAPIVolumeFile], me: Self, mode: int) -> Iterator[tuple[str, File]]:
    for item in items:
        if item.field_ref is not None:
            text = field_value(me, item.field_ref)
        elif item.resource_field_ref is not None:
            text = resource_value(me, item.resource_field_ref, None)
        else:
            continue
        yield _inside(item.path), File(text.encode(), _mode(item.mode, mode))


def _mode(mode: int | None, default: int = DEFAULT_MODE) -> int:
    return default if mode is None else mode


def _inside(path: str) -> str:
    """A path that stays in its volume; the API server has refused others, this is the second lock."""
    if path.startswith("/") or ".." in path.split("/"):
        raise ConfigError(f'path "{path}" leads out of the volume')
    return path


class VolumeMaker:
    """The volumes of one pod, below one directory."""

    def __init__(
        self,
        directory: Path,
        pod: Pod,
        claimed: Callable[[str], PersistentVolume | None],
        hidden: Sequence[Path] = (),
    ) -> None:
        """`claimed` finds the volume bound to a claim of the pod's namespace; no hostPath leads into what is `hidden`."""
        self._directory, self._pod, self._claimed, self._hidden = directory, pod, claimed, hidden

    def make(self, volume: Volume, payload: Payload | None) -> Path:
        """The directory (or file) that is the volume; its content is brought up to date."""
        try:
            return self._make(volume, payload)
        except HostPathTypeError as problem:
            raise VolumeError(f'volume "{volume.name}": {problem}') from None
        except OSError as problem:
            raise VolumeError(f'volume "{volume.name}": {problem.strerror} ({problem.filename})') from None

    def _make(self, volume: Volume, payload: Payload | None) -> Path:
        own = self._directory / volume.name
        if payload is not None:
            write_atomically(own, payload)
            return own
        if volume.host_path is not None:
            self._check_host_path(volume.name, Path(volume.host_path.path))
            return made_host_path(volume.host_path)
        claim = volume.persistent_volume_claim.claim_name if volume.persistent_volume_claim else ""
        if volume.ephemeral is not None:
            claim = f"{self._pod.metadata.name}-{volume.name}"
        if claim:
            return self._persistent(claim)
        if volume.empty_dir is None and (volume.nfs or volume.csi or volume.image):
            raise VolumeError(
                f'volume "{volume.name}": this node has no driver for its kind; use a claim or a hostPath'
            )
        own.mkdir(parents=True, exist_ok=True)
        own.chmod(0o777)
        return own

    def _check_host_path(self, name: str, path: Path) -> None:
        if any(path.resolve().is_relative_to(each.resolve()) for each in self._hidden):
            raise VolumeError(f'volume "{name}": {path} is the node agent\'s own; no pod may mount it')

    def _persistent(self, claim: str) -> Path:
        found = self._claimed(claim)
        if found is None:
            raise VolumeError(f'persistentvolumeclaim "{claim}" is not bound yet')
        if found.spec.host_path is not None:
            return made_host_path(found.spec.host_path)
        if found.spec.local is None:
            raise VolumeError(f'persistentvolume "{found.metadata.name}" is neither local nor a hostPath')
        path = Path(found.spec.local.path)
        path.mkdir(parents=True, exist_ok=True)
        return path


def write_atomically(directory: Path, payload: Payload) -> bool:
    """Write files so that readers see all of them old or all of them new; False if nothing has changed."""
    directory.mkdir(parents=True, exist_ok=True)
    current = directory / "..data"
    generation = int(os.readlink(current).rpartition("_")[2]) if current.is_symlink() else 0
    if generation and _holds(current, payload):
        return False
    fresh = directory / f"..version_{generation + 1}"
    for path, file in payload.items():
        target = fresh / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(file.content)
        target.chmod(stat.S_IMODE(file.mode))
    fresh.mkdir(exist_ok=True)
    pending = directory / "..data_tmp"
    pending.unlink(missing_ok=True)
    pending.symlink_to(fresh.name)
    pending.rename(current)
    _link_names(directory, payload)
    if generation:
        shutil.rmtree(directory / f"..version_{generation}", ignore_errors=True)
    return True


def _link_names(directory: Path, payload: Payload) -> None:
    wanted = {path.split("/")[0] for path in payload}
    for name in wanted:
        link = directory / name
        if not link.is_symlink():
            link.symlink_to(f"..data/{name}")
    for entry in directory.iterdir():
        if not entry.name.startswith("..") and entry.name not in wanted:
            with contextlib.suppress(OSError):
                entry.unlink()


def _holds(directory: Path, payload: Payload) -> bool:
    present = {str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file()}
    return present == set(payload) and all(
        (directory / path).read_bytes() == file.content for path, file in payload.items()
    )


def mounts_of(
    mounts: Sequence[VolumeMount], places: Mapping[str, Path], expand: Callable[[str], str]
) -> tuple[Mount, ...]:
    """Where a container sees its volumes; a subPath is made if it is missing, and must stay inside."""
    return tuple(_mount(each, places, expand) for each in mounts)


def _mount(mount: VolumeMount, places: Mapping[str, Path], expand: Callable[[str], str]) -> Mount:
    if mount.name not in places:
        raise ConfigError(f'volume "{mount.name}" is mounted but not declared')
    source = places[mount.name]
    sub_path = expand(mount.sub_path_expr) if mount.sub_path_expr else mount.sub_path
    if sub_path:
        source = _sub_path(source.resolve(), _inside(sub_path))
    target = mount.mount_path if mount.mount_path.startswith("/") else f"/{mount.mount_path}"
    return Mount(source=source, target=target, is_read_only=mount.read_only, is_exact=bool(sub_path))


def _sub_path(volume: Path, sub_path: str) -> Path:
    resolved = (volume / sub_path).resolve()  # before anything is made: a link in the volume may lead anywhere
    if not resolved.is_relative_to(volume):
        raise ConfigError(f'subPath "{sub_path}" leads out of its volume')
    if not resolved.exists():
        try:
            _make_below(volume, resolved.relative_to(volume).parts)
        except NotADirectoryError:
            raise ConfigError(f'subPath "{sub_path}" leads out of its volume, or through a file') from None
    return resolved


def _make_below(directory: Path, parts: Sequence[str]) -> None:
    """Make directories one in the other. NotADirectoryError: a link was put into their way meanwhile, or a file is there."""
    with contextlib.ExitStack() as opened:
        parent = os.open(directory, os.O_PATH | os.O_DIRECTORY)
        opened.callback(os.close, parent)
        for part in parts:
            with contextlib.suppress(FileExistsError):
                os.mkdir(part, dir_fd=parent)
            parent = os.open(part, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=parent)
            opened.callback(os.close, parent)
