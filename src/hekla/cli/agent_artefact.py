"""An agent as one file: a directory with a program, and what the platform must know of it, packed so that equal input gives equal bytes.

    agent_metadata.yaml     name, language, entry point, port ... as AgentCube's `kubectl agentcube pack` writes them
    agent/...               the directory

`agent_packing.py` has the commands, `agent_objects.py` what an artefact becomes on a platform.
"""

import difflib
import gzip
import hashlib
import io
import re
import shlex
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from hekla.cli.main import EXIT_USAGE, CommandError
from hekla.lib import plain_yaml

METADATA, INSIDE, PACKAGES = "agent_metadata.yaml", "agent", ".packages"
LANGUAGES = ("python", "java")
MOST_BYTES = 256 * 1024 * 1024
"""Of all files together: more is an image's business."""

LEFT_OUT = frozenset(
    {".git", ".hg", ".venv", "venv", "__pycache__", "node_modules", ".mypy_cache", ".pytest_cache", PACKAGES, METADATA}
)
"""Names of files and directories that are no part of an agent."""

_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,48}[a-z0-9])?")
_VERSION = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ELSEWHERE = frozenset(
    (
        "build_mode", "region", "image", "auth", "registry_url", "registry_username", "registry_password", "agent_endpoint",
        "workload_manager_url", "router_url", "agent_id", "session_id", "k8s_deployment",
    )
)  # fmt: skip
"""Fields of AgentCube's file that tell of its registry and its cluster, and nothing of the agent."""


@dataclass(frozen=True, kw_only=True)
class Agent:
    """What is known of an agent."""

    agent_name: str
    entrypoint: tuple[str, ...]
    language: str = "python"
    port: int = 8080
    version: str = "0.0.1"
    description: str = ""
    requirements_file: str = ""
    """Of pip, in the directory; empty: none."""

    readiness_probe_path: str = ""
    """Answers 200 when the agent is ready; empty: it is when it listens."""

    readiness_probe_port: int = 0
    """Where, if not at `port`."""

    env: Mapping[str, str] = field(default_factory=dict)

    def as_yaml(self) -> str:
        """As it lies in an artefact."""
        told = {name: value for name, value in vars(self).items() if value not in ("", 0, {})}
        told |= {"entrypoint": shlex.join(self.entrypoint), **({"env": dict(self.env)} if self.env else {})}
        text: str = yaml.safe_dump(told, sort_keys=True)
        return text


_FIELDS = tuple(Agent.__dataclass_fields__)


def agent_of(workspace: Path, said: Mapping[str, Any]) -> Agent:
    """The agent in a directory: what its metadata file says, and what was said beside it. Raises CommandError."""
    if not workspace.is_dir():
        raise CommandError(f'workspace "{workspace}" is no directory; name the one with the agent in it', EXIT_USAGE)
    told = {
        **_file(workspace / METADATA),
        **{name: value for name, value in said.items() if value not in ("", 0, None)},
    }
    told.setdefault("agent_name", workspace.resolve().name)
    if "entrypoint" not in told:
        told["entrypoint"] = _default_entry(workspace, f"{told.get('language', 'python')}")
    if "requirements_file" not in told and (workspace / "requirements.txt").is_file():
        told["requirements_file"] = "requirements.txt"
    agent = checked(told, workspace / METADATA)
    for word in (*agent.entrypoint, *([agent.requirements_file] if agent.requirements_file else [])):
        if word.endswith((".py", ".jar", ".sh", ".txt")) and not (workspace / word).is_file():
            raise CommandError(f'workspace "{workspace}" has no file "{word}", which the agent names', EXIT_USAGE)
    return agent


def checked(told: Mapping[str, Any], source: object) -> Agent:
    """The same, of fields; whoever is wrong is named with what would do."""
    for name in told:
        if name not in _FIELDS and name not in _ELSEWHERE:
            near = difflib.get_close_matches(name, _FIELDS, n=1)
            hint = f'; did you mean "{near[0]}"?' if near else f"; there are {', '.join(_FIELDS)}"
            raise CommandError(f'{source}: "{name}" is no field of an agent{hint}', EXIT_USAGE)
    entry = told.get("entrypoint")
    try:
        words = tuple(shlex.split(entry)) if isinstance(entry, str) else tuple(map(str, entry or ()))
    except ValueError as error:
        raise CommandError(f"{source}: entrypoint {entry!r} is no command: {error}", EXIT_USAGE) from None
    for name, is_good, wanted in (
        ("agent_name", _matches(_NAME, told), "up to 50 of a-z, 0-9 and -, and a letter or number at both ends"),
        ("entrypoint", bool(words), "a command such as `python main.py`"),
        ("language", told.get("language", "python") in LANGUAGES, f"one of {', '.join(LANGUAGES)}"),
        ("port", _is_port(told.get("port", 8080)), "a number from 1 to 65535"),
        ("version", _matches(_VERSION, {"version": "0", **told}, "version"), "up to 63 letters, digits, dots and dashes"),
        ("readiness_probe_path", f"{told.get('readiness_probe_path') or '/'}".startswith("/"), "a path such as /health"),
        ("readiness_probe_port", _is_port(told.get("readiness_probe_port") or 1), "a number from 1 to 65535"),
        ("env", _is_environment(told.get("env") or {}), "names with texts, such as {MODE: fast}"),
    ):  # fmt: skip
        if not is_good:
            raise CommandError(f"{source}: {name} is {told.get(name)!r}; it must be {wanted}", EXIT_USAGE)
    known = {name: value for name, value in told.items() if name in _FIELDS and value is not None}
    return Agent(**{**known, "entrypoint": words, "version": f"{told.get('version') or '0.0.1'}"})


