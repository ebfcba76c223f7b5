import random

import msgspec

from hekla.api.core import ConfigMap, Service
from hekla.api.meta import ObjectMeta, OwnerReference
from hekla.api.pods import Pod
from hekla.kube.cache import Cache


def config_map(name, namespace="ns", labels=None, controller="", revision="1"):
    owners = [OwnerReference(kind="Job", name="j", uid=controller, controller=True)] if controller else []
    meta = ObjectMeta(
        name=name, namespace=namespace, labels=labels or {}, owner_references=owners, resource_version=revision
    )
    return ConfigMap(metadata=meta)


def names(objects):
    return [obj.metadata.name for obj in objects]


def test_objects_are_listed_in_order_of_namespace_and_name():
    cache = Cache()
    for namespace, name in (("b", "x"), ("a", "z"), ("a", "y")):
        cache.put(config_map(name, namespace))
    assert names(cache.list()) == ["y", "z", "x"]
    assert names(cache.list("a")) == ["y", "z"]


def test_a_label_that_changes_moves_the_object_in_the_index():
    cache = Cache()
    cache.put(config_map("one", labels={"app": "web", "tier": "front"}))
    cache.put(config_map("two", labels={"app": "web"}))
    assert names(cache.list("ns", {"app": "web"})) == ["one", "two"]
    assert names(cache.list("ns", {"app": "web", "tier": "front"})) == ["one"]
    cache.put(config_map("one", labels={"app": "db"}))
    assert names(cache.list("", {"app": "web"})) == ["two"]
    assert names(cache.list("", {"app": "db"})) == ["one"]
    cache.remove(("ns", "one"))
    assert names(cache.list("", {"app": "db"})) == []


def test_owned_objects_follow_their_controller():
    cache = Cache()
    cache.put(config_map("one", controller="u1"))
    cache.put(config_map("two", controller="u1"))
    assert names(cache.owned("u1")) == ["one", "two"]
    cache.put(config_map("one", controller="u2"))
    assert names(cache.owned("u1")) == ["two"]
    assert names(cache.owned("u2")) == ["one"]


def test_placed_objects_follow_their_node():
    def pod(name, node=""):
        return msgspec.convert({"metadata": {"name": name, "namespace": "ns"}, "spec": {"nodeName": node}}, Pod)

    cache = Cache()
    cache.put(pod("one", "n1"))
    cache.put(pod("waits"))
    assert names(cache.placed("n1")) == ["one"]
    cache.put(pod("two", "n1"))
    cache.put(pod("waits", "n2"))
    assert (names(cache.placed("n1")), names(cache.placed("n2"))) == (["one", "two"], ["waits"])
    cache.remove(("ns", "one"))
    assert names(cache.placed("n1")) == ["two"]
    assert cache.placed("") == []


def test_services_are_found_by_the_labels_that_they_select():
    """Against asking each: whatever comes, changes and goes."""
    dice = random.Random(3)

    def service(name, selector, namespace):
        document = {"metadata": {"name": name, "namespace": namespace}, "spec": {"selector": selector}}
        return msgspec.convert(document, Service)

    cache, there = Cache(), {}
    for _ in range(400):
        name, namespace = f"s{dice.randrange(30)}", dice.choice(("a", "b"))
        if dice.random() < 0.3:
            cache.remove((namespace, name))
            there.pop((namespace, name), None)
        else:
            selector = {key: dice.choice("xy") for key in ("app", "tier", "zone") if dice.random() < 0.6}
            there[namespace, name] = service(name, selector, namespace)
            cache.put(there[namespace, name])
        labels = {key: dice.choice("xy") for key in ("app", "tier", "zone", "more") if dice.random() < 0.8}
        wanted = sorted(
            key for key, one in there.items() if key[0] == "a" and one.spec.selector and one.spec.selector.items() <= labels.items()
        )  # fmt: skip
        assert [("a", name) for name in names(cache.selecting("a", labels))] == wanted
