"""A pod whose files outgrow the `sizeLimit` of their volume is evicted, as by a kubelet."""

import os

import msgspec

from hekla.api.pods import Pod
from hekla.node import agent
from hekla.node.eviction import eviction_of

VOLUME = {"name": "data", "emptyDir": {"sizeLimit": "1Mi"}}


def pod(volume):
    return msgspec.convert({"spec": {"containers": [{"name": "main"}], "volumes": [volume]}}, Pod)


def test_what_files_take_counts_in_all_directories_and_links_lead_nowhere(tmp_path):
    place, limited = tmp_path / "data", pod(VOLUME)
    (place / "below").mkdir(parents=True)
    (tmp_path / "large").write_bytes(os.urandom(2 << 20))
    (place / "link").symlink_to(tmp_path / "large")
    with (place / "sparse").open("wb") as sparse:
        sparse.truncate(1 << 30)
    (place / "below/a").write_bytes(os.urandom(900_000))
    for name in "bcd":
        os.link(place / "below/a", place / name)
    assert eviction_of(limited, {"data": place}) == ""
    (place / "e").write_bytes(os.urandom(200_000))
    assert eviction_of(limited, {"data": place}) == 'Usage of EmptyDir volume "data" exceeds the limit "1Mi". '
    assert eviction_of(pod({"name": "data", "emptyDir": {}}), {"data": place}) == ""
    assert eviction_of(limited, {}) == eviction_of(limited, {"data": tmp_path / "gone"}) == ""


def test_a_pod_over_its_limit_ends_at_once_and_says_why(live, monkeypatch):
    monkeypatch.setattr(agent, "EVICT_EVERY_S", 0.05)
    mount = [{"name": "data", "mountPath": "/data"}]
    script = "trap '' TERM; head -c 2000000 /dev/urandom > /data/f; sleep 71234.9; sleep 71234.9"
    main = {"name": "main", "image": "busybox", "command": ["sh", "-c", script], "volumeMounts": mount}

    async def story(cluster):
        spec = {"containers": [main], "volumes": [VOLUME], "terminationGracePeriodSeconds": 1000}
        await cluster.apply("p", spec)
        ended = await cluster.ended("p")
        why = 'Usage of EmptyDir volume "data" exceeds the limit "1Mi". '
        assert (ended.status.phase, ended.status.reason, ended.status.message) == ("Failed", "Evicted", why)
        [disrupted] = [each for each in ended.status.conditions if each.type == "DisruptionTarget"]
        assert (disrupted.status, disrupted.reason) == ("True", "TerminationByKubelet")
        assert ended.status.container_statuses[0].state.terminated.exit_code == 137
        assert await cluster.event("Evicted") == why

    live(story)
