import asyncio
import itertools
import random
from contextlib import asynccontextmanager

import pytest
from structlog.testing import capture_logs

from hekla.api.apiextensions import CustomResourceDefinition
from hekla.api.apps import ReplicaSet
from hekla.api.core import ConfigMap, Namespace, Node, ResourceQuota, Secret, ServiceAccount
from hekla.api.crd import crd_document
from hekla.api.kthena import ModelServer
from hekla.apiserver.admission_rules.resource_quota import ResourceQuotaRule
from hekla.controlplane.namespace_defaults import reconcile_default_account
from hekla.kube.api_client import ApiClient
from hekla.kube.clock import LoopClock
from hekla.kube.commands import Create, Delete, Event, Patch, RequeueAfter, SetStatus, target_of
from hekla.kube.errors import ApiError, NotFoundError
from hekla.kube.in_process import InProcessTransport
from hekla.kube.informer import Informers
from hekla.kube.reconcile import reconciler
from hekla.kube.runtime import Runtime
from hekla.testing import virtual_time
from hekla.testing.flaky import FlakyTransport
from hekla.testing.server import api_server


def config_map(name, **data):
    return {"metadata": {"name": name, "namespace": "default"}, "data": data}


def owner_of(obj):
    info, meta = type(obj).kind_info, obj.metadata
    return {"apiVersion": info.api_version, "kind": info.kind, "name": meta.name, "uid": meta.uid, "controller": True}


@reconciler(ConfigMap, owns=(Secret,))
def reconcile_set(parent, world, now):
    """Keeps as many secrets as `data.size` says, with generated names: a stale cache would make too many."""
    size = int(parent.data.get("size", "0"))
    mine = world.owned(Secret, parent.metadata.uid)
    for secret in mine[size:]:
        yield Delete(target_of(secret))
    for _ in range(size - len(mine)):
        yield Create(
            Secret,
            {
                "metadata": {
                    "generateName": f"{parent.metadata.name}-",
                    "namespace": parent.metadata.namespace,
                    "ownerReferences": [owner_of(parent)],
                }
            },
        )


@asynccontextmanager
async def running(*reconcilers, clock=None, is_busy=lambda within_s: False, rules=(), **told):
    async with api_server(rules=rules) as server:
        flaky = FlakyTransport(InProcessTransport(server.handle))
        user = ApiClient(InProcessTransport(server.handle))
        async with Informers(ApiClient(flaky), dice=random.Random(1)) as informers:
            runtime = Runtime(
                informers, reconcilers, clock=clock or LoopClock(), dice=random.Random(2), is_busy=is_busy, **told
            )
            task = asyncio.create_task(runtime.run())
            try:
                yield user, flaky, runtime
            finally:
                runtime.stop()
                await task


async def secrets(user):
    return list((await user.list(Secret, "default")).items)


async def until(condition):
    for _ in range(100_000):
        if await condition():
            return
        await asyncio.sleep(0.05)
    raise AssertionError("it never came true")


def test_an_object_is_brought_to_what_its_spec_says():
    async def scenario():
        async with running(reconcile_set) as (user, _, _runtime):
            await user.create(ConfigMap, config_map("web", size="3"))

            async def has(count):
                return len(await secrets(user)) == count

            await until(lambda: has(3))
            await user.patch(ConfigMap, "web", {"data": {"size": "1"}}, "default")
            await until(lambda: has(1))
            await user.delete(Secret, (await secrets(user))[0].metadata.name, "default")
            await until(lambda: has(1))

    virtual_time.run(scenario())


@pytest.mark.parametrize("seed", range(4))
def test_slow_caches_never_make_too_many(seed):
    async def scenario():
        dice = random.Random(seed)
        async with running(reconcile_set) as (user, flaky, _):
            await user.create(ConfigMap, config_map("web", size="5"))
            for step in range(60):
                if dice.random() < 0.3:
                    flaky.cut()
                if dice.random() < 0.2:
                    await user.patch(ConfigMap, "web", {"data": {"step": str(step)}}, "default")
                if dice.random() < 0.2 and (mine := await secrets(user)):
                    await user.delete(Secret, dice.choice(mine).metadata.name, "default")
                await asyncio.sleep(dice.choice([0, 0.01, 0.5]))
                assert len(await secrets(user)) <= 5

            async def has_five():
                return len(await secrets(user)) == 5

            await until(has_five)

    virtual_time.run(scenario())


