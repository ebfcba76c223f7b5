"""Dashboards as Grafana lays them out: nothing overlaps, every panel asks something, every choice is used."""

import itertools

import pytest

from hekla.app.monitoring.dashboards import DASHBOARDS
from hekla.app.monitoring.grafana import COLUMNS, SOURCE, dashboard_json


@pytest.fixture(params=DASHBOARDS, ids=lambda one: one.uid)
def dashboard(request):
    return request.param


def cells(place):
    return set(
        itertools.product(range(place["x"], place["x"] + place["w"]), range(place["y"], place["y"] + place["h"]))
    )


def test_panels_stand_side_by_side_and_within_the_page(dashboard):
    taken = set()
    for panel in dashboard_json(dashboard)["panels"]:
        its = cells(panel["gridPos"])
        assert not its & taken, panel["title"]
        assert max(x for x, _ in its) < COLUMNS, panel["title"]
        taken |= its


def test_panels_have_ids_of_their_own_and_ask_the_chosen_source(dashboard):
    panels = dashboard_json(dashboard)["panels"]
    assert [panel["id"] for panel in panels] == list(range(1, len(panels) + 1))
    for panel in panels:
        if panel["type"] != "row":
            assert panel["datasource"] == SOURCE
            assert panel["targets"]
            assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])


def test_every_choice_is_used_and_every_one_that_is_used_is_there(dashboard):
    document = dashboard_json(dashboard)
    chosen = {one["name"] for one in document["templating"]["list"]} - {"datasource"}
    asked = [target["expr"] for panel in document["panels"] for target in panel.get("targets", ())]
    assert chosen == {name for name in ("queue", "model") if any(f"${name}" in expr for expr in asked)}
