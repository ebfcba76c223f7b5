"""Suites that speak HTTP to a router are run twice: as it is without the fast lane, and with it."""

import functools

import pytest

from serving.router import lanekit
from serving.router import proxykit as kit

compiled = functools.cache(lanekit.compiled)


@pytest.fixture(params=[False, True], ids=["plain", "laned"])
def lane(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether connections of clients begin in the fast lane; skipped where it cannot be had."""
    monkeypatch.setattr(kit, "KERNEL", compiled() if request.param else None)
    return bool(request.param)