def test_failures_back_off_and_heal():
    async def scenario():
        async with running(reconcile_set) as (user, flaky, _):
            refused = []

            def verdict(request):
                if request.method == "POST" and len(refused) < 8:
                    refused.append(asyncio.get_running_loop().time())
                    raise ApiError(403, "Forbidden", "exceeded quota")

            flaky.before = verdict
            await user.create(ConfigMap, config_map("web", size="2"))

            async def has_two():
                return len(await secrets(user)) == 2

            await until(has_two)
            waits = [later - earlier for earlier, later in itertools.pairwise(refused)]
            assert waits[-1] > 4 * waits[0]

    virtual_time.run(scenario())


def test_what_an_outage_held_up_is_tried_again_within_a_minute_of_its_end():
    """Webhooks that were away for a quarter of an hour, and a group that then waited five minutes more."""

    async def longest_wait_s(error):
        async with running(reconcile_set) as (user, flaky, _):
            tried = []

            def verdict(request):
                if request.method == "POST":
                    tried.append(asyncio.get_running_loop().time())
                    raise error

            flaky.before = verdict
            await user.create(ConfigMap, config_map("web", size="1"))
            await asyncio.sleep(3600)
            return max(later - earlier for earlier, later in itertools.pairwise(tried))

    async def scenario():
        message = 'failed calling webhook "validatepodgroup.volcano.sh": connection refused'
        assert await longest_wait_s(ApiError(500, "InternalError", message)) <= 60 * 1.25 + 1
        assert await longest_wait_s(ApiError(403, "Forbidden", "violates PodSecurity")) > 200

    virtual_time.run(scenario())


def test_an_outage_is_told_of_once_a_minute_and_not_of_each_object_at_each_try():
    """Twelve lines in ten seconds for one pod, while no webhook answered."""

    async def scenario():
        async with running(reconcile_set) as (user, flaky, _):

            def verdict(request):
                if request.method == "POST":
                    raise ApiError(500, "InternalError", 'failed calling webhook "validatepodgroup.volcano.sh"')

            flaky.before = verdict
            with capture_logs() as told:
                for number in range(20):
                    await user.create(ConfigMap, config_map(f"web-{number}", size="1"))
                await asyncio.sleep(179)
            said = [one for one in told if one["event"] == "command refused" and one["log_level"] == "info"]
            assert len(said) == 3

    virtual_time.run(scenario())


@reconciler(ConfigMap)
def reconcile_counter(obj, world, now):
    """Counts to three with guarded patches."""
    count = int(obj.data.get("count", "0"))
    if count < 3:
        yield Patch(target_of(obj), {"data": {"count": str(count + 1)}}, is_guarded=True)


def test_a_conflict_is_a_reason_to_look_again():
    async def scenario():
        async with running(reconcile_counter) as (user, _, _runtime):
            await user.create(ConfigMap, config_map("c"))
            for step in range(10):
                await user.patch(ConfigMap, "c", {"data": {"step": str(step)}}, "default")

            async def counted():
                return (await user.get(ConfigMap, "c", "default")).data.get("count") == "3"

            await until(counted)

    virtual_time.run(scenario())


def test_one_object_is_never_reconciled_twice_at_a_time_while_others_go_on():
    async def scenario():
        active, most = {}, {}
        release = asyncio.Event()

        @reconciler(ConfigMap)
        def reconcile_touch(obj, world, now):
            name = obj.metadata.name
            if name.startswith("t"):
                active[name] = active.get(name, 0) + 1
                most[name] = max(most.get(name, 0), active[name])
                yield Patch(target_of(obj), {"data": {"seen": obj.data.get("n", "")}})

        async with running(reconcile_touch) as (user, flaky, _runtime):
            inner = flaky.inner.send

            async def slow(request):
                response = await inner(request)
                if request.method == "PATCH" and "/configmaps/t" in request.target:
                    await asyncio.sleep(5)
                    active[request.path.rpartition("/")[2]] -= 1
                return response

            flaky.inner.send = slow
            for name in ("t1", "t2"):
                await user.create(ConfigMap, config_map(name))
            for n in range(20):
                for name in ("t1", "t2"):
                    await user.patch(ConfigMap, name, {"data": {"n": str(n)}}, "default")
                await asyncio.sleep(1)
            release.set()
            await asyncio.sleep(60)
            assert most == {"t1": 1, "t2": 1}
            for name in ("t1", "t2"):
                assert (await user.get(ConfigMap, name, "default")).data["seen"] == "19"

    virtual_time.run(scenario())


