import asyncio

import pytest
import uvloop


@pytest.fixture(autouse=True, params=["asyncio", "uvloop"])
def event_loop_kind(request, monkeypatch):
    """Each test of the wire runs on both event loops: `asyncio.run` asks here for one. Policies, which did so before, are on their way out."""
    if request.param == "uvloop":
        for place in (asyncio, asyncio.events):
            monkeypatch.setattr(place, "new_event_loop", uvloop.new_event_loop)
