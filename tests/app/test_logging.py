import errno
import io
import subprocess
import sys

import pytest
import structlog

from hekla.app.logging import configure_logging


@pytest.fixture(autouse=True)
def _as_before():
    before = structlog.get_config()
    yield
    structlog.configure(**before)


def test_a_log_outlives_the_standard_error_it_began_with(monkeypatch):
    first, second = io.StringIO(), io.StringIO()
    monkeypatch.setattr(sys, "stderr", first)
    configure_logging("info")
    log = structlog.get_logger()
    log.info("one", a=1)
    first_said = first.getvalue()
    first.close()
    monkeypatch.setattr(sys, "stderr", second)
    log.info("two")
    log.debug("unheard")
    assert "event=one a=1" in first_said
    assert "event=two" in second.getvalue()
    assert "unheard" not in second.getvalue()


def test_a_line_that_cannot_be_written_is_counted_and_nobody_dies_of_it(monkeypatch):
    """A platform whose disk was full died of telling so."""

    class Full(io.StringIO):
        is_full = True

        def write(self, text):
            if self.is_full:
                raise OSError(errno.ENOSPC, "No space left on device")
            return super().write(text)

        def flush(self):
            self.write("")

    full = Full()
    monkeypatch.setattr(sys, "stderr", full)
    configure_logging("info")
    log = structlog.get_logger()
    for number in range(3):
        log.info("unheard", number=number)
    full.is_full = False
    log.info("heard")
    log.info("and again")
    told = full.getvalue().splitlines()
    assert [line.split("event=")[1] for line in told if line] == [
        '"log lines were lost: they could not be written" lines=3', "heard", '"and again"',
    ]  # fmt: skip
    gone = io.StringIO()
    gone.close()
    monkeypatch.setattr(sys, "stderr", gone)
    log.info("to nobody")


def test_what_was_written_of_a_line_stands_apart_from_what_is_told_of_its_loss(monkeypatch):
    """The disk was full in the middle of a line, and the warning went on where that was torn."""

    class Torn(io.StringIO):
        is_full = True

        def write(self, text):
            if not self.is_full:
                return super().write(text)
            super().write(text[:5])
            raise OSError(errno.ENOSPC, "No space left on device")

    torn = Torn()
    monkeypatch.setattr(sys, "stderr", torn)
    configure_logging("info")
    structlog.get_logger().info("unheard")
    torn.is_full = False
    structlog.get_logger().info("heard")
    assert torn.getvalue()[5:].startswith("\nlevel=warning event=")


BOUNDED = """
import os, subprocess, sys
from pathlib import Path
import structlog
from hekla.app import logging
logging.LOOK_BYTES = 1000
logging.is_too_large = lambda descriptor: os.fstat(descriptor).st_size >= 10_000
logging.configure_logging("info")
logging.bound_log(Path(sys.argv[1]))
log = structlog.get_logger()
for number in range(1200):
    log.info("request", number=number)
print("the last of standard output", flush=True)
subprocess.run(["sh", "-c", "echo a program started late >&2"])
"""


def test_the_log_of_a_detached_platform_is_put_aside_when_it_is_too_large(tmp_path):
    """It grew without end, and every request of an agent is a line in it."""
    path = tmp_path / "hekla.log"
    with path.open("ab") as output:
        subprocess.run([sys.executable, "-c", BOUNDED, path], stdout=output, stderr=output, check=True)
    files = [tmp_path / f"hekla.log.{number}" for number in (3, 2, 1)]
    assert sorted(tmp_path.iterdir()) == sorted([path, *files])
    told = "".join(file.read_text() for file in [*files, path])
    numbers = [int(line.rpartition("=")[2]) for line in told.splitlines() if "event=request" in line]
    assert numbers == list(range(numbers[0], 1200)), "what is kept has no gap"
    assert path.read_text().endswith("the last of standard output\na program started late\n")