class Thinking(LoopClock):
    """A clock by which thinking takes time: the loop's own stands still while a decision is made."""

    thought_s = 0.0

    def elapsed_s(self):
        return super().elapsed_s() + self.thought_s


@pytest.mark.parametrize(("thought_s", "rests"), [(0.0, False), (0.1, True)])
def test_an_object_that_takes_long_to_think_about_is_thought_about_less_often(thought_s, rests):
    async def scenario():
        clock, thoughts = Thinking(), []

        @reconciler(ConfigMap)
        def reconcile_slowly(obj, world, now):
            thoughts.append(obj.data.get("n"))
            clock.thought_s += thought_s
            yield from ()

        async with running(reconcile_slowly, clock=clock) as (user, _flaky, _runtime):
            await user.create(ConfigMap, config_map("large"))
            for n in range(50):
                await user.patch(ConfigMap, "large", {"data": {"n": str(n)}}, "default")
                await asyncio.sleep(0.1)
            await asyncio.sleep(10)
        assert thoughts[-1] == "49", "what came during the rest is looked at after it"
        assert (len(thoughts) < 10) == rests, thoughts

    virtual_time.run(scenario())


def test_a_status_that_can_wait_is_written_once_with_what_comes_next_and_never_too_late():
    async def scenario():
        @reconciler(Node)
        def reconcile_phase(node, world, now):
            wanted = node.metadata.annotations.get("phase", "")
            if wanted != node.status.phase:
                yield SetStatus(target_of(node), {"phase": wanted}, can_wait_s=0.0 if wanted == "urgent" else 0.45)

        async with running(reconcile_phase) as (user, flaky, _runtime):
            await user.create(Node, {"metadata": {"name": "n"}})

            async def say(phase):
                await user.patch(Node, "n", {"metadata": {"annotations": {"phase": phase}}})
                await asyncio.sleep(0.1)

            async def written():
                return sum(one.startswith("PATCH") for one in flaky.requests), (await user.get(Node, "n")).status.phase

            for number in range(1, 10):
                await say(str(number))
            assert await written() == (1, "5"), "half a second after the first word"
            await asyncio.sleep(1)
            assert await written() == (2, "9")
            await say("urgent")
            assert await written() == (3, "urgent"), "what cannot wait does not"
            await say("later")
            await user.delete(Node, "n")
            await asyncio.sleep(1)
            assert not any("later" in one for one in flaky.requests)

    virtual_time.run(scenario())


def test_while_its_owner_is_busy_an_object_gives_way_and_never_for_longer_than_it_may():
    async def scenario():
        looks, hurry = [], []

        @reconciler(ConfigMap, gives_way_s=1.5)
        def reconcile_politely(obj, world, now):
            looks.append(obj.data["n"])
            yield from ()

        async with running(reconcile_politely, is_busy=lambda within_s: bool(hurry)) as (user, _, _runtime):
            await user.create(ConfigMap, config_map("c", n="at once"))
            await asyncio.sleep(0.1)
            assert looks == ["at once"], "nobody is in a hurry"
            hurry.append("a burst")
            await user.patch(ConfigMap, "c", {"data": {"n": "later"}}, "default")
            await asyncio.sleep(1)
            assert looks == ["at once"]
            hurry.clear()
            await asyncio.sleep(0.1)
            assert looks == ["at once", "later"], "the burst is over"
            hurry.append("a burst without an end")
            await user.patch(ConfigMap, "c", {"data": {"n": "in time"}}, "default")
            await asyncio.sleep(1.4)
            assert looks[-1] == "later"
            await asyncio.sleep(0.3)
            assert looks[-1] == "in time"

    virtual_time.run(scenario())


