"""How processors are shared where all want more than there is."""

import asyncio
from pathlib import Path

import pytest
import structlog

from hekla.api.containers import Container, ResourceRequirements
from hekla.node.container_builder import limits_of
from hekla.node.runtimes import ContainerKey, ContainerSpec, Limits
from hekla.node.runtimes.cgroups import CgroupV1, CgroupV2, NoCgroups
from hekla.node.runtimes.cpu_weight import shares_of, shares_of_tree, weight_of
from hekla.node.runtimes.oci.engines import CRUN, RUNC
from hekla.node.runtimes.oci.runtime import OciSandboxes
from hekla.node.runtimes.process import ProcessRuntime
from hekla.node.runtimes.sandbox import groups as sandbox_groups
from hekla.node.runtimes.sandbox.groups import SandboxGroups, find_groups
from hekla.node.runtimes.sandbox.runtime import ZygoteSandboxes


@pytest.mark.parametrize(
    ("request_milli", "shares", "weight"),
    [
        (0, 2, 1),  # who asks for nothing
        (1, 2, 1),
        (2, 2, 1),
        (3, 3, 2),
        (100, 102, 17),
        (250, 256, 35),
        (1000, 1024, 100),  # as a process of the host, in both versions
        (4000, 4096, 303),
        (64_000, 65_536, 3023),
        (256_000, 262_144, 10_000),
        (10**9, 262_144, 10_000),
    ],
)
def test_shares_and_weights_are_those_of_kubelet(request_milli, shares, weight):
    assert shares_of(request_milli) == shares
    assert weight_of(shares) == weight


def test_who_asks_for_more_never_weighs_less():
    weights = [weight_of(shares_of(milli)) for milli in range(0, 300_000, 37)]
    assert weights == sorted(weights)


@pytest.mark.parametrize(("cpus", "shares"), [(1, 512), (2, 1024), (64, 32_768), (4096, 262_144)])
def test_the_trees_of_a_node_share_its_processors(cpus, shares):
    assert shares_of_tree(cpus) == shares


@pytest.mark.parametrize(
    ("limits", "requests", "asked"),
    [
        ({}, {}, 0),
        ({}, {"cpu": "100m"}, 100),
        ({"cpu": "4"}, {}, 4000),
        ({"cpu": "4"}, {"memory": "1Gi"}, 4000),
        ({"cpu": "4"}, {"cpu": "0"}, 0),
        ({"cpu": "4"}, {"cpu": "500m"}, 500),
    ],
)
def test_a_container_weighs_what_it_asks_for_else_its_limit(limits, requests, asked):
    container = Container(name="c", resources=ResourceRequirements(limits=limits, requests=requests))
    assert limits_of(container).cpu_request_milli == asked


def paper(*groups, file):
    """Groups on paper, with the file that takes their weight."""
    for group in groups:
        group.mkdir(parents=True, exist_ok=True)
        (group / file).write_text("")


def test_a_container_of_version_2_is_given_its_weight(tmp_path):
    paper(tmp_path / "one", tmp_path / "other", file="cpu.weight")
    (group,) = CgroupV2(tmp_path).create("one", Limits(cpu_request_milli=4000))
    assert (group / "cpu.weight").read_text() == "303"
    (group,) = CgroupV2(tmp_path).create("other", Limits())
    assert (group / "cpu.weight").read_text() == "1"


def test_a_container_of_version_1_is_given_its_shares(tmp_path):
    tree = CgroupV1(tmp_path / "memory", tmp_path / "cpu")
    paper(tmp_path / "cpu" / "one", file="cpu.shares")
    (group,) = tree.create("one", Limits(cpu_request_milli=4000))
    assert group == tmp_path / "cpu" / "one"
    assert (group / "cpu.shares").read_text() == "4096"


@pytest.mark.parametrize(
    ("is_v2", "file", "texts"), [(True, "cpu.weight", ("17", "1")), (False, "cpu.shares", ("102", "2"))]
)
def test_a_sandbox_of_either_version_is_given_its_weight(tmp_path, is_v2, file, texts):
    groups = SandboxGroups({"cpu": tmp_path}, is_v2=is_v2)
    groups.create("s1")
    for limits, text in zip((Limits(cpu_request_milli=100), Limits()), texts, strict=True):
        (tmp_path / "s1" / file).write_text("")
        groups.limit("s1", limits, 512)
        assert (tmp_path / "s1" / file).read_text() == text


