"""What is refused in a JobFlow: a job that waits for one that is not there, or for itself, and two of one name."""

from hekla.apiserver.admission import AdmissionRequest, Reader
from hekla.workloads.graph import has_cycle


def refuse_job_flow(request: AdmissionRequest, reader: Reader) -> str:
    """Why a flow may not be written; empty if it may."""
    flows = (request.object or {}).get("spec", {}).get("flows") or []
    names = [flow["name"] for flow in flows]
    if twice := next((name for at, name in enumerate(names) if name in names[:at]), ""):
        # Volcano takes them for one (#5876): the second is never run.
        return f'spec.flows: Duplicate value: "{twice}": flow names must be unique; a template that is to run twice needs a copy'
    waits_for = {flow["name"]: (flow.get("dependsOn") or {}).get("targets") or [] for flow in flows}
    for targets in waits_for.values():
        for target in targets:
            if target not in waits_for:
                return f"jobflow Flow is not DAG: vertex is not defined: {target}"
    return "jobflow Flow is not DAG" if has_cycle(waits_for) else ""
