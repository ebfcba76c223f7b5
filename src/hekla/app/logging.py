"""How the platform logs: one event a line, key=value, to standard error; `--log-level debug` shows every decision."""

import contextlib
import io
import logging
import sys
from typing import TextIO, cast

import structlog

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


class _StandardError(io.TextIOBase):
    """Whatever is standard error at the moment: one that was kept may have been closed since.

    A line that cannot be written, as the disk is full or the reader has gone, is lost: whoever tells of something must not die of it.
    """

    def __init__(self) -> None:
        self._lost = 0

    def write(self, text: str) -> int:
        # it begins a line: of the last that was lost a part may have been written
        lost = f'\nlevel=warning event="log lines were lost: they could not be written" lines={self._lost}\n'
        try:
            sys.stderr.write(lost + text if self._lost else text)
        except (OSError, ValueError):
            self._lost += 1
        else:
            self._lost = 0
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.flush()
