"""Fetches a model into a directory, before an engine starts: `python3 -m hekla.serving.downloader --source URI --output-dir DIR`.

    hf://owner/name      from Hugging Face, or HF_ENDPOINT, file by file; what is there whole already is not fetched again
    ms://owner/name      from ModelScope, likewise
    s3:// and obs://     by `aws s3 sync`
    pvc://claim/path     nothing to fetch where it is the target itself, else a copy

Several pods may share a cache: one fetches, the others wait for its lock and find everything there. A lock that was not
renewed for 15 seconds belongs to a pod that is gone. Arguments, variables and the lock are those of Kthena's downloader.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import time
from typing import Any
from urllib.parse import quote, urlencode

LOCK = ".lock"
STALE_S, RENEWED_EVERY_S = 15.0, 5.0
PIECE = 1 << 20
TIMEOUT_S = 60.0
VARIABLES = {
    "hf_token": "HF_AUTH_TOKEN", "hf_endpoint": "HF_ENDPOINT", "hf_revision": "HF_REVISION", "ms_token": "MS_TOKEN",
    "ms_endpoint": "MS_ENDPOINT", "ms_revision": "MS_REVISION", "access_key": "ACCESS_KEY", "secret_key": "SECRET_KEY",
    "endpoint": "ENDPOINT",
}  # fmt: skip


class DownloadError(Exception):
    """A model that cannot be fetched; the sentence says why."""


@dataclass(frozen=True)
class Wanted:
    """One file to fetch."""

    path: str
    url: str
    size: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


def main(arguments: Sequence[str] | None = None) -> int:
    """Fetch what the command line names; the exit code."""
    told = _parser().parse_args(arguments)
    target = Path(told.output_dir).expanduser().resolve()
    try:
        download(told.source, target, configuration(told.config, os.environ), workers=told.max_workers)
    except DownloadError as error:
        print(f"{told.source} cannot be fetched: {error}", file=sys.stderr, flush=True)  # noqa: T201 - it is a command
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="hekla.serving.downloader", description="Fetch a model into a directory.")
    parser.add_argument("-s", "--source", required=True, help="hf://, ms://, s3://, obs:// or pvc://")
    parser.add_argument("-o", "--output-dir", default="~/downloads", help="where files are put")
    parser.add_argument("-w", "--max-workers", type=int, default=8, help="how many files are fetched at a time")
    parser.add_argument("-c", "--config", default="", help="what the environment would say, as JSON")
    return parser


def configuration(text: str, environment: Mapping[str, str]) -> dict[str, str]:
    """What was told as JSON, completed from the environment; raises DownloadError."""
    try:
        told = json.loads(text) if text else {}
    except ValueError as error:
        raise DownloadError(f"--config is no JSON ({error})") from None
    if not isinstance(told, dict):
        raise DownloadError("--config is no JSON object")
    from_environment = {key: environment[name] for key, name in VARIABLES.items() if environment.get(name)}
    return {**from_environment, **{key: str(value) for key, value in told.items() if value}}


def download(source: str, target: Path, told: Mapping[str, str], *, workers: int = 8) -> None:
    """Fetch a model, or wait until another has; raises DownloadError."""
    scheme, separator, rest = source.partition("://")
    if not separator:
        scheme, rest = "hf", source  # as Kthena has it
    fetch = FETCHERS.get(scheme)
    if fetch is None:
        raise DownloadError(f"{scheme}:// is not known; use {', '.join(f'{one}://' for one in FETCHERS)}")
    target.mkdir(parents=True, exist_ok=True)
    with locked(target / LOCK):
        fetch(rest.strip("/"), target, told, max(1, workers))
        # for `aws s3 sync` a prefix that is not there is no error, and a claim's directory was just made
        if not any(one.is_file() and one.name != LOCK for one in target.rglob("*")):
            raise DownloadError("it has no files, or may not be seen")


# ---- one at a time


@contextmanager
def locked(path: Path, *, stale_s: float = STALE_S, renewed_every_s: float = RENEWED_EVERY_S) -> Iterator[None]:
    """Hold a lock file, renewed while it is held; wait while somebody else holds it."""
    ended = threading.Event()
    while not _take(path, stale_s):
        ended.wait(min(1.0, renewed_every_s))
    keeper = threading.Thread(target=_renew, args=(path, ended, renewed_every_s), daemon=True)
    keeper.start()
    try:
        yield
    finally:
        ended.set()
        keeper.join()
        path.unlink(missing_ok=True)


def _take(path: Path, stale_s: float) -> bool:
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except FileExistsError:
        try:
            if time() - path.stat().st_mtime > stale_s:
                path.unlink(missing_ok=True)  # whoever held it is gone; the next try is a race that one of us wins
        except FileNotFoundError:
            pass
        return False
    return True


def _renew(path: Path, ended: threading.Event, every_s: float) -> None:
    while not ended.wait(every_s):
        if path.exists():
            os.utime(path)


# ---- from where


def _from_hugging_face(name: str, target: Path, told: Mapping[str, str], workers: int) -> None:
    base = told.get("hf_endpoint", "https://huggingface.co").rstrip("/")
    revision = quote(told.get("hf_revision", "main"), safe="")
    headers = {"Authorization": f"Bearer {told['hf_token']}"} if told.get("hf_token") else {}
    listed = _json(f"{base}/api/models/{name}/revision/{revision}?blobs=true", headers)
    files = [
        Wanted(
            one["rfilename"], f"{base}/{name}/resolve/{revision}/{quote(one['rfilename'])}", one.get("size"), headers
        )
        for one in listed.get("siblings") or ()
    ]
    _fetch_all(name, files, target, workers)


def _from_model_scope(name: str, target: Path, told: Mapping[str, str], workers: int) -> None:
    base = f"{told.get('ms_endpoint', 'https://www.modelscope.cn').rstrip('/')}/api/v1/models/{name}/repo"
    revision = told.get("ms_revision", "master")
    headers = {"Authorization": f"Bearer {told['ms_token']}"} if told.get("ms_token") else {}
    listed = _json(f"{base}/files?{urlencode({'Revision': revision, 'Recursive': 'true'})}", headers)
    files = [
        Wanted(
            one["Path"],
            f"{base}?{urlencode({'Revision': revision, 'FilePath': one['Path']})}",
            one.get("Size"),
            headers,
        )
        for one in (listed.get("Data") or {}).get("Files") or ()
        if one.get("Type") != "tree"
    ]
    _fetch_all(name, files, target, workers)


def _from_bucket(place: str, target: Path, told: Mapping[str, str], _: int) -> None:
    environment = dict(os.environ)
    for key, name in (
        ("access_key", "AWS_ACCESS_KEY_ID"),
        ("secret_key", "AWS_SECRET_ACCESS_KEY"),
        ("endpoint", "AWS_ENDPOINT_URL"),
    ):
        if told.get(key):
            environment[name] = told[key]
    try:
        done = subprocess.run(["aws", "s3", "sync", f"s3://{place}", str(target)], env=environment, check=False)
    except FileNotFoundError:
        raise DownloadError("aws is not installed; s3:// and obs:// need the AWS command line") from None
    if done.returncode != 0:
        raise DownloadError(f"aws s3 sync ended with {done.returncode}")


def _from_claim(place: str, target: Path, _: Mapping[str, str], __: int) -> None:
    source = Path(f"/{place}").resolve()
    if source == target.resolve():
        return
    if not source.is_dir():
        raise DownloadError(
            f"{source} is no directory here; pods see only the claim of cacheURI, so write modelURI as "
            "pvc://<that claim>/<path>"
        )
    for path in sorted(source.rglob("*")):
        _copy(path, target / path.relative_to(source))


FETCHERS: Mapping[str, Callable[[str, Path, Mapping[str, str], int], None]] = {
    "hf": _from_hugging_face, "ms": _from_model_scope, "s3": _from_bucket, "obs": _from_bucket, "pvc": _from_claim,
}  # fmt: skip


def _copy(source: Path, target: Path) -> None:
    if source.is_dir():
        target.mkdir(parents=True, exist_ok=True)
    elif not target.exists() or target.stat().st_size != source.stat().st_size:
        shutil.copy2(source, target)


def _fetch_all(name: str, files: Sequence[Wanted], target: Path, workers: int) -> None:
    if not files:
        raise DownloadError(f"{name} has no files, or may not be seen")
    for one in files:
        if not (target / one.path).resolve().is_relative_to(target.resolve()):
            raise DownloadError(f"file {one.path!r} would lie outside {target}")
    with ThreadPoolExecutor(max_workers=workers) as pool:
        list(pool.map(lambda one: _fetch(one, target / one.path), files))


def _fetch(wanted: Wanted, path: Path) -> None:
    """Into a file beside, which takes the name when it is whole: an engine never sees half a file."""
    if path.is_file() and (wanted.size is None or path.stat().st_size == wanted.size):
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.part")
    with _opened(wanted.url, wanted.headers) as answer, partial.open("wb") as file:
        while piece := answer.read(PIECE):
            file.write(piece)
    if wanted.size is not None and partial.stat().st_size != wanted.size:
        raise DownloadError(f"{wanted.path} has {partial.stat().st_size} bytes instead of {wanted.size}")
    partial.replace(path)


def _json(url: str, headers: Mapping[str, str]) -> dict[str, Any]:
    with _opened(url, headers) as answer:
        try:
            found = json.load(answer)
        except ValueError:
            raise DownloadError(f"{url} answers no JSON") from None
    return found if isinstance(found, dict) else {}


def _opened(url: str, headers: Mapping[str, str]) -> Any:
    if not url.startswith(("http://", "https://")):
        raise DownloadError(f"{url} is no URL of a server")
    try:
        return urllib.request.urlopen(urllib.request.Request(url, headers=dict(headers)), timeout=TIMEOUT_S)
    except urllib.error.HTTPError as error:
        raise DownloadError(f"{url} answers {error.code} {error.reason}") from None
    except OSError as error:
        raise DownloadError(f"{url} does not answer ({error})") from None


if __name__ == "__main__":
    sys.exit(main())
