"""A pod whose files outgrow the `sizeLimit` of their volume is evicted, as by a kubelet."""

import os

import msgspec

from hekla.api.pods import Pod
from hekla.node import agent, eviction
from hekla.node.eviction import Look

VOLUME = {"name": "data", "emptyDir": {"sizeLimit": "1Mi"}}


def pod(volume):
    return msgspec.convert({"spec": {"containers": [{"name": "main"}], "volumes": [volume]}}, Pod)


def eviction_of(pod, places):
    return Look(pod, places).go_on(float("inf"))


WHY = 'Usage of EmptyDir volume "data" exceeds the limit "1Mi". '


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
        os.link(place / "below/a", tmp_path / name)
    assert eviction_of(limited, {"data": place}) == ""
    (place / "e").write_bytes(os.urandom(200_000))
    assert eviction_of(limited, {"data": place}) == WHY
    assert eviction_of(pod({"name": "data", "emptyDir": {}}), {"data": place}) == ""
    assert eviction_of(limited, {}) == eviction_of(limited, {"data": tmp_path / "gone"}) == ""


def deep(place, levels):
    """The innermost of so many directories, each in the one before."""
    here = os.open(place, os.O_RDONLY)
    for _ in range(levels):
        os.mkdir("d" * 250, dir_fd=here)
        below = os.open("d" * 250, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    return here


def put(within, name, size):
    file = os.open(name, os.O_CREAT | os.O_WRONLY, dir_fd=within)
    os.write(file, os.urandom(size))
    os.close(file)


def test_no_file_lies_too_deep_to_count_and_a_look_needs_two_descriptors(tmp_path):
    (tmp_path / "z").mkdir()
    (tmp_path / "z/last").write_bytes(os.urandom(500_000))
    innermost = deep(tmp_path, 40)
    put(innermost, "large", 400_000)
    before, most = len(os.listdir("/proc/self/fd")), 0
    look = Look(pod(VOLUME), {"data": tmp_path})
    while look.go_on(0) is None:
        most = max(most, len(os.listdir("/proc/self/fd")))
    assert most <= before + 2
    put(innermost, "more", 400_000)
    os.close(innermost)
    assert eviction_of(pod(VOLUME), {"data": tmp_path}) == WHY


def test_a_directory_that_becomes_a_link_meanwhile_leads_nowhere(tmp_path):
    place, outside = tmp_path / "data", tmp_path / "outside"
    (place / "a").mkdir(parents=True)
    outside.mkdir()
    (outside / "large").write_bytes(os.urandom(2 << 20))
    look = Look(pod(VOLUME), {"data": place})
    assert look.go_on(0) is None
    (place / "a").rmdir()
    (place / "a").symlink_to(outside)
    assert look.go_on(float("inf")) == ""


def test_what_is_moved_meanwhile_hides_nothing_that_comes_after_it(tmp_path):
    place = tmp_path / "data"
    (place / "a/b").mkdir(parents=True)
    (place / "a/c").mkdir()
    (place / "a/b/small").write_bytes(b"x")
    (place / "a/c/large").write_bytes(os.urandom(2 << 20))
    taken = eviction._files(place)
    for _ in range(4):
        next(taken)  # a, then b and c, and what is in b
    (place / "a/b").rename(tmp_path / "b")
    assert sum(taken) >= 2 << 20


def test_of_many_directories_few_names_wait_and_all_are_looked_at(tmp_path, monkeypatch):
    monkeypatch.setattr(eviction, "MOST_NAMES", 3)
    monkeypatch.setattr(eviction, "FEWEST_NAMES", 2)
    for number in range(40):
        (tmp_path / f"{number % 5}/{number}").mkdir(parents=True)
        (tmp_path / f"{number % 5}/{number}/f").write_bytes(os.urandom(20_000))
    (tmp_path / "g").write_bytes(os.urandom(100_000))
    each = [
        os.lstat(root + "/" + name).st_blocks * 512
        for root, *names in os.walk(tmp_path)
        for name in (*names[0], *names[1])
    ]
    assert sum(eviction._files(tmp_path)) == sum(each)


def test_files_with_several_names_count_once_and_where_they_are_too_many_by_shares(tmp_path, monkeypatch):
    for name in "ab":
        (tmp_path / name).write_bytes(os.urandom(8192))
        os.link(tmp_path / name, tmp_path / f"{name}2")
    assert sum(eviction._files(tmp_path)) == 16384
    monkeypatch.setattr(eviction, "MOST_LINKED", 1)
    assert sum(eviction._files(tmp_path)) == 16384


def test_a_pod_over_its_limit_ends_at_once_and_says_why(live, monkeypatch):
    monkeypatch.setattr(agent, "EVICT_EVERY_S", 0.05)
    mount = [{"name": "data", "mountPath": "/data"}]
    script = "trap '' TERM; head -c 2000000 /dev/urandom > /data/f; sleep 71234.9; sleep 71234.9"
    main = {"name": "main", "image": "busybox", "command": ["sh", "-c", script], "volumeMounts": mount}

    async def story(cluster):
        spec = {"containers": [main], "volumes": [VOLUME], "terminationGracePeriodSeconds": 1000}
        await cluster.apply("p", spec)
        ended = await cluster.ended("p")
        assert (ended.status.phase, ended.status.reason, ended.status.message) == ("Failed", "Evicted", WHY)
        [disrupted] = [each for each in ended.status.conditions if each.type == "DisruptionTarget"]
        assert (disrupted.status, disrupted.reason) == ("True", "TerminationByKubelet")
        assert ended.status.container_statuses[0].state.terminated.exit_code == 137
        assert await cluster.event("Evicted") == WHY

    live(story)


def test_a_pod_with_more_files_than_one_turn_sees_is_seen_in_several_and_holds_up_nobody(live, monkeypatch):
    monkeypatch.setattr(agent, "EVICT_EVERY_S", 0.01)
    monkeypatch.setattr(agent, "EVICT_LOOK_S", 0)
    mount = [{"name": "data", "mountPath": "/data"}]
    script = "cd /data; touch 1 2 3 4 5 6 7 8 9; head -c 2000000 /dev/urandom > f; exec sleep 71234.8"
    main = {"name": "main", "image": "busybox", "command": ["sh", "-c", script], "volumeMounts": mount}

    async def story(cluster):
        await cluster.apply("p", {"containers": [main], "volumes": [VOLUME]})
        assert (await cluster.ended("p")).status.reason == "Evicted"

    live(story)
