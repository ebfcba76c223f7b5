import asyncio

import pytest
import uvloop


@pytest.fixture(autouse=True, params=["asyncio", "uvloop"])
def event_loop_kind(request):
    """Each test of the wire runs on both event loops."""
    if request.param == "uvloop":
        asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    yield
    asyncio.set_event_loop_policy(None)
