import asyncio
import re
from pathlib import Path

from prometheus_client import REGISTRY, CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from hekla.kube.measured import Family, Spread, Tally, metric_rows
from hekla.placement.constraint import Refusal
from hekla.placement.explain import Explanation
from hekla.scheduler import metrics
from hekla.scheduler.metrics import METRICS
from scheduler.schedulerkit import add_group, add_node, add_pod, is_bound, scheduled_condition, until, world

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "metrics.md"
Labelled = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def told(text: str) -> Labelled:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_a_value_on_a_bound_belongs_to_the_bucket_that_it_bounds() -> None:
    spread = Spread((1.0, 5.0))
    for value in (0.5, 1.0, 1.5, 5.0, 9.0):
        spread.add(value)
    assert spread.counts == [2, 2, 1]
    assert spread.total == 17.0


def test_what_was_counted_is_what_prometheus_reads() -> None:
    spread = Family("some_wait", "histogram", "Waits.", ("queue",), (1.0, 5.0))
    counter = Family("some_things_total", "counter", "Things.", ("kind",))
    plain = Family("some_total_tries", "untyped", "Tries.")
    tally = Tally()
    tally.observe(spread, 3.0, "a")
    tally.observe(spread, 9.0, "a")
    tally.count(counter, 'odd "kind"', by=2)

    class Collector:
        def collect(self):  # type: ignore[no-untyped-def]
            yield from tally.collect((spread, counter, plain))

    registry = CollectorRegistry()
    registry.register(Collector())
    text = generate_latest(registry).decode()
    assert "# TYPE some_things_total counter" in text
    assert told(text) == {
        ("some_wait_bucket", (("le", "1.0"), ("queue", "a"))): 0,
        ("some_wait_bucket", (("le", "5.0"), ("queue", "a"))): 1,
        ("some_wait_bucket", (("le", "+Inf"), ("queue", "a"))): 2,
        ("some_wait_count", (("queue", "a"),)): 2,
        ("some_wait_sum", (("queue", "a"),)): 12,
        ("some_things_total", (("kind", 'odd "kind"'),)): 2,
        ("some_total_tries", ()): 0,
    }


def test_a_busy_scheduler_tells_what_it_did_and_what_waits() -> None:
    async def story() -> str:
        async with world(nodes=2) as (client, scheduler):
            await add_group(client, "train", 2)
            for number in range(2):
                await add_pod(client, f"train-{number}", gpus=3, group="train")
            await add_pod(client, "large", gpus=8)  # 10 of 16 are idle, on two nodes with 5 each or one whole
            await until(lambda: is_bound(client, "train-1"))
            await add_group(client, "late", 1)
            await add_pod(client, "late-0", gpus=16, group="late")

            async def is_told() -> bool:
                return (await scheduled_condition(client, "late-0"))[1] == "Unschedulable"

            await until(is_told)
            await until(lambda: is_bound(client, "large"))
            await scheduler.idle()
            text = generate_latest(REGISTRY).decode()
        left = re.findall(r"^volcano_.*$", generate_latest(REGISTRY).decode(), re.MULTILINE)
        assert not left, "a scheduler that is gone leaves no series"
        return text

    text = asyncio.run(story())
    values = told(text)
    queue = (("queue_name", "default"),)
    gpu = (("queue_name", "default"), ("resource", "nvidia.com/gpu"))
    assert values["volcano_queue_allocated_scalar_resources", gpu] == 14_000
    assert values["volcano_queue_request_scalar_resources", gpu] == 30_000
    assert values["volcano_queue_weight", queue] == 1
    assert values["volcano_queue_pod_group_running_count", queue] == 1
    assert values["volcano_unschedule_job_count", ()] == 1
    assert values["volcano_unschedule_task_count", (("job_id", "default/late"),)] == 1
    assert values["volcano_schedule_attempts_total", (("result", "Success"),)] == 3
    assert values["volcano_schedule_attempts_total", (("result", "Failure"),)] >= 1
    assert values["volcano_task_scheduling_latency_milliseconds_count", (("stage", "Bound"),)] == 3
    assert values["volcano_e2e_job_scheduling_latency_milliseconds_count", ()] == 2
    assert values["volcano_scheduling_stage_duration_milliseconds_count", (("stage", "Bind"),)] == 3
    assert values["volcano_action_scheduling_latency_milliseconds_count", (("action", "allocate"),)] >= 2
    opened = (("OnSession", "OnSessionOpen"), ("plugin", "proportion"))
    assert values["volcano_plugin_scheduling_latency_milliseconds_count", opened] >= 1
    train = (("job_name", "train"), ("job_namespace", "default"), ("queue", "default"))
    assert values["volcano_e2e_job_scheduling_duration", train] >= 0
    late = (("queue", "default"), ("reason", "insufficient/nvidia.com/gpu"))
    assert values["hekla_waiting_jobs", late] == 1
    assert values["hekla_waiting_pods", (("queue", "default"),)] == 1
    assert values["hekla_starvation_age_seconds", (("queue", "default"),)] >= 0
    idle = (("resource", "nvidia.com/gpu"),)
    assert values["hekla_idle_amount", idle] == 2
    assert values["hekla_idle_nodes", idle] == 0
    assert values["hekla_fragmentation_ratio", idle] == 1.0
    assert values["hekla_nodes", (("state", "usable"),)] == 2
    assert values["hekla_scheduler_cycles_total", (("end", "done"),)] >= 2


