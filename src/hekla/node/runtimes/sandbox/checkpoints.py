"""Where a node keeps what sandboxes were: archives, sealed with a key, each with what is known of it. A directory; several nodes may share one.

A checkpoint is written beside its place and moved there whole. It is read only after its hash and its seal were found right, so that one
that somebody changed, cut, or gave another owner is refused before anything of it is unpacked.
"""

import contextlib
import hashlib
import hmac
import os
import re
import secrets
import time
from pathlib import Path

import msgspec

from hekla.api.agents.node_contract import Checkpoint, CheckpointKind
from hekla.node.runtimes.sandbox import SandboxError

_ID = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}", re.ASCII)
_PIECE = 1 << 20
MOST_BYTES = 16 * 1024**3


class CheckpointStore:
    """One directory of checkpoints."""

    def __init__(self, directory: Path, key: bytes = b"") -> None:
        """`key` seals; without one the directory gets its own, in a file that only we may read."""
        self._directory, self._key = directory, key

    def begin(self, checkpoint: str) -> int:
        """An empty file to write an archive into; SandboxError 409 if there is such a checkpoint."""
        self._place(checkpoint)
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        if self._told(checkpoint).exists():
            raise SandboxError(409, f'checkpoint "{checkpoint}" exists; checkpoints are never written over')
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        return os.open(self._directory / f".{checkpoint}.part", flags, 0o600)

    def finish(
        self, checkpoint: str, descriptor: int, *, kind: CheckpointKind, owner: str, pod_uid: str, left_out: list[str]
    ) -> Checkpoint:
        """What was written is the checkpoint from now on."""
        size, digest = _measure(descriptor)
        made = Checkpoint(
            checkpoint=checkpoint, kind=kind, size_bytes=size, sha256=digest, owner=owner, created_at=time.time(),
            pod_uid=pod_uid, left_out=left_out[:100],
        )  # fmt: skip
        os.fsync(descriptor)
        os.replace(self._directory / f".{checkpoint}.part", self._place(checkpoint))
        body = msgspec.json.encode(made)
        part = self._directory / f".{checkpoint}.told"
        part.write_bytes(self._seal(body).encode() + b"\n" + body)
        os.replace(part, self._told(checkpoint))
        return made

    def drop_part(self, checkpoint: str) -> None:
        """It did not come to an end."""
        with contextlib.suppress(FileNotFoundError):
            (self._directory / f".{checkpoint}.part").unlink()

    def find(self, checkpoint: str) -> Checkpoint:
        """What is known of it; SandboxError 404, or 422 if it was tampered with."""
        self._place(checkpoint)
        try:
            seal, _, body = self._told(checkpoint).read_bytes().partition(b"\n")
        except FileNotFoundError:
            raise SandboxError(404, f'there is no checkpoint "{checkpoint}"') from None
        if not hmac.compare_digest(seal.decode("ascii", "replace"), self._seal(body)):
            raise SandboxError(422, f'checkpoint "{checkpoint}" is not as it was written; it is not used')
        return msgspec.json.decode(body, type=Checkpoint)

    def open(self, checkpoint: str, owner: str) -> tuple[Checkpoint, int]:
        """Its archive, checked whole; another owner's is as good as none."""
        known = self.find(checkpoint)
        if known.owner and known.owner != owner:
            raise SandboxError(404, f'there is no checkpoint "{checkpoint}"')
        try:
            descriptor = os.open(self._place(checkpoint), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            raise SandboxError(404, f'the archive of checkpoint "{checkpoint}" is gone') from None
        if _measure(descriptor) != (known.size_bytes, known.sha256):
            os.close(descriptor)
            raise SandboxError(
                422, f'the archive of checkpoint "{checkpoint}" is not as it was written; it is not used'
            )
        os.lseek(descriptor, 0, os.SEEK_SET)
        return known, descriptor

    def remove(self, checkpoint: str) -> None:
        """Forget it; one that is not there is no error."""
        for path in (self._told(checkpoint), self._place(checkpoint)):
            with contextlib.suppress(FileNotFoundError):
                path.unlink()

    def _place(self, checkpoint: str) -> Path:
        if not _ID.fullmatch(checkpoint):
            raise SandboxError(422, f'"{checkpoint[:60]}" is no id of a checkpoint: 1 to 128 of a-z A-Z 0-9 . _ -')
        return self._directory / f"{checkpoint}.archive"

    def _told(self, checkpoint: str) -> Path:
        self._place(checkpoint)
        return self._directory / f"{checkpoint}.json"

    def _seal(self, body: bytes) -> str:
        return hmac.new(self._own_key(), body, hashlib.sha256).hexdigest()

    def _own_key(self) -> bytes:
        path = self._directory / "seal.key"
        if not self._key:
            with contextlib.suppress(FileExistsError):
                descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
                os.write(descriptor, secrets.token_bytes(32))
                os.close(descriptor)
            self._key = path.read_bytes()
        return self._key


def _measure(descriptor: int) -> tuple[int, str]:
    digest, size = hashlib.sha256(), 0
    while piece := os.pread(descriptor, _PIECE, size):
        digest.update(piece)
        size += len(piece)
        if size > MOST_BYTES:
            raise SandboxError(413, f"a checkpoint of more than {MOST_BYTES} bytes is not kept")
    return size, digest.hexdigest()
