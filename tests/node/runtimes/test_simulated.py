import asyncio

import pytest

from hekla.kube.clock import LoopClock
from hekla.node.runtimes import ContainerKey, ContainerSpec, StartError
from hekla.node.runtimes.simulated import SimulatedRuntime, script_of
from hekla.testing import virtual_time

KEY = ContainerKey("u", "main", 0)


def script(attempt=0, **told):
    annotations = {f"hekla.dev/simulated-{name.replace('_', '-')}": text for name, text in told.items()}
    return script_of(annotations, ContainerKey("u", "main", attempt))


def test_an_annotation_may_be_meant_for_one_container():
    annotations = {"hekla.dev/simulated-duration": "1m", "hekla.dev/simulated-duration.main": "2m"}
    assert script_of(annotations, KEY).duration_s == 120
    assert script_of(annotations, ContainerKey("u", "other", 0)).duration_s == 60


def test_the_first_attempts_may_fail():
    assert [script(attempt, failures="2").exit_code for attempt in range(4)] == [1, 1, 0, 0]
    assert [script(attempt, failures="1", exit_code="7").exit_code for attempt in range(2)] == [7, 0]


@pytest.mark.parametrize(
    ("name", "text"), [("duration", "soon"), ("exit_code", "256"), ("failures", "-1"), ("failures", "\xb2")]
)
def test_an_annotation_that_cannot_be_read_is_named_with_its_value(name, text):
    with pytest.raises(StartError, match=f'simulated-{name.replace("_", "-")} is "{text}"'):
        script(**{name: text})


def test_tens_of_thousands_of_pods_live_for_days_in_no_time():
    async def story():
        ends = []
        runtime = SimulatedRuntime(LoopClock())
        done = asyncio.Event()

        def on_exit(key, end):
            ends.append(end)
            if len(ends) == 30_000:
                done.set()

        await runtime.open(on_exit)
        for number in range(30_000):
            annotations = {"hekla.dev/simulated-duration": f"{number % 48}h"}
            await runtime.start(
                ContainerSpec(key=ContainerKey(f"u{number}", "main", 0), argv=(), annotations=annotations)
            )
        await done.wait()
        assert asyncio.get_running_loop().time() == pytest.approx(47 * 3600)
        assert all(end.code == 0 for end in ends)
        moments = [end.finished_at for end in ends]
        assert moments == sorted(moments)

    virtual_time.run(story())