def test_room_on_whole_nodes_is_not_fragmented() -> None:
    async def story() -> Labelled:
        async with world(nodes=1) as (client, scheduler):
            await add_node(client, "n1", gpus=4)
            await add_pod(client, "one", gpus=8)
            await until(lambda: is_bound(client, "one"))
            await scheduler.idle()
            return told(generate_latest(REGISTRY).decode())

    values = asyncio.run(story())
    idle = (("resource", "nvidia.com/gpu"),)
    assert values["hekla_fragmentation_ratio", idle] == 0.0
    assert values["hekla_idle_nodes", idle] == 1


def test_reasons_of_jobs_that_are_gone_are_forgotten() -> None:
    async def story() -> None:
        async with world(nodes=1) as (_, scheduler):
            await scheduler.idle()
            counted = metrics.SchedulerMetrics(scheduler)
            counted.reasons = {f"pod:{number}": "taint" for number in range(2 * metrics.MOST_JOBS)}
            session = Explained(scheduler)
            counted.on_cycle(session, 0.001)  # type: ignore[arg-type]  # what it reads of a session
            assert counted.reasons == {}
            assert counted.tally.value(metrics.UNSCHEDULABLE, "taint") == 1

    asyncio.run(story())


class Explained:
    """A session in which a job that is gone by now found no room."""

    is_cut_short = False
    refusals: dict[str, Refusal] = {}

    def __init__(self, scheduler: object) -> None:
        self.cluster = scheduler.cluster  # type: ignore[attr-defined]  # a BatchScheduler
        refusal = Refusal("taint", "node(s) had a taint")
        self.failures = {"gone": type("Failure", (), {"explanation": Explanation(1, 0, ((refusal, 1),))})}


def test_every_metric_has_its_row_on_the_reference_page() -> None:
    page = PAGE.read_text()
    rows = re.findall(r"^\|.*\|$", page, re.MULTILINE)
    assert set(metric_rows(METRICS).splitlines()) <= set(rows), "run `make gen`, or python tools/gen.py --docs"


def test_names_are_unique_and_as_prometheus_wants_them() -> None:
    names = [family.name for family in METRICS]
    assert len(names) == len(set(names))
    for family in METRICS:
        assert re.fullmatch(r"(volcano|hekla)_[a-z0-9_]+", family.name)
        assert (family.kind == "counter") == family.name.endswith("_total"), family.name
        assert family.help.endswith("."), family.name
