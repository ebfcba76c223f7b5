"""How many connections a door takes."""

import resource

import pytest

from hekla.sandbox.gateway.bounds import Bounds as GatewayBounds
from hekla.serving.router.proxy.bounds import Bounds as RouterBounds
from hekla.wire.limits import Limits, is_flood


@pytest.mark.parametrize(
    ("files", "quarter", "half"),
    [
        (1024, 256, 512),
        (2, 1, 1),
        (10_922, 2730, 5461),
        (20_000, 11_808, 11_808),
        (1_000_000, 20_000, 20_000),
        (resource.RLIM_INFINITY, 20_000, 20_000),
    ],
)
def test_strangers_at_one_door_leave_files_to_the_others(monkeypatch, files, quarter, half):
    """A thousand idle connections at one door took the others away from everybody, where a process may have 1,024 files open."""
    monkeypatch.setattr(resource, "getrlimit", lambda _which: (files, resource.RLIM_INFINITY))
    assert [one().connections for one in (Limits, GatewayBounds, RouterBounds)] == [quarter, quarter, half]


def test_who_is_one_too_many_is_told_and_a_flood_is_not():
    assert [is_flood(number, 256) for number in (257, 304, 305)] == [False, False, True]