KERNELS_OWN = Path("/sys/kernel/uevent_seqnum")
"""A file that the kernel lets nobody write, root included."""


def nothing(file):
    """The group has no such file."""


def refused_by_kernel(file):
    if not KERNELS_OWN.exists():
        pytest.skip(f"this kernel has no {KERNELS_OWN}")
    file.symlink_to(KERNELS_OWN)


@pytest.fixture(params=[nothing, Path.mkdir, refused_by_kernel], ids=["missing", "a directory", "read-only"])
def refusing(request, tmp_path):
    """A group, and as a function of its file's name, one that takes no weight."""

    def made(group, name):
        (tmp_path / group).mkdir(parents=True)
        request.param(tmp_path / group / name)

    return made


def warned(logs):
    """What was warned of, as (file, value, error)."""
    return [(each["file"], each["value"], each["error"]) for each in logs if each["log_level"] == "warning"]


def test_a_weight_that_is_refused_is_told_once_and_the_container_runs_all_the_same(tmp_path, refusing):
    for each in ("one", "other"):
        refusing(each, "cpu.weight")
    tree = CgroupV2(tmp_path)
    assert "not shared" not in tree.describe()
    with structlog.testing.capture_logs() as logs:
        for each, milli in (("one", 4000), ("other", 100)):
            assert tree.create(each, Limits(cpu_request_milli=milli)) == (tmp_path / each,)
    [(file, value, error)] = warned(logs)
    assert (file, value) == (f"{tmp_path}/one/cpu.weight", "303")
    assert tree.describe().endswith(f"; CPU is not shared by requests: {file} does not take 303 ({error})")


def test_another_reason_is_told_too(tmp_path):
    (tmp_path / "one").mkdir()
    (tmp_path / "other" / "cpu.shares").mkdir(parents=True)
    tree = CgroupV1(tmp_path, tmp_path)
    with structlog.testing.capture_logs() as logs:
        for each in ("one", "other", "one", "other"):
            tree.create(each, Limits(cpu_request_milli=1000))
    assert [file for file, _, _ in warned(logs)] == [f"{tmp_path}/{each}/cpu.shares" for each in ("one", "other")]
    assert all(f"{file} does not take 1024 ({error})" in tree.describe() for file, _, error in warned(logs))


def test_a_sandbox_whose_weight_is_refused_is_limited_and_told_all_the_same(tmp_path, refusing):
    """It was not started, or where the file was missing, lost the limit that is written after its weight without a word."""
    for each in ("s1", "s2"):
        refusing(each, "cpu.weight")
        (tmp_path / each / "cpu.max").touch()
    groups = SandboxGroups({"cpu": tmp_path}, is_v2=True)
    assert groups.unshared == ""
    with structlog.testing.capture_logs() as logs:
        for each in ("s1", "s2"):
            groups.limit(each, Limits(cpu_milli=500, cpu_request_milli=100), 512)
            assert (tmp_path / each / "cpu.max").read_text() == "50000 100000"
    [(file, value, error)] = warned(logs)
    assert (file, value) == (f"{tmp_path}/s1/cpu.weight", "17")
    assert groups.unshared == f"{file} does not take 17 ({error})"


def test_a_group_that_somebody_tidied_up_is_no_refusal(tmp_path):
    groups = SandboxGroups({"cpu": tmp_path}, is_v2=True)
    groups.limit("gone", Limits(cpu_request_milli=100), 512)
    assert groups.unshared == ""


def test_sandboxes_are_limited_by_what_a_host_offers_where_that_is_not_all(tmp_path, monkeypatch):
    """Where processes could not be counted, a sandbox had no limit of memory either: the first file that was missing ended its limiting."""
    monkeypatch.setattr(sandbox_groups, "MOUNT", tmp_path)
    for group in (tmp_path, tmp_path / "hekla", tmp_path / "hekla" / "s1"):
        group.mkdir(exist_ok=True)
        (group / "cgroup.controllers").write_text("memory io\n")
        for file in ("cgroup.subtree_control", "memory.max", "memory.swap.max"):
            (group / file).touch()
    groups = find_groups("hekla")
    try:
        groups.limit("s1", Limits(cpu_milli=500, memory_bytes=1 << 20), 512)
        assert (tmp_path / "hekla" / "s1" / "memory.max").read_text() == str(1 << 20)
        assert groups.unshared == "no group has the cpu controller"
        assert groups.can_freeze
    finally:
        groups.close()


