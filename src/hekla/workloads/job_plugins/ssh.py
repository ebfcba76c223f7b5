"""Lets the pods of a job reach one another by ssh without a password: one key pair for the job, and a name for each pod.

A Secret called `<job>-ssh` holds the pair, which is its own authorized key, and the client's configuration. The pair is
made when the Secret is, outside the reconciler, which may not throw dice. Volcano logs in with RSA-2048, so do we.
"""

import base64
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from hekla.api.core import Secret
from hekla.api.meta import Document
from hekla.api.volcano import Job
from hekla.api.volcano.batch import TaskSpec
from hekla.workloads.job_plugins.plugin import Owned, containers, host_names

ROOTS_PATH = "/root/.ssh"
PRIVATE, PUBLIC, AUTHORIZED, CONFIG = "id_rsa", "id_rsa.pub", "authorized_keys", "config"
SUB_PATH = ".ssh"
OWNERS_MODE, EVERYBODYS_MODE = 0o600, 0o644
"""ssh refuses keys that others may read; where the path is not root's, the user is unknown and must be able to."""


@dataclass(frozen=True, kw_only=True)
class Ssh:
    """Keys and configuration in every container."""

    name: ClassVar[str] = "ssh"

    ssh_key_file_path: str = ROOTS_PATH
    """Where the files are mounted."""

    ssh_private_key: str = ""
    """A private key in place of a new one."""

    ssh_public_key: str = ""
    """The public half of `ssh_private_key`; made of it if absent. (Volcano leaves it empty then, and nobody may log in.)"""

    ssh_port: int = 22
    """Where the pods' ssh servers listen."""

    def objects(self, job: Job) -> Iterator[Owned]:
        """The Secret; its configuration follows the job when it is scaled."""
        data = {CONFIG: _encoded(self.config(job))}
        filled_by = None if self.ssh_public_key else with_public_half
        if self.ssh_private_key:
            data |= _key_files(self.ssh_private_key, self.ssh_public_key)
        else:
            filled_by = with_new_keys
        document: Document = {"metadata": {"name": _secret(job)}, "type": "Opaque", "data": data}
        yield Owned(Secret, document, filled_by)

    def decorate(self, pod: Document, job: Job, task: TaskSpec, index: int) -> None:
        """Mount the Secret in all containers."""
        mode = OWNERS_MODE if self.ssh_key_file_path == ROOTS_PATH else EVERYBODYS_MODE
        name = _secret(job)
        items = [{"key": key, "path": f"{SUB_PATH}/{key}"} for key in (PRIVATE, PUBLIC, AUTHORIZED, CONFIG)]
        secret = {"secretName": name, "items": items, "defaultMode": mode}
        pod["spec"].setdefault("volumes", []).append({"name": name, "secret": secret})
        mount = {"name": name, "mountPath": self.ssh_key_file_path, "subPath": SUB_PATH}
        for container in containers(pod):
            container.setdefault("volumeMounts", []).append(dict(mount))

    def config(self, job: Job) -> str:
        """The client's configuration: the pods of the job by their short names."""
        lines = ["StrictHostKeyChecking no", "UserKnownHostsFile /dev/null"]
        for task in job.spec.tasks:
            for host in host_names(job, task):
                lines += [f"Host {host.partition('.')[0]}", f"  HostName {host}", f"  Port {self.ssh_port}"]
        return "\n".join(lines) + "\n"


def with_new_keys(document: Document) -> Document:
    """The Secret with a new key pair."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    files = _key_files(private.decode(), public.decode() + "\n")
    return {**document, "data": {**document["data"], **files}}


def with_public_half(document: Document) -> Document:
    """The Secret with the public half of the private key that it holds; as it is if that cannot be read."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization

    private = base64.b64decode(document["data"][PRIVATE])
    is_openssh = b"OPENSSH PRIVATE KEY" in private
    load = serialization.load_ssh_private_key if is_openssh else serialization.load_pem_private_key
    try:
        key = load(private, None).public_key()
        public = key.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        return document
    files = _key_files(private.decode(), public.decode() + "\n")
    return {**document, "data": {**document["data"], **files}}


def _key_files(private: str, public: str) -> dict[str, str]:
    return {PRIVATE: _encoded(private), PUBLIC: _encoded(public), AUTHORIZED: _encoded(public)}


def _secret(job: Job) -> str:
    return f"{job.metadata.name}-ssh"


def _encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()