def pack(workspace: Path, agent: Agent, packages: Path | None = None) -> bytes:
    """The artefact; `packages` is a directory with what the agent imports."""
    bundle = io.BytesIO()
    with tarfile.open(fileobj=bundle, mode="w", format=tarfile.PAX_FORMAT) as archive:
        _put(archive, METADATA, agent.as_yaml().encode())
        left = MOST_BYTES
        for root, below in (
            (workspace, INSIDE),
            *([(packages, f"{INSIDE}/{PACKAGES}")] if packages is not None else []),
        ):
            for path in _files(root):
                left -= path.stat().st_size
                if left < 0:
                    raise CommandError(
                        f'workspace "{workspace}" has more than {MOST_BYTES >> 20} MiB; leave data out, or build an image'
                    )
                _put(archive, f"{below}/{path.relative_to(root).as_posix()}", path.read_bytes(), path.stat().st_mode)
    return gzip.compress(bundle.getvalue(), mtime=0)


def read(artefact: Path) -> tuple[Agent, bytes]:
    """An artefact's agent, and its bytes. Raises CommandError."""
    try:
        data = artefact.read_bytes()
    except OSError as error:
        raise CommandError(f"{artefact}: {(error.strerror or str(error)).lower()}") from None
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as archive:
            member = archive.extractfile(METADATA)
            told = plain_yaml.load(member.read()) if member is not None else None
    except (tarfile.TarError, EOFError, KeyError, OSError, yaml.YAMLError) as error:
        raise CommandError(f"{artefact} is no packed agent ({error}); make one with `hekla agent pack`") from None
    if not isinstance(told, dict):
        raise CommandError(
            f"{artefact} is no packed agent: its {METADATA} has no fields; make one with `hekla agent pack`"
        )
    return checked(told, artefact), data


def digest(data: bytes) -> str:
    """By which an artefact is known."""
    return hashlib.sha256(data).hexdigest()


def _file(path: Path) -> Mapping[str, Any]:
    if not path.is_file():
        return {}
    try:
        told = plain_yaml.load(path.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise CommandError(f"{path} cannot be read: {error}", EXIT_USAGE) from None
    if not isinstance(told, dict):
        raise CommandError(f"{path} has no fields; write `agent_name: mine` and so on", EXIT_USAGE)
    return {name: value for name, value in told.items() if value is not None}


def _default_entry(workspace: Path, language: str) -> str:
    if language == "python" and (workspace / "main.py").is_file():
        return "python main.py"
    raise CommandError(
        f'nothing says what starts the agent in "{workspace}"; give --entrypoint, or a main.py', EXIT_USAGE
    )


def _files(root: Path) -> Iterator[Path]:
    for path in sorted(root.iterdir()):
        if path.name in LEFT_OUT or path.suffix == ".pyc":
            continue
        if path.is_symlink() and not path.resolve().is_relative_to(root.resolve()):
            raise CommandError(f"{path} leads out of the workspace, to {path.resolve()}; copy what it leads to")
        if path.is_dir():
            yield from _files_below(root, path)
        elif path.is_file():
            yield path
        else:
            raise CommandError(f"{path} is no file that can be packed")


def _files_below(root: Path, directory: Path) -> Iterator[Path]:
    if directory.is_symlink():
        raise CommandError(f"{directory} is a link to a directory; copy what it leads to")
    for path in _files(directory):
        if not path.resolve().is_relative_to(root.resolve()):
            raise CommandError(f"{path} leads out of the workspace, to {path.resolve()}; copy what it leads to")
        yield path


def _put(archive: tarfile.TarFile, name: str, data: bytes, mode: int = 0o644) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(data), 0o755 if mode & 0o100 else 0o644
    archive.addfile(entry, io.BytesIO(data))


def _matches(pattern: re.Pattern[str], told: Mapping[str, Any], name: str = "agent_name") -> bool:
    return isinstance(told.get(name), str | int | float) and pattern.fullmatch(f"{told[name]}") is not None


def _is_port(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value < 65_536


def _is_environment(value: object) -> bool:
    return isinstance(value, dict) and all(
        isinstance(name, str) and _VARIABLE.fullmatch(name) and isinstance(text, str) for name, text in value.items()
    )
