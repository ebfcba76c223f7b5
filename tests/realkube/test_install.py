"""What `deploy/` holds is taken by a real API server whole: nothing is pruned, nothing is refused."""

import yaml

from hekla.app.scheduler_elsewhere import API_SERVICE
from hekla.testing.components import ROOT, Cluster

CRDS = sorted((ROOT / "deploy" / "crds").glob("*.yaml"))


def test_every_kind_is_established_with_a_structural_schema(cluster: Cluster):
    names = [yaml.safe_load(path.read_text())["metadata"]["name"] for path in CRDS]
    items = cluster.kubectl("get", "crd", *names, "-o", "json").json["items"]
    conditions = {
        one["metadata"]["name"]: {each["type"]: each["status"] for each in one["status"]["conditions"]} for one in items
    }
    assert set(conditions) == set(names)
    assert all(said.get("Established") == "True" for said in conditions.values()), conditions
    assert all(said.get("NamesAccepted") == "True" for said in conditions.values()), conditions
    assert not {name for name, said in conditions.items() if "NonStructuralSchema" in said}


def test_a_scheduler_that_is_away_holds_up_no_namespace(cluster: Cluster):
    """Nothing but what is installed, and then a scheduler that has come, answered and gone: namespaces are deleted as ever."""
    kubectl = cluster.kubectl
    kubectl("create", "namespace", "before")
    kubectl("delete", "namespace", "before", "--timeout=60s")
    with cluster.running("scheduler", "--no-leader-elect") as scheduler:
        kubectl("wait", f"apiservice/{API_SERVICE}", "--for=condition=Available", "--timeout=60s")
        scheduler.wait_for("event=answers", timeout_s=60)
        kubectl("delete", "apiservice", API_SERVICE)  # as the end of another's term does
        assert scheduler.stop() == 0
    with cluster.running("scheduler", "--no-leader-elect") as scheduler:
        scheduler.wait_for("event=answers", timeout_s=60)
        kubectl("wait", f"apiservice/{API_SERVICE}", "--for=condition=Available", "--timeout=60s")
        registered = kubectl("get", "apiservice", API_SERVICE, "-o", "json").json["spec"]
        applied = cluster.kubectl.within("")("apply", "-k", str(ROOT / "deploy"), "--dry-run=server")
        assert "last-applied-configuration" not in applied.err
        assert f"{API_SERVICE} unchanged" in applied.out
        assert registered["caBundle"]
        assert scheduler.stop() == 0
    kubectl("create", "namespace", "after")
    kubectl("delete", "namespace", "after", "--timeout=100s")


def test_leases_are_renewed_before_everything_else(cluster: Cluster):
    schema = cluster.kubectl("get", "flowschema", "hekla-leader-election", "-o", "json").json
    said = {one["type"]: one["status"] for one in schema["status"]["conditions"]}
    assert said == {"Dangling": "False"}
