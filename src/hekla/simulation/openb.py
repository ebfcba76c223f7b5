"""Reads Alibaba's openb traces (GPU clusters of 2023): nodes, pods with parts of GPUs, and the mix that pods are of.

The columns are those of `openb_node_list_*.csv` and `openb_pod_list_*.csv` as published with the FGD paper. GPUs are
offered and asked for as thousandths (`placement/devices/shares.py`).
"""

import csv
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from hekla.placement.columns import NodeSpec
from hekla.placement.constraint import NO_CONSTRAINTS, Constraints, NodeTerm, Operator, Requirement
from hekla.placement.devices.shares import GPU_MILLI, WHOLE
from hekla.placement.model import TaskSpec
from hekla.placement.plugins.fgd import PodKind
from hekla.simulation.trace import TraceError, amount

MODEL_LABEL = "gpu-model"
TYPICAL_SHARE = 0.95
"""How much of the pods the mix covers: the rarest kinds are left out, as in the paper."""

_MIB = 1 << 20
_PODS = 256


def read_nodes(lines: Iterable[str]) -> Iterator[NodeSpec]:
    """The nodes of a `sn,cpu_milli,memory_mib,gpu,model` file."""
    for number, row in enumerate(csv.DictReader(lines), start=2):
        gpus = amount(row, "gpu", number)
        allocatable = {
            "cpu": amount(row, "cpu_milli", number), "memory": amount(row, "memory_mib", number) * _MIB, "pods": _PODS,
            GPU_MILLI: gpus * WHOLE,
        }  # fmt: skip
        labels = {MODEL_LABEL: row["model"]} if row.get("model") else {}
        yield NodeSpec(name=row["sn"], allocatable=allocatable, labels=labels)


def read_pods(lines: Iterable[str]) -> Iterator[TaskSpec]:
    """The pods of a `name,cpu_milli,memory_mib,num_gpu,gpu_milli[,gpu_spec,...]` file."""
    for number, row in enumerate(csv.DictReader(lines), start=2):
        gpus, milli = amount(row, "num_gpu", number), amount(row, "gpu_milli", number)
        if gpus == 1 and not 0 < milli <= WHOLE:
            raise TraceError(f"line {number}: gpu_milli is {milli}; from 1 to {WHOLE} of one GPU can be asked for")
        request = {"cpu": amount(row, "cpu_milli", number), "memory": amount(row, "memory_mib", number) * _MIB}
        if gpus:
            request[GPU_MILLI] = milli if gpus == 1 else gpus * WHOLE
        models = tuple(sorted(model for model in (row.get("gpu_spec") or "").split("|") if model))
        yield TaskSpec(uid=row["name"], name=row["name"], request=request, constraints=_of_models(models))


def mix_of(pods: Sequence[TaskSpec]) -> tuple[PodKind, ...]:
    """The kinds of pods that most are of, with their shares: what `fgd` weighs fragmentation by.

    Of kinds that are equally many the larger come first, as with the paper's authors: where many are rare, as on cpu250, which
    of them are left out is half a point of allocation.
    """
    counts = Counter((_kind_of(pod)) for pod in pods)
    kinds, covered = list[PodKind](), 0
    for (cpu_milli, gpus, milli, models), count in sorted(counts.items(), key=_by_number_and_size, reverse=True):
        if covered >= TYPICAL_SHARE * len(pods):
            break
        covered += count
        kinds.append(PodKind(share=count, cpu_milli=cpu_milli, gpus=gpus, gpu_milli=milli, models=models))
    return tuple(kinds)


_KindOfPod = tuple[int, int, int, tuple[str, ...]]
"""(cpu, GPUs, thousandths of each, models)"""


def _by_number_and_size(entry: tuple[_KindOfPod, int]) -> tuple[int, int, int, int, str]:
    (cpu_milli, gpus, milli, models), count = entry
    return count, cpu_milli, milli if gpus else 0, gpus, "|".join(models)


def _kind_of(pod: TaskSpec) -> _KindOfPod:
    asked = pod.request.get(GPU_MILLI, 0)
    terms = pod.constraints.node_affinity or ()
    models = terms[0].labels[0].values if terms else ()
    gpus = -(-asked // WHOLE)
    return pod.request["cpu"], gpus, asked if 0 < asked < WHOLE else WHOLE, models


def _of_models(models: tuple[str, ...]) -> Constraints:
    if not models:
        return NO_CONSTRAINTS
    return Constraints(node_affinity=(NodeTerm(labels=(Requirement(MODEL_LABEL, Operator.IN, models),)),))