def test_an_object_that_gives_way_waits_for_quiet_and_is_asked_again_how_much_it_needs():
    async def scenario():
        looks, needed, last = [], [0.25], [0.0]

        @reconciler(ConfigMap, gives_way_s=1.5, quiet_s=lambda obj, world: needed[0])
        def reconcile_politely(obj, world, now):
            looks.append(obj.data["n"])
            yield from ()

        def was_busy(within_s: float) -> bool:
            return asyncio.get_running_loop().time() < last[0] + within_s

        async with running(reconcile_politely, is_busy=was_busy) as (user, _, _runtime):
            last[0] = asyncio.get_running_loop().time()
            await user.create(ConfigMap, config_map("c", n="quiet"))
            await asyncio.sleep(0.2)
            assert looks == []
            await asyncio.sleep(0.15)
            assert looks == ["quiet"], "nobody came for a quarter of a second"
            last[0] = asyncio.get_running_loop().time()
            await user.patch(ConfigMap, "c", {"data": {"n": "urgent"}}, "default")
            await asyncio.sleep(0.06)
            assert looks == ["quiet"]
            needed[0] = 0.0
            await asyncio.sleep(0.06)
            assert looks == ["quiet", "urgent"], "it needs no quiet any more"

    virtual_time.run(scenario())


def test_an_object_that_takes_long_to_ask_how_much_quiet_it_needs_is_asked_less_often():
    """A pool of thirty thousand would be looked through twenty times a second, on the loop of whom it gives way to."""

    async def scenario():
        asked, clock = [], Slow()

        def quiet_s(obj, world):
            asked.append(1)
            clock.late_s += 0.03
            return 0.25

        @reconciler(ConfigMap, gives_way_s=60.0, quiet_s=quiet_s)
        def reconcile_politely(obj, world, now):
            yield from ()

        async with running(reconcile_politely, clock=clock, is_busy=lambda within_s: True) as (user, _, _runtime):
            await user.create(ConfigMap, config_map("c"))
            await asyncio.sleep(10)
            assert 10 <= len(asked) <= 20, "twenty times 30 ms between two, not 50 ms"

    virtual_time.run(scenario())


class Slow(LoopClock):
    """A clock for thoughts that take time."""

    late_s = 0.0

    def elapsed_s(self) -> float:
        return super().elapsed_s() + self.late_s


def test_an_object_that_cannot_be_asked_how_much_quiet_it_needs_does_not_wait_for_ever():
    async def scenario():
        looks, mistakes = [], [0]

        def quiet_s(obj, world):
            mistakes[0] += 1
            if mistakes[0] == 2:
                raise KeyError("a reconciler's mistake")
            return 0.25

        @reconciler(ConfigMap, gives_way_s=1.5, quiet_s=quiet_s)
        def reconcile_politely(obj, world, now):
            looks.append(obj.metadata.name)
            yield from ()

        async with running(reconcile_politely, is_busy=lambda within_s: True) as (user, _, _runtime):
            await user.create(ConfigMap, config_map("c"))
            await asyncio.sleep(1.7)
            assert looks == ["c"]

    virtual_time.run(scenario())


def test_many_that_give_way_are_looked_after_by_one_look_each_time():
    """Each had a look of its own: of what three hundred sessions at once waited for, a tenth was objects that gave way to them."""

    async def scenario():
        looks, asked = [], []

        @reconciler(ConfigMap, gives_way_s=1.0)
        def reconcile_politely(obj, world, now):
            looks.append(obj.metadata.name)
            yield from ()

        async with running(reconcile_politely, is_busy=lambda within_s: bool(asked.append(1)) or True) as (
            user,
            _,
            _runtime,
        ):
            for number in range(50):
                await user.create(ConfigMap, config_map(f"c{number}"))
            await asyncio.sleep(0.9)
            assert looks == []
            assert len(asked) <= 50 + 20  # once for each, then one look every 50 ms
            await asyncio.sleep(0.2)
            assert sorted(looks) == sorted(f"c{number}" for number in range(50))

    virtual_time.run(scenario())


