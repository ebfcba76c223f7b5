"""What Volcano refuses in a pod of its own (disruption budgets that make no sense), and the gate it may be given."""

import re

from hekla.apiserver.admission import AdmissionRequest, Reader
from hekla.lib.digits import whole_number
from hekla.workloads import keys
from hekla.workloads.ours import Ours

_BUDGETS = (keys.JDB_MIN_AVAILABLE, keys.JDB_MAX_UNAVAILABLE)


def gate_pod(request: AdmissionRequest, reader: Reader, ours: Ours) -> None:
    """Hold back a pod that asks for it until its queue has room."""
    pod = request.object or {}
    wish = (pod.get("metadata", {}).get("annotations") or {}).get(keys.QUEUE_ALLOCATION_GATE)
    if wish != "true" or pod["spec"].get("schedulerName") not in ours.schedulers:
        return
    gates = pod["spec"].setdefault("schedulingGates", [])
    if all(gate.get("name") != keys.QUEUE_ALLOCATION_GATE for gate in gates):
        gates.append({"name": keys.QUEUE_ALLOCATION_GATE})


def refuse_pod(request: AdmissionRequest, reader: Reader, ours: Ours) -> str:
    """Why a pod may not be created; empty if it may."""
    pod = request.object or {}
    if pod.get("spec", {}).get("schedulerName") not in ours.schedulers:
        return ""
    notes = pod.get("metadata", {}).get("annotations") or {}
    given = [key for key in _BUDGETS if key in notes]
    for key in given:
        if said := _wrong_budget(key, notes[key]):
            return said
    if len(given) > 1:
        return f"not allow configure multiple annotations <[{' '.join(_BUDGETS)}]> at same time"
    return ""


def _wrong_budget(key: str, value: str) -> str:
    if re.fullmatch(r"[+-]?[0-9]+", value):
        return "" if _number(value) > 0 else f'invalid value <"{value}"> for {key}, it must be a positive integer'
    # Volcano reads "5%0%" as 50 percent; one sign, at the end, is a percentage here.
    number = value.removesuffix("%")
    if not re.fullmatch(r"[+-]?[0-9]+", number):
        return f'invalid value strconv.Atoi: parsing "{number}": invalid syntax for {key}'
    if 0 < _number(number) < 100:
        return ""
    return f'invalid value <"{value}"> for {key}, it must be a valid percentage which between 1% ~ 99%'


def _number(text: str) -> int:
    """What a signed number says; below 0 also where it has more digits than any that is meant."""
    number = whole_number(text.lstrip("+-"))
    return -1 if number is None or text.startswith("-") else number
