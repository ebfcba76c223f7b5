"""What `deploy/` holds is taken by a real API server whole: nothing is pruned, nothing is refused."""

import yaml

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