def test_what_somebody_waits_for_gives_way_to_nobody():
    async def scenario():
        looks = []

        @reconciler(ConfigMap, gives_way_s=lambda obj, world: 5.0 if obj.data["is"] == "aftermath" else 0.0)
        def reconcile_politely(obj, world, now):
            looks.append(obj.data["is"])
            yield from ()

        async with running(reconcile_politely, is_busy=lambda within_s: True) as (user, _, _runtime):
            await user.create(ConfigMap, config_map("a", **{"is": "aftermath"}))
            await user.create(ConfigMap, config_map("b", **{"is": "urgent"}))
            await asyncio.sleep(1)
            assert looks == ["urgent"]
            await asyncio.sleep(4.2)
            assert looks == ["urgent", "aftermath"]

    virtual_time.run(scenario())


def test_a_status_that_can_wait_gives_way_four_times_as_long():
    async def scenario():
        hurry = ["a burst"]

        @reconciler(Node)
        def reconcile_phase(node, world, now):
            wanted = node.metadata.annotations["phase"]
            if wanted != node.status.phase:
                yield SetStatus(target_of(node), {"phase": wanted}, can_wait_s=0.5)

        async with running(reconcile_phase, is_busy=lambda within_s: bool(hurry)) as (user, _, _runtime):

            async def phase_after(seconds):
                await asyncio.sleep(seconds)
                return (await user.get(Node, "n")).status.phase

            await user.create(Node, {"metadata": {"name": "n", "annotations": {"phase": "first"}}})
            assert await phase_after(1.9) == ""
            assert await phase_after(0.2) == "first", "no burst is so long that nothing is told"
            await user.patch(Node, "n", {"metadata": {"annotations": {"phase": "second"}}})
            assert await phase_after(0.7) == "first"
            hurry.clear()
            assert await phase_after(0.4) == "second"

    virtual_time.run(scenario())


def test_what_a_reconciler_does_not_heed_wakes_nobody():
    async def scenario():
        looks = []

        @reconciler(ConfigMap, heeds={ConfigMap: lambda one: one.data.get("heeded")})
        def reconcile_heedful(obj, world, now):
            looks.append(dict(obj.data))
            yield from ()

        async with running(reconcile_heedful) as (user, _, _runtime):
            await user.create(ConfigMap, config_map("c", heeded="a"))
            await asyncio.sleep(1)
            looks.clear()
            await user.patch(ConfigMap, "c", {"data": {"other": "b"}}, "default")
            await asyncio.sleep(1)
            assert not looks
            await user.patch(ConfigMap, "c", {"data": {"heeded": "c"}}, "default")
            await asyncio.sleep(1)
            assert looks == [{"heeded": "c", "other": "b"}]

    virtual_time.run(scenario())


@pytest.mark.parametrize(("rests_s", "most"), [(0.0, 10), (1.0, 3)])
def test_an_object_that_was_written_rests_so_that_what_follows_comes_in_one_look(rests_s, most):
    async def scenario():
        looks = []

        @reconciler(ConfigMap, owns=(Secret,), rests_s=rests_s)
        def reconcile_one(obj, world, now):
            looks.append(now)
            if not world.owned(Secret, obj.metadata.uid):
                secret = {"name": "s", "namespace": "default", "ownerReferences": [owner_of(obj)]}
                yield Create(Secret, {"metadata": secret})

        async with running(reconcile_one) as (user, _, _runtime):
            await user.create(ConfigMap, config_map("c"))
            await asyncio.sleep(0.05)
            for n in range(8):
                await user.patch(ConfigMap, "c", {"data": {"n": str(n)}}, "default")
                await asyncio.sleep(0.05)
            await asyncio.sleep(2)
        assert len(looks) <= most
        assert len(looks) >= 2, "what came while it rested was looked at"

    virtual_time.run(scenario())


