"""Draws the demo's cluster: nodes as rows of GPUs, gangs and their state, what the training prints. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

GPU = "nvidia.com/gpu"
COLOURS = ("cyan", "magenta", "yellow", "green", "blue")


@dataclass(frozen=True)
class PlacedPod:
    """A pod that occupies devices."""

    name: str
    node: str
    gpus: int
    gang: str


@dataclass(frozen=True)
class GangView:
    """A gang as one line."""

    name: str
    phase: str
    pods: str
    """How many pods are in which state."""

    reason: str = ""
    """Why it waits."""


@dataclass(frozen=True)
class Scene:
    """Everything the picture shows."""

    gpus_by_node: Mapping[str, int] = field(default_factory=dict)
    pods: Sequence[PlacedPod] = ()
    gangs: Sequence[GangView] = ()
    lines: Sequence[str] = ()
    """The training's last words."""

    said: Sequence[str] = ()
    """The story so far; the last line is what happens now."""


def picture(scene: Scene) -> RenderableType:
    """The whole picture."""
    colours = {gang.name: COLOURS[i % len(COLOURS)] for i, gang in enumerate(scene.gangs)}
    parts: list[RenderableType] = [*_nodes(scene, colours), Text(), _gangs(scene, colours), Text()]
    parts += [Text(f"  {line}", style="dim") for line in scene.lines[-4:]]
    parts.append(Text())
    parts += [Text(f"  {line}", style="bold" if line is scene.said[-1] else "") for line in scene.said[-8:]]
    return Group(*parts)


def _nodes(scene: Scene, colours: Mapping[str, str]) -> list[Text]:
    rows = []
    for node, gpus in sorted(scene.gpus_by_node.items()):
        row = Text(f"  {node:<14}")
        taken = 0
        for pod in sorted((pod for pod in scene.pods if pod.node == node), key=lambda pod: pod.name):
            row.append("■ " * pod.gpus, style=colours.get(pod.gang, "white"))
            taken += pod.gpus
        row.append("□ " * max(0, gpus - taken), style="dim")
        row.append(f"  {taken} of {gpus} GPUs", style="dim")
        rows.append(row)
    return rows


def _gangs(scene: Scene, colours: Mapping[str, str]) -> Table:
    table = Table(box=None, padding=(0, 2), show_header=True, header_style="dim")
    for title in ("job", "phase", "pods", "why it waits"):
        table.add_column(title, overflow="fold")
    for gang in scene.gangs:
        table.add_row(Text(gang.name, style=colours[gang.name]), gang.phase, gang.pods, gang.reason)
    return table