def test_where_no_group_can_be_made_it_is_told_that_nothing_is_shared():
    assert "shared by requests: read-only" in NoCgroups("read-only").describe()
    assert SandboxGroups(why_none="read-only").unshared == "no control group can be made: read-only"


def weight_there(group):
    """What the kernel took, as shares of version 1 or weight of version 2."""
    for file in ("cpu.weight", "cpu.shares"):
        if (group / file).exists():
            return file, int((group / file).read_text())
    raise AssertionError(f"{group} has no processors to share")


@pytest.mark.parametrize(("limits", "shares"), [(Limits(cpu_request_milli=250), 256), (Limits(), 2)])
def test_the_kernel_weighs_a_plain_container_by_what_it_asks_for(tmp_path, limits, shares):
    async def story():
        runtime = ProcessRuntime(tmp_path / "state")
        await runtime.open(lambda key, end: None)
        try:
            if isinstance(runtime.cgroups, NoCgroups):
                pytest.skip(runtime.cgroups.describe())
            key = ContainerKey("u1", "main", 0)
            await runtime.start(ContainerSpec(key=key, argv=("sleep", "1000"), limits=limits))
            group = runtime._attempts[key].groups[-1]
            file, found = weight_there(group)
            assert found == (shares if file == "cpu.shares" else weight_of(shares))
            assert (group / "cgroup.procs").read_text().split(), "it is in there"
            file, found = weight_there(group.parent)
            assert found == (shares_of_tree() if file == "cpu.shares" else weight_of(shares_of_tree()))
            await runtime.stop(key, grace_s=0)
        finally:
            await runtime.close()

    asyncio.run(story())


@pytest.mark.parametrize("warm", [0, 1], ids=["made for its pod", "made for nobody"])
def test_the_kernel_weighs_a_sandbox_by_what_its_pod_asks_for(tmp_path, warm):
    async def story():
        runtime = ZygoteSandboxes(tmp_path / "state", warm=warm, preload=())
        await runtime.open(lambda key, end: None)
        try:
            if runtime.refusal or "cpu" not in runtime.groups.parents:
                pytest.skip(runtime.refusal or runtime.groups.describe())
            if warm:
                await runtime.prepare()
            async with asyncio.timeout(60):
                while warm and not runtime._cells._warm:
                    await asyncio.sleep(0.01)
            tree = runtime.groups.parents["cpu"]
            file, whole = weight_there(tree)
            of = (lambda shares: shares) if file == "cpu.shares" else weight_of
            assert whole == of(shares_of_tree())
            if warm:
                waiting = runtime._cells._warm[0].name
                assert weight_there(tree / waiting)[1] == of(2), "what waits for nobody gives way"
            for uid, limits, shares in (("u1", Limits(cpu_request_milli=4000), 4096), ("u2", Limits(), 2)):
                key = ContainerKey(uid, "main", 0)
                await runtime.start(ContainerSpec(key=key, argv=(), hostname="box", limits=limits))
                assert weight_there(tree / runtime._boxes[key].cell.name)[1] == of(shares)
        finally:
            await runtime.close()

    asyncio.run(story())


@pytest.mark.parametrize("engine", [CRUN, RUNC], ids=lambda engine: engine.name)
def test_the_kernel_weighs_a_container_of_an_engine_by_what_its_pod_asks_for(tmp_path, engine):
    async def story():
        runtime = OciSandboxes(tmp_path / "state", name="oci", engines=(engine,))
        await runtime.open(lambda key, end: None)
        try:
            if runtime.refusal or "cpu" not in runtime.groups.parents:
                pytest.skip(runtime.refusal or runtime.groups.describe())
            key = ContainerKey("u1", "main", 0)
            await runtime.start(ContainerSpec(key=key, argv=(), hostname="box", limits=Limits(cpu_request_milli=4000)))
            cell = runtime._boxes[key].cell
            group = runtime.groups.parents["cpu"] / cell.name
            file, found = weight_there(group)
            assert found == (4096 if file == "cpu.shares" else weight_of(4096))
            assert str(cell.pid) in (group / "cgroup.procs").read_text().split(), "and it is in there"
        finally:
            await runtime.close()

    asyncio.run(story())
