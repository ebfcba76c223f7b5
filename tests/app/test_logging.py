import io
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