def test_an_object_can_ask_to_be_looked_at_later():
    async def scenario():
        looks = []

        @reconciler(ConfigMap)
        def reconcile_later(obj, world, now):
            if obj.metadata.name == "c":
                looks.append(now)
                yield RequeueAfter(3600)

        async with running(reconcile_later) as (user, _, _runtime):
            await user.create(ConfigMap, config_map("c"))
            await asyncio.sleep(3 * 3600 + 60)
        assert [round((later - looks[0]).total_seconds()) for later in looks] == [0, 3600, 7200, 10800]

    virtual_time.run(scenario())


def test_a_reconciler_that_reads_what_it_did_not_declare_is_told_so(capsys):
    async def scenario():
        @reconciler(ConfigMap)
        def reconcile_secretly(obj, world, now):
            world.list(Secret)
            yield RequeueAfter(1)

        async with running(reconcile_secretly) as (user, _, _runtime):
            await user.create(ConfigMap, config_map("c"))
            await asyncio.sleep(1)

    virtual_time.run(scenario())
    assert "asks for Secret, which it does not declare" in capsys.readouterr().out


def test_who_merely_reads_a_kind_that_the_cluster_lacks_works_without_it_until_it_is_there():
    def by_name(server, world):
        return ((one.metadata.namespace, one.metadata.name) for one in world.list(ConfigMap))

    @reconciler(ConfigMap, reads=(ModelServer,), finds={ModelServer: by_name})
    def reconcile_count(parent, world, now):
        count = str(len(world.list(ModelServer, "default")))
        if parent.metadata.namespace == "default" and parent.data.get("count") != count:
            yield Patch(target_of(parent), {"data": {"count": count}})

    async def scenario():
        async with running(reconcile_count, is_optional=lambda kind: kind is ModelServer) as (user, _, _runtime):
            await user.create(ConfigMap, config_map("web"))

            async def counts(count):
                return (await user.get(ConfigMap, "web", "default")).data.get("count") == count

            await until(lambda: counts("0"))
            await user.create(CustomResourceDefinition, crd_document(ModelServer))
            spec = {
                "inferenceEngine": "vLLM",
                "workloadSelector": {"matchLabels": {"a": "b"}},
                "workloadPort": {"port": 1},
            }
            await user.create(ModelServer, {"metadata": {"name": "m", "namespace": "default"}, "spec": spec})
            await until(lambda: counts("1"))

    virtual_time.run(scenario())


def test_events_are_counted_not_repeated():
    async def scenario():
        @reconciler(ConfigMap)
        def reconcile_talkative(obj, world, now):
            if obj.metadata.name == "c":
                yield Event(target_of(obj), "Waiting", "no room", "Warning")
                yield RequeueAfter(60)

        async with running(reconcile_talkative) as (user, _, _runtime):
            await user.create(ConfigMap, config_map("c"))
            await asyncio.sleep(10 * 60 + 5)
            events = (await user.request("GET", "/api/v1/namespaces/default/events"))["items"]
            assert [(event["reason"], event["count"]) for event in events] == [("Waiting", 11)]
            assert events[0]["involvedObject"]["name"] == "c"
            assert events[0]["lastTimestamp"] > events[0]["firstTimestamp"]

    virtual_time.run(scenario())


def test_a_name_that_somebody_else_has_taken_is_said_in_an_event():
    async def scenario():
        @reconciler(ConfigMap, owns=(Secret,))
        def reconcile_named(obj, world, now):
            if obj.metadata.name == "c" and not world.owned(Secret, obj.metadata.uid):
                metadata = {"name": "taken", "namespace": "default", "ownerReferences": [owner_of(obj)]}
                yield Create(Secret, {"metadata": metadata})

        async with running(reconcile_named) as (user, _, _runtime):
            await user.create(Secret, {"metadata": {"name": "taken"}}, "default")
            await user.create(ConfigMap, config_map("c"))
            await asyncio.sleep(5)
            events = (await user.request("GET", "/api/v1/namespaces/default/events"))["items"]
            assert [event["reason"] for event in events] == ["NameTaken"]
            assert "exists already and is controlled by nobody" in events[0]["message"]

    virtual_time.run(scenario())


