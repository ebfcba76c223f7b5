from hekla.api.core import ConfigMap
from hekla.api.meta import OwnerReference
from hekla.controlplane.owner_graph import FOREGROUND, ORPHAN, Item, OwnerGraph, decide
from hekla.kube.commands import Delete, Patch

KIND = ConfigMap.kind_info


def item(uid, *owners, finalizers=(), leaving=False, blocking=True):
    references = tuple(
        OwnerReference(api_version="v1", kind="ConfigMap", name=uid, uid=uid, block_owner_deletion=blocking)
        for uid in owners
    )
    return Item(KIND, "ns", uid, uid, "1", references, tuple(finalizers), leaving)


def graph(*items):
    found = OwnerGraph()
    for one in items:
        found.put(one)
    return found


def verdict(uid, found, absent=()):
    return list(decide(found.get(uid), found, lambda _, owner: owner.uid in absent))


def summary(commands):
    return [
        (type(one).__name__, one.target.name, one.propagation if isinstance(one, Delete) else one.patch["metadata"])
        for one in commands
    ]


def test_what_has_a_living_owner_stays():
    assert verdict("child", graph(item("owner"), item("child", "owner"))) == []


def test_what_has_lost_all_owners_goes():
    found = graph(item("child", "owner"))
    assert verdict("child", found) == []
    assert summary(verdict("child", found, absent={"owner"})) == [("Delete", "child", "Background")]


def test_what_has_lost_one_of_two_owners_forgets_it():
    found = graph(item("other"), item("child", "owner", "other"))
    (command,) = verdict("child", found, absent={"owner"})
    assert isinstance(command, Patch)
    assert [owner["uid"] for owner in command.patch["metadata"]["ownerReferences"]] == ["other"]


def test_an_owner_that_leaves_in_the_foreground_waits_for_its_dependants():
    leaving = item("owner", finalizers=[FOREGROUND], leaving=True)
    found = graph(leaving, item("child", "owner"), item("grandchild", "child"))
    assert summary(verdict("owner", found)) == [("Delete", "child", "Foreground")]
    found.remove("grandchild")
    found.remove("child")
    assert summary(verdict("owner", found)) == [("Patch", "owner", {"finalizers": None})]


def test_a_dependant_that_does_not_block_holds_nothing_back():
    leaving = item("owner", finalizers=[FOREGROUND], leaving=True)
    found = graph(leaving, item("child", "owner", blocking=False))
    assert [name for _, name, _ in summary(verdict("owner", found))] == ["child", "owner"]


def test_a_dependant_with_another_owner_survives_a_foreground_deletion():
    leaving = item("owner", finalizers=[FOREGROUND], leaving=True)
    found = graph(leaving, item("other"), item("child", "owner", "other"))
    assert verdict("owner", found) == []
    (command,) = verdict("child", found)
    assert [owner["uid"] for owner in command.patch["metadata"]["ownerReferences"]] == ["other"]


def test_an_orphaning_owner_is_forgotten_by_its_dependants_first():
    leaving = item("owner", finalizers=[ORPHAN], leaving=True)
    found = graph(leaving, item("child", "owner"))
    assert summary(verdict("owner", found)) == [
        ("Patch", "child", {"ownerReferences": None}),
        ("Patch", "owner", {"finalizers": None}),
    ]


def test_the_graph_says_who_is_worth_a_look():
    found = OwnerGraph()
    assert found.put(item("owner")) == set()
    assert found.put(item("child", "owner")) == {"child"}
    assert found.put(item("child", "owner")) == set()
    assert found.put(item("owner", finalizers=[FOREGROUND], leaving=True)) == {"owner", "child"}
    assert found.remove("child") == {"owner"}
    found.put(item("child", "owner"))
    assert found.remove("owner") == {"child"}
