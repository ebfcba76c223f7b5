import itertools
import json
import queue
import threading

import pytest
from kubernetes import client, watch
from kubernetes.client.exceptions import ApiException

PATIENCE_S = 30


def config_map(name, **data):
    return client.V1ConfigMap(metadata=client.V1ObjectMeta(name=name), data=data)


class Watching:
    """A watch in a thread, as controllers written with this client have it."""

    def __init__(self, call, *arguments, **options):
        self.seen, self._watch = queue.Queue(), watch.Watch()
        options.setdefault("timeout_seconds", PATIENCE_S)
        self._thread = threading.Thread(target=self._run, args=(call, arguments, options), daemon=True)
        self._thread.start()

    def _run(self, call, arguments, options):
        for event in self._watch.stream(call, *arguments, **options):
            self.seen.put((event["type"], event["object"]))

    def take(self, count):
        return [self.seen.get(timeout=PATIENCE_S) for _ in range(count)]


def changes(events):
    return [(kind, one.metadata.name) for kind, one in events]


def test_a_watch_tells_of_everything_in_order(core, namespace):
    since = core.list_namespaced_secret(namespace).metadata.resource_version  # the thread may come after all of it
    watching = Watching(core.list_namespaced_secret, namespace, resource_version=since)
    secret = client.V1Secret(metadata=client.V1ObjectMeta(name="s"))
    core.create_namespaced_secret(namespace, secret)
    core.patch_namespaced_secret("s", namespace, {"stringData": {"a": "1"}})
    core.delete_namespaced_secret("s", namespace)
    assert changes(watching.take(3)) == [("ADDED", "s"), ("MODIFIED", "s"), ("DELETED", "s")]


def test_a_watch_resumes_after_the_revision_it_last_saw(core, namespace):
    made = [core.create_namespaced_config_map(namespace, config_map(f"c{number}")) for number in range(5)]
    since = made[2].metadata.resource_version
    watching = Watching(core.list_namespaced_config_map, namespace, resource_version=since)
    assert changes(watching.take(2)) == [("ADDED", "c3"), ("ADDED", "c4")]


def test_a_watch_by_label_tells_of_leaving_as_a_deletion(core, namespace):
    labelled = config_map("c")
    labelled.metadata.labels = {"team": "a"}
    core.create_namespaced_config_map(namespace, labelled)
    watching = Watching(core.list_namespaced_config_map, namespace, label_selector="team=a")
    assert changes(watching.take(1)) == [("ADDED", "c")]
    core.patch_namespaced_config_map("c", namespace, {"metadata": {"labels": {"team": "b"}}})
    assert changes(watching.take(1)) == [("DELETED", "c")]


def test_a_watch_by_node_sees_only_its_own_pods(core, namespace):
    watching = Watching(core.list_namespaced_pod, namespace, field_selector="spec.nodeName=n1")
    for name, node in (("a", "n0"), ("b", "n1")):
        spec = client.V1PodSpec(node_name=node, containers=[client.V1Container(name="c", image="i")])
        core.create_namespaced_pod(namespace, client.V1Pod(metadata=client.V1ObjectMeta(name=name), spec=spec))
    assert changes(watching.take(1)) == [("ADDED", "b")]


def test_a_watch_ends_at_its_timeout_in_good_order(core, namespace):
    events = list(watch.Watch().stream(core.list_namespaced_secret, namespace, timeout_seconds=1))
    assert events == []


def test_a_revision_of_the_future_is_refused(core, namespace, sentence):
    with pytest.raises(ApiException) as caught:
        core.list_namespaced_config_map(namespace, resource_version="99999999999")
    assert caught.value.status == 504
    assert "Too large resource version" in sentence(caught)


def lines_of(platform, target, count, headers=()):
    """The first lines of a stream, read by hand."""
    import http.client

    connection = http.client.HTTPSConnection("127.0.0.1", platform.port, context=platform.tls(), timeout=PATIENCE_S)
    connection.request("GET", target, headers=dict(headers))
    answer = connection.getresponse()
    lines = [json.loads(line) for line in itertools.islice(answer, count)]
    connection.close()
    return answer, lines


def test_a_watch_list_ends_its_first_events_with_the_annotated_bookmark(platform, core, namespace):
    for number in range(3):
        core.create_namespaced_secret(namespace, client.V1Secret(metadata=client.V1ObjectMeta(name=f"s{number}")))
    target = (
        f"/api/v1/namespaces/{namespace}/secrets?watch=true&sendInitialEvents=true"
        "&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
    )
    answer, lines = lines_of(platform, target, 4)
    assert answer.getheader("Content-Type") == "application/json"
    assert [line["type"] for line in lines] == ["ADDED", "ADDED", "ADDED", "BOOKMARK"]
    bookmark = lines[-1]["object"]
    assert bookmark["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}
    assert (bookmark["kind"], bookmark["apiVersion"]) == ("Secret", "v1")
    assert int(bookmark["metadata"]["resourceVersion"]) >= int(lines[2]["object"]["metadata"]["resourceVersion"])


def test_a_watch_list_must_say_how_revisions_match(platform, namespace):
    answer = platform.ask("GET", f"/api/v1/namespaces/{namespace}/secrets?watch=true&sendInitialEvents=true")
    assert answer.status == 422
    assert "resourceVersionMatch" in answer.document["message"]


def test_a_watch_as_table_sends_tables(platform, core, namespace):
    core.create_namespaced_secret(namespace, client.V1Secret(metadata=client.V1ObjectMeta(name="s")))
    accept = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
    _, lines = lines_of(platform, f"/api/v1/namespaces/{namespace}/secrets?watch=true", 1, [("Accept", accept)])
    assert (lines[0]["type"], lines[0]["object"]["kind"]) == ("ADDED", "Table")
    assert lines[0]["object"]["rows"][0]["cells"][0] == "s"


def test_bookmarks_tell_a_quiet_watch_how_far_it_is(platform, core, namespace):
    # a watch that asks for bookmarks is told the revision at its end
    target = f"/api/v1/namespaces/{namespace}/secrets?watch=true&allowWatchBookmarks=true&timeoutSeconds=2"
    made = core.create_namespaced_config_map(namespace, config_map("elsewhere"))
    answer = platform.ask("GET", target)
    events = [json.loads(line) for line in answer.body.splitlines()]
    assert all(event["type"] == "BOOKMARK" for event in events)
    assert not events or int(events[-1]["object"]["metadata"]["resourceVersion"]) >= int(made.metadata.resource_version)
