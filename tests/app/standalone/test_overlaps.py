"""Schedulers whose names overlap say so; `test_scheduler_names.py` shows what the names are for."""

import asyncio

import pytest
from structlog.testing import capture_logs

from app.standalone.test_office import office_of
from hekla.api.crd import CUSTOM_KINDS
from hekla.app.standalone.components import run_scheduler
from hekla.app.standalone.overlaps import annotations_of, names_placed
from hekla.testing import virtual_time
from hekla.testing.server import api_server

SAME = "another scheduler places the same pods"


def said_of(first, second, **settings):
    """What two schedulers of these names say, the second started when the first leads."""

    async def main():
        async with api_server(kinds=CUSTOM_KINDS) as server:
            offices = [office_of(server, scheduler_names=names, **settings)[0] for names in (first, second)]
            with capture_logs() as told:
                tasks = []
                for office in offices:
                    tasks.append(asyncio.create_task(run_scheduler(office)))
                    await asyncio.sleep(60)
                for office in offices:
                    office.stopping.set()
                await asyncio.gather(*tasks)
            return told

    return virtual_time.run(main())


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (("volcano", "team-a"), ("team-a",)),
        (("team-a",), ("volcano", "team-a")),
        (("team-a",), ("team-a", "team-b")),
    ],
)
def test_both_say_once_that_they_place_pods_of_the_same_name(first, second):
    said = [one for one in said_of(first, second) if one["event"] == SAME]
    assert [one["scheduler_name"] for one in said] == ["team-a", "team-a"]
    assert len({one["held_by"] for one in said}) == 2
    assert all(one["log_level"] == "warning" and "--scheduler-name" in one["hint"] for one in said)


@pytest.mark.parametrize("second", [("team-b",), ("volcano",)])
def test_schedulers_of_different_names_have_nothing_to_say(second):
    assert not [one for one in said_of(("team-a",), second) if one["event"] == SAME]


def test_who_waits_behind_a_scheduler_of_other_names_says_whose_pods_wait():
    told = said_of(("volcano", "team-a"), ("volcano", "team-b"))
    [waits] = [one for one in told if one["event"] == "waits for the lease"]
    assert waits["log_level"] == "warning"
    assert waits["so"] == "nobody places pods of team-b meanwhile"


def test_a_replica_that_waits_behind_its_like_says_nothing_more():
    [waits] = [
        one for one in said_of(("volcano", "team-a"), ("volcano", "team-a")) if one["event"] == "waits for the lease"
    ]
    assert waits["log_level"] == "info"
    assert "so" not in waits


def test_what_an_earlier_holder_left_is_not_the_present_ones():
    metadata = {"name": "volcano", "annotations": annotations_of("hekla-1", ("volcano", "team-a"))}
    assert names_placed({"metadata": metadata, "spec": {"holderIdentity": "hekla-1"}}) == {"volcano", "team-a"}
    assert names_placed({"metadata": metadata, "spec": {"holderIdentity": "volcano-0"}}) == {"volcano"}
    assert names_placed({"metadata": {"name": "volcano"}, "spec": {}}) == {"volcano"}
