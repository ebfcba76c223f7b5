"""Removes the directory of a provisioned volume when its PersistentVolume is gone. `provisioning.py` decides the rest."""

import asyncio
import shutil
from pathlib import Path

from hekla.api.storage import PersistentVolume
from hekla.kube.informer import Informers
from hekla.node.provisioning import PROVISIONED_BY, PROVISIONER


class VolumeDirectories:
    """Watches volumes; only directories below its own are ever touched."""

    def __init__(self, informers: Informers, directory: Path) -> None:
        self._volumes = informers.of(PersistentVolume)
        self._directory = directory
        self._tasks: set[asyncio.Future[None]] = set()
        self._is_following = False

    async def start(self) -> None:
        """Sweep what was left by an earlier life, then follow."""
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        await self._volumes.synced()
        kept = {each.metadata.name for each in self._volumes.cache}
        for path in self._directory.iterdir():
            if path.name.startswith("pvc-") and path.name not in kept:
                self._remove(path)
        self._volumes.add_handler(self._changed)
        self._is_following = True

    async def close(self) -> None:
        """Wait for removals under way."""
        if self._is_following:
            self._volumes.remove_handler(self._changed)
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _changed(self, old: PersistentVolume | None, new: PersistentVolume | None) -> None:
        if new is None and old is not None and old.metadata.annotations.get(PROVISIONED_BY) == PROVISIONER:
            name = old.metadata.name
            if name.startswith("pvc-") and "/" not in name:
                self._remove(self._directory / name)

    def _remove(self, path: Path) -> None:
        task = asyncio.ensure_future(asyncio.to_thread(shutil.rmtree, path, ignore_errors=True))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
