"""Place pods where they fragment GPUs least, as seen by the pods that usually come (fragmentation gradient descent).

    growth(node) = fragmentation with the pod - fragmentation without it     (`kernels/fragmentation.py`)
    score(node)  = floor(buckets / (1 + e ** (growth in thousandths of a GPU / 1000))) / buckets

After Weng et al., "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient Descent",
USENIX ATC 2023. The rounding is part of it: nodes within a bucket are equals, and the first by name wins, which is what
consolidates. With the exact gradient, or with random ties, the advantage over best fit is gone (`docs/explanation/traces.md`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np

from hekla.lib.quantity import QuantityError, to_milli
from hekla.placement.columns import CPU, FloatArray, IdArray, IntArray, Nodes
from hekla.placement.devices.shares import WHOLE
from hekla.placement.framework import plugin
from hekla.placement.kernels import active, fragmentation
from hekla.placement.registry import ArgumentError, as_float, as_whole
from hekla.placement.shape import Shape

GPU = "nvidia.com/gpu"
_PARTS_OF_MIX = 1_000_000
_MOST_GPUS = 64
_WIDTH = 1000.0  # thousandths of a GPU: growth by one GPU more or less leaves 27 or 73 of 100 buckets
_MOST_MODELS = 63


@dataclass(frozen=True, kw_only=True)
class PodKind:
    """One kind of pod in the mix."""

    share: float
    """How often it comes, beside the others."""

    cpu_milli: int = 0
    gpus: int = 0
    gpu_milli: int = WHOLE
    """Thousandths of each GPU."""

    models: tuple[str, ...] = ()
    """The models of GPU that it may use; none means any."""


USUAL = (
    PodKind(share=0.35, cpu_milli=12000, gpus=1),
    PodKind(share=0.13, cpu_milli=3000, gpus=1),
    PodKind(share=0.18, cpu_milli=3000, gpus=1, gpu_milli=810),
    PodKind(share=0.08, cpu_milli=12000, gpus=1, gpu_milli=650),
    PodKind(share=0.12, cpu_milli=10000, gpus=1, gpu_milli=470),
    PodKind(share=0.04, cpu_milli=4000, gpus=1, gpu_milli=320),
    PodKind(share=0.01, cpu_milli=64000, gpus=8),
    PodKind(share=0.09, cpu_milli=12000),
)
"""A mix where nobody gives one: roughly that of a production cluster which shares GPUs (Alibaba's, 2023)."""


class Mix:
    """Kinds of pods as arrays, which is what the kernel reads."""

    def __init__(self, kinds: Sequence[PodKind]) -> None:
        total = sum(kind.share for kind in kinds)
        self._kinds = kinds
        self.cpu = np.array([kind.cpu_milli for kind in kinds], np.int64)
        self.gpus = np.array([kind.gpus for kind in kinds], np.int64)
        self.milli = np.array([kind.gpu_milli for kind in kinds], np.int64)
        self.share = np.array([round(_PARTS_OF_MIX * kind.share / total) for kind in kinds], np.int64)
        self._masks: tuple[tuple[str, ...], IntArray] = ((), np.zeros(0, np.int64))

    def models(self, known: Mapping[str, int]) -> IntArray:
        """A mask of models per kind; a model that no node has is a bit of nobody's.  # [kind]"""
        names = tuple(known)
        if self._masks[0] != names or not len(self._masks[1]):
            masks = [self._mask(kind, known) for kind in self._kinds]
            self._masks = names, np.array(masks, np.int64)
        return self._masks[1]

    @staticmethod
    def _mask(kind: PodKind, known: Mapping[str, int]) -> int:
        bits = {known[name] % _MOST_MODELS for name in kind.models if name in known}
        return sum(1 << bit for bit in bits) if bits or not kind.models else -1 << _MOST_MODELS


@plugin
@dataclass(frozen=True, kw_only=True)
class Fgd:
    """Keeps GPUs usable for the pods that usually come."""

    weight: float = 1.0
    """How much this plug-in counts beside others."""

    buckets: int = 100
    """Into how many steps the score is rounded."""

    model_label: str = "nvidia.com/gpu.product"
    """The label that tells a node's model of GPU."""

    workload: tuple[PodKind, ...] = USUAL
    """The mix of pods that usually come."""

    def score_rows(self, nodes: Nodes, shape: Shape, rows: IntArray) -> FloatArray:
        """The less a node's GPUs would be fragmented, the better."""
        growth, _ = self._gradients(nodes, shape, rows)
        gpus = growth / float(_PARTS_OF_MIX)
        steps = np.floor(self.buckets / (1.0 + np.exp(np.clip(gpus / _WIDTH, -50, 50))))
        return (steps / self.buckets).astype(np.float32)

    def choose_device(self, nodes: Nodes, shape: Shape, row: int) -> int:
        """The GPU that leaves the node least fragmented; the first of equals."""
        _, device = self._gradients(nodes, shape, np.array([row], np.int64))
        return int(device[0])

    def lost(self, nodes: Nodes) -> float:
        """How many thousandths of GPUs are free and, on average over the mix, of no use."""
        rows, mix = np.flatnonzero(nodes.is_live), self._mix
        kinds = (mix.cpu, mix.gpus, mix.milli, mix.models(nodes.label_values(self.model_label)), mix.share)
        lost = fragmentation.lost(nodes.idle[CPU, rows], _left(nodes, rows), self._models(nodes, rows), kinds)
        return float(lost.sum()) / _PARTS_OF_MIX

    @classmethod
    def from_arguments(cls, arguments: Mapping[str, Any]) -> Self:
        """From `fgd.weight`, `fgd.buckets`, `fgd.modelLabel` and `fgd.workload`, a list of kinds."""
        kinds = arguments.get("fgd.workload")
        return cls(
            weight=as_float("fgd.weight", arguments.get("fgd.weight", 1)),
            buckets=as_whole("fgd.buckets", arguments.get("fgd.buckets", 100), low=1),
            model_label=str(arguments.get("fgd.modelLabel", cls.model_label)),
            workload=USUAL if kinds is None else _kinds(kinds),
        )  # fmt: skip

    @cached_property
    def _mix(self) -> Mix:
        return Mix(self.workload)

    def _gradients(self, nodes: Nodes, shape: Shape, rows: IntArray) -> tuple[IntArray, IdArray]:
        mix, growth, device = self._mix, np.empty(len(rows), np.int64), np.empty(len(rows), np.int32)
        asked = shape.gpu_milli or WHOLE * min(shape.request.get(GPU, 0), _MOST_GPUS + 1)
        active().gradients(
            nodes.idle[CPU, rows], _left(nodes, rows), self._models(nodes, rows), shape.request.get("cpu", 0), asked,
            mix.cpu, mix.gpus, mix.milli, mix.models(nodes.label_values(self.model_label)), mix.share, growth, device,
        )  # fmt: skip
        return growth, device

    def _models(self, nodes: Nodes, rows: IntArray) -> IntArray:
        """A bit for each node's model; 0 where it has none.  # [row]"""
        ids = nodes.label(self.model_label)[rows].astype(np.int64)
        return np.where(ids < 0, 0, np.int64(1) << (ids % _MOST_MODELS))


def _left(nodes: Nodes, rows: IntArray) -> IntArray:
    """What is left of each GPU: as booked where GPUs are shared, else as many whole ones as are idle.  # [device, row]"""
    booked, index = nodes.devices.left, nodes.resources.get(GPU)
    left: IntArray = booked[:, rows] if booked.size else np.zeros((0, len(rows)), np.int64)
    if index is not None:
        idle = np.clip(nodes.idle[index, rows], 0, _MOST_GPUS)
        whole = np.where(np.arange(idle.max(initial=0))[:, None] < idle, WHOLE, 0)
        left = np.concatenate([left, whole])
    return np.ascontiguousarray(left)


def _kinds(entries: Any) -> tuple[PodKind, ...]:
    """The mix as a configuration file gives it."""
    if not isinstance(entries, list) or not entries:
        raise ArgumentError(
            f"argument fgd.workload is {entries!r}; a list is expected, like [{{share: 0.5, cpu: 8, gpus: 1}}]"
        )
    kinds = tuple(_kind(entry) for entry in entries)
    if not sum(kind.share for kind in kinds) > 0:
        raise ArgumentError("argument fgd.workload has no share above 0; say how often each kind of pod comes")
    return kinds


def _kind(entry: Any) -> PodKind:
    known = {"share", "cpu", "gpus", "gpuMilli", "models"}
    if not isinstance(entry, Mapping) or set(entry) - known or "share" not in entry:
        raise ArgumentError(
            f"argument fgd.workload has the entry {entry!r}; a mapping with share and some of cpu, gpus, gpuMilli and "
            "models is expected"
        )
    milli = as_whole("fgd.workload.gpuMilli", entry.get("gpuMilli", WHOLE))
    gpus = as_whole("fgd.workload.gpus", entry.get("gpus", 1 if "gpuMilli" in entry else 0))
    if not 0 < milli <= WHOLE or (milli < WHOLE and gpus > 1):
        raise ArgumentError(
            f"argument fgd.workload has {gpus} GPUs of {milli} thousandths each; a part, from 1 to 999, is of one GPU"
        )
    try:
        cpu_milli = to_milli(str(entry.get("cpu", 0)))
    except QuantityError:
        raise ArgumentError(f"argument fgd.workload has cpu {entry['cpu']!r}; a quantity is expected") from None
    models = entry.get("models") or []
    names = [models] if isinstance(models, str) else models
    if not isinstance(names, list):
        raise ArgumentError(f"argument fgd.workload has models {models!r}; a name, or a list of them, is expected")
    return PodKind(
        share=as_float("fgd.workload.share", entry["share"]), cpu_milli=cpu_milli, gpus=gpus, gpu_milli=milli,
        models=tuple(str(name) for name in names),
    )  # fmt: skip
