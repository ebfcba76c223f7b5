import numpy as np
import pytest

from hekla.placement.kernels import SCALE
from hekla.testing.cluster import World

GPU, FOO = "nvidia.com/gpu", "example.com/foo"


def volcanos_world(arguments: dict[str, float | str]) -> World:
    """The nodes of Volcano's binpack fixtures B1 to B3."""
    world = World(plugins=(("gang",), (("binpack", arguments),)))
    world.node("n1", cpu=2, memory=4)
    world.node("n2", cpu=4, memory=16, **{GPU: 4})
    world.node("n3", cpu=2, memory=4, **{FOO: 16})
    world.running("p0", "n1", cpu=1, memory=1)
    world.running("p00", "n3", cpu=1.5)
    return world


def scores(world: World, **asks: float) -> list[float]:
    """What Volcano would say: 100 times the weight; 0 where the pod does not fit."""
    (task,) = world.job("asks", **asks).tasks.values()
    weight = next(plugin.weight for plugin in world.policy.plugins if hasattr(plugin, "weight"))
    found = world.policy.placer.scores(task)[:3] / np.float64(SCALE) * 100 * weight
    return [round(float(score), 2) if score >= 0 else 0.0 for score in found]


HEAVY = {
    "binpack.weight": 10, "binpack.cpu": 2, "binpack.memory": 3,
    "binpack.resources": f"{GPU}, {FOO}", f"binpack.resources.{GPU}": 7, f"binpack.resources.{FOO}": 8,
}  # fmt: skip
LIGHT = {"binpack.resources": GPU, f"binpack.resources.{GPU}": 23}


@pytest.mark.parametrize(
    ("arguments", "asks", "expected"),
    [
        (HEAVY, {"cpu": 1, "memory": 1}, [700, 137.5, 0]),
        (HEAVY, {"cpu": 1.5}, [0, 375, 0]),
        (HEAVY, {"cpu": 2, "memory": 10, GPU: 2}, [0, 531.25, 0]),
        (LIGHT, {"cpu": 1, "memory": 1}, [75, 15.625, 0]),
        (LIGHT, {"cpu": 1.5}, [0, 37.5, 0]),
        (LIGHT, {"cpu": 2, "memory": 10, GPU: 2}, [0, 50.5, 0]),
    ],
)
def test_scores_are_volcanos(arguments: dict[str, float | str], asks: dict[str, float], expected: list[float]) -> None:
    # The first fixture's 700 counts the node's memory as 4 GiB with 1 in use: (2*1 + 3*0.5) / 5 * 1000.
    assert scores(volcanos_world(arguments), **asks) == pytest.approx(expected, abs=0.02)
