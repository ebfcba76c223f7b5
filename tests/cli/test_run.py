"""`hekla run`: what its options become."""

from dataclasses import fields

import pytest

from hekla.app.standalone.agents_settings import AgentsSettings
from hekla.app.standalone.node_settings import NodeSettings
from hekla.app.standalone.settings import COMPONENTS, StandaloneSettings
from hekla.cli.commands import run
from hekla.cli.main import main
from hekla.serving.router.settings import RouterSettings


@pytest.fixture
def served(monkeypatch):
    found = []
    monkeypatch.setattr(run, "serve", lambda *settings: found.append(settings))
    monkeypatch.setattr(run, "route", lambda *flags: found.append(flags))
    return found


def test_components_get_the_defaults_and_what_was_said(served):
    assert main(["run", "all", "--kubeconfig", "k"]) == 0
    assert main(["run", "scheduler", "--scheduler-name", "a", "--scheduler-name", "b", "--no-leader-elect"]) == 0
    plain = StandaloneSettings(components=COMPONENTS, kubeconfig="k")
    told = StandaloneSettings(components=("scheduler",), scheduler_names=("a", "b"), leader_elect=False)
    assert served == [(plain, None, None), (told, None, None)]


def test_a_router_gets_what_was_said_and_nothing_else(served):
    assert main(["run", "router", "--port", "81", "--no-fast-lane", "--enable-gateway-api"]) == 0
    assert served == [({"port": 81, "fast_lane": False, "with_gateways": True}, "", "info")]


@pytest.mark.parametrize(
    ("table", "settings"),
    [
        (run.COMPONENT_FLAGS, StandaloneSettings),
        (run.ROUTER_FLAGS, RouterSettings),
        (run.AGENTS_FLAGS, AgentsSettings),
        (run.NODE_FLAGS, NodeSettings),
    ],
)
def test_a_table_names_fields_that_there_are(table, settings):
    assert set(table) <= {field.name for field in fields(settings)}
