"""How the platform logs: one event a line, key=value, to standard error; `--log-level debug` shows every decision.

A detached platform's standard error is `hekla.log` of its data directory, which `bound_log` keeps from filling the disk.
"""

import contextlib
import io
import logging
import os
import sys
from pathlib import Path
from typing import TextIO, cast

import structlog

from hekla.edge.log_files import LOOK_BYTES, begin_anew, is_too_large

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


def configure_logging(level: str) -> None:
    """Set up structlog for this process; the library's own default would paint colours into a file."""
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.LogfmtRenderer(key_order=["timestamp", "level", "event"], bool_as_flag=False),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
        logger_factory=structlog.WriteLoggerFactory(file=cast(TextIO, _StandardError())),
        cache_logger_on_first_use=True,
    )


def bound_log(path: Path) -> None:
    """From now on standard output and error, which go to this file, go to a new one whenever it has grown too large."""
    _BOUNDED.append(path)


_BOUNDED: list[Path] = []
"""The log file of this process; empty: its standard error is somebody else's, who keeps it as they like."""


class _StandardError(io.TextIOBase):
    """Whatever is standard error at the moment: one that was kept may have been closed since.

    A line that cannot be written, as the disk is full or the reader has gone, is lost: whoever tells of something must not die of it.
    """

    def __init__(self) -> None:
        self._lost = 0
        self._unseen = 0
        """Characters since the last look at the file's size."""

    def write(self, text: str) -> int:
        # it begins a line: of the last that was lost a part may have been written
        lost = f'\nlevel=warning event="log lines were lost: they could not be written" lines={self._lost}\n'
        try:
            sys.stderr.write(lost + text if self._lost else text)
        except (OSError, ValueError):
            self._lost += 1
        else:
            self._lost = 0
            self._unseen += len(text)
            if self._unseen >= LOOK_BYTES and _BOUNDED:
                self._unseen = 0
                _look_at(_BOUNDED[-1])
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.flush()


def _look_at(path: Path) -> None:
    """Put the log aside if it is too large. Programs that were started before go on in the old one, as long as it is kept."""
    try:
        if is_too_large(sys.stderr.fileno()):
            sys.stderr.flush()
            fresh = begin_anew(path, sys.stderr.fileno())
            for standard in (1, 2):
                os.dup2(fresh, standard)
            os.close(fresh)
    except (OSError, ValueError):  # it goes on as it is, and the next look may do better
        return