def test_work_goes_on_after_the_server_was_away():
    async def scenario():
        async with running(reconcile_set) as (user, flaky, _):
            await asyncio.sleep(1)
            flaky.is_away = True
            flaky.cut()
            await user.create(ConfigMap, config_map("web", size="2"))
            await asyncio.sleep(300)
            assert await secrets(user) == []
            flaky.is_away = False

            async def has_two():
                return len(await secrets(user)) == 2

            await until(has_two)
            with pytest.raises(NotFoundError):
                await user.get(Secret, "none", "default")

    virtual_time.run(scenario())


def test_a_raised_quota_is_felt_at_once_and_not_when_the_back_off_is_over():
    async def scenario():
        async with running(reconcile_set, rules=[ResourceQuotaRule()]) as (user, _, _runtime):
            small = {"metadata": {"name": "small", "namespace": "default"}, "spec": {"hard": {"secrets": "2"}}}
            await user.create(ResourceQuota, small)
            await user.create(ConfigMap, config_map("web", size="5"))
            await asyncio.sleep(1_000.0)
            assert len(await secrets(user)) == 2

            await user.patch(ResourceQuota, "small", {"spec": {"hard": {"secrets": "9"}}}, "default")
            await asyncio.sleep(1.0)
            assert len(await secrets(user)) == 5

    virtual_time.run(scenario())


def test_a_raised_quota_is_felt_at_once_by_what_is_made_for_a_namespace():
    """A Namespace is in no namespace, and was not known to wait for the quota of its own."""

    async def scenario():
        async with running(reconcile_default_account, rules=[ResourceQuotaRule()]) as (user, _, _runtime):
            none = {"metadata": {"name": "none", "namespace": "team"}, "spec": {"hard": {"count/serviceaccounts": "0"}}}
            await user.create(ResourceQuota, none)
            await user.create(Namespace, {"metadata": {"name": "team"}})
            await asyncio.sleep(1_000.0)
            assert not (await user.list(ServiceAccount, "team")).items

            await user.patch(ResourceQuota, "none", {"spec": {"hard": {"count/serviceaccounts": "1"}}}, "team")
            await asyncio.sleep(1.0)
            assert [one.metadata.name for one in (await user.list(ServiceAccount, "team")).items] == ["default"]

    virtual_time.run(scenario())


@pytest.mark.parametrize("is_talkative", [False, True])
def test_a_correction_counts_before_the_crowd_that_it_takes_back_is_made(is_talkative):
    """A LeaderWorkerSet of a billion by mistake: fifteen thousand groups, services and pods came before the correction was looked at."""

    @reconciler(ReplicaSet, owns=(Secret,))
    def reconcile_crowd(parent, world, now):
        mine = world.owned(Secret, parent.metadata.uid)
        for secret in mine[parent.spec.replicas :]:
            yield Delete(target_of(secret))
        for number in range(len(mine), parent.spec.replicas):
            if is_talkative:
                yield Event(target_of(parent), "Creating", f"secret {number}")
            metadata = {"name": f"s-{number}", "namespace": "default", "ownerReferences": [owner_of(parent)]}
            yield Create(Secret, {"metadata": metadata})

    async def scenario():
        async with running(reconcile_crowd) as (user, flaky, _runtime):
            template = {
                "metadata": {"labels": {"a": "b"}},
                "spec": {"containers": [{"name": "c", "image": "i"}]},
            }
            spec = {"replicas": 3_000, "selector": {"matchLabels": {"a": "b"}}, "template": template}
            path, corrections, made = ReplicaSet.kind_info.path("default", "r"), [], []

            def correct(request):
                if request.method == "POST" and "/secrets" in request.path:
                    made.append(request)
                    if len(made) == 40:
                        patch = user.request(
                            "PATCH", path, {"spec": {"replicas": 1}}, content_type="application/merge-patch+json"
                        )
                        corrections.append(asyncio.create_task(patch))

            flaky.after = correct
            await user.create(ReplicaSet, {"metadata": {"name": "r", "namespace": "default"}, "spec": spec})

            async def is_mended():
                return bool(corrections) and len(await secrets(user)) == 1

            await until(is_mended)
            assert len(made) < 1_500

    virtual_time.run(scenario())
