import json
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from hekla.serving.downloader import DownloadError, configuration, download, locked, main

FILES = {"config.json": b"{}", "weights/model.safetensors": b"w" * 5000}


class Hub(BaseHTTPRequestHandler):
    asked: list[tuple[str, str]]
    files = FILES
    lies = False

    def do_GET(self) -> None:
        self.asked.append((self.path, self.headers.get("Authorization", "")))
        if self.path == "/api/models/own/m/revision/main?blobs=true":
            size = 9 if self.lies else None
            listed = [{"rfilename": name, "size": size or len(body)} for name, body in self.files.items()]
            return self._send(json.dumps({"siblings": listed}).encode())
        if self.path.startswith("/api/v1/models/own/m/repo/files?"):
            listed = [{"Path": name, "Size": len(body), "Type": "blob"} for name, body in self.files.items()]
            return self._send(json.dumps({"Data": {"Files": [*listed, {"Path": "weights", "Type": "tree"}]}}).encode())
        for name, body in self.files.items():
            if self.path in (
                f"/own/m/resolve/main/{name}",
                f"/api/v1/models/own/m/repo?Revision=master&FilePath={name.replace('/', '%2F')}",
            ):
                return self._send(body)
        self.send_error(404)
        return None

    def _send(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def hub() -> Iterator[tuple[str, type[Hub]]]:
    handler = type("OneHub", (Hub,), {"asked": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", handler
    server.shutdown()
    thread.join()
    server.server_close()


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("source", "key"), [("hf://own/m", "hf_endpoint"), ("own/m", "hf_endpoint"), ("ms://own/m", "ms_endpoint")]
)
def test_a_model_is_fetched_once(hub: tuple[str, type[Hub]], tmp_path: Path, source: str, key: str) -> None:
    url, handler = hub
    told = {key: url, "hf_token": "secret", "ms_token": "secret"}
    download(source, tmp_path / "m", told)
    assert files_of(tmp_path / "m") == FILES
    assert {token for _, token in handler.asked} == {"Bearer secret"}
    first = len(handler.asked)
    download(source, tmp_path / "m", told)
    assert len(handler.asked) == first + 1  # only what there is was asked for


def test_a_file_that_is_not_whole_never_has_its_name(hub: tuple[str, type[Hub]], tmp_path: Path) -> None:
    url, handler = hub
    handler.lies = True
    with pytest.raises(DownloadError, match="instead of 9"):
        download("hf://own/m", tmp_path / "m", {"hf_endpoint": url})
    assert not (tmp_path / "m" / "weights" / "model.safetensors").exists()
    assert not (tmp_path / "m" / ".lock").exists()


def test_a_file_outside_is_refused(hub: tuple[str, type[Hub]], tmp_path: Path) -> None:
    url, handler = hub
    handler.files = {"../outside": b"x"}
    with pytest.raises(DownloadError, match="would lie outside"):
        download("hf://own/m", tmp_path / "m", {"hf_endpoint": url})
    assert not (tmp_path / "outside").exists()


@pytest.mark.parametrize(
    ("source", "told", "sentence"),
    [
        ("ftp://a/b", {}, "ftp:// is not known"),
        ("hf://own/m", {"hf_endpoint": "http://127.0.0.1:1"}, "does not answer"),
        ("hf://own/m", {"hf_endpoint": "file:///etc"}, "is no URL of a server"),
        ("pvc://nowhere/at/all", {}, "is no directory here"),
    ],
)
def test_what_cannot_be_fetched_is_told(tmp_path: Path, source: str, told: dict[str, str], sentence: str) -> None:
    with pytest.raises(DownloadError, match=sentence):
        download(source, tmp_path / "m", told)


def test_an_unknown_model_is_told(hub: tuple[str, type[Hub]], tmp_path: Path) -> None:
    with pytest.raises(DownloadError, match="answers 404"):
        download("hf://own/other", tmp_path / "m", {"hf_endpoint": hub[0]})


def test_a_claim_is_copied_or_is_the_target(tmp_path: Path) -> None:
    source = tmp_path / "claim" / "m"
    (source / "sub").mkdir(parents=True)
    (source / "sub" / "w").write_bytes(b"1")
    download(f"pvc://{source}", tmp_path / "cache", {})
    assert files_of(tmp_path / "cache") == {"sub/w": b"1"}
    download(f"pvc://{source}", source, {})
    assert files_of(source) == {"sub/w": b"1"}


def test_buckets_are_synchronized_by_aws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    aws = tmp_path / "aws"
    aws.write_text('#!/bin/sh\necho "$@" $AWS_ACCESS_KEY_ID $AWS_ENDPOINT_URL > "$4/said"\ntest "$3" != s3://bad/m\n')
    aws.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    download("obs://bucket/m", tmp_path / "m", {"access_key": "me", "endpoint": "https://obs"})
    said = (tmp_path / "m" / "said").read_text()
    assert said == f"s3 sync s3://bucket/m {tmp_path / 'm'} me https://obs\n"
    with pytest.raises(DownloadError, match="ended with 1"):
        download("s3://bad/m", tmp_path / "m", {})


def test_a_place_without_files_is_no_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "aws").write_text("#!/bin/sh\n")  # how `aws s3 sync` takes a prefix that is not there
    (tmp_path / "aws").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    for source in ("s3://bucket/gone", f"pvc://{tmp_path}/m"):
        with pytest.raises(DownloadError, match="it has no files, or may not be seen"):
            download(source, tmp_path / "m", {})


def test_one_fetches_while_others_wait(tmp_path: Path) -> None:
    lock, order, entered = tmp_path / ".lock", [], threading.Event()

    def second() -> None:
        entered.set()
        with locked(lock, renewed_every_s=0.01):
            order.append("second")

    thread = threading.Thread(target=second)
    with locked(lock, renewed_every_s=0.01):
        thread.start()
        assert entered.wait(30)
        order.append("first")
    thread.join(30)
    assert order == ["first", "second"]
    assert not lock.exists()


def test_a_lock_that_nobody_renews_is_taken_over(tmp_path: Path) -> None:
    lock = tmp_path / ".lock"
    lock.touch()
    os.utime(lock, (1, 1))
    with locked(lock, renewed_every_s=0.01):
        assert lock.stat().st_mtime > 1


def test_what_is_told_goes_before_the_environment() -> None:
    environment = {"HF_ENDPOINT": "https://mirror", "ACCESS_KEY": "me", "OTHER": "x"}
    assert configuration('{"hf_endpoint": "https://own"}', environment) == {
        "hf_endpoint": "https://own",
        "access_key": "me",
    }
    for text in ("{", "[]"):
        with pytest.raises(DownloadError):
            configuration(text, {})


def test_the_command_says_why_and_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--source", "ftp://x", "--output-dir", str(tmp_path)]) == 1
    assert "ftp://x cannot be fetched: ftp:// is not known" in capsys.readouterr().err
