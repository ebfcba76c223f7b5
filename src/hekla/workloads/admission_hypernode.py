"""What Volcano refuses in a HyperNode beyond its schema: no members, a pattern that does not compile."""

import re
from collections.abc import Iterator

from hekla.apiserver.admission import AdmissionRequest, Reader
from hekla.apiserver.fielderrors import shown
from hekla.apiserver.webhook_rule import aggregate


def refuse_hyper_node(request: AdmissionRequest, reader: Reader) -> str:
    """Why a HyperNode may not be written; empty if it may."""
    members = (request.object or {}).get("spec", {}).get("members") or []
    if not members:
        return "spec.members: Invalid value: null: member must have at least one member"
    patterns = [((one.get("selector") or {}).get("regexMatch") or {}).get("pattern", "") for one in members]
    return aggregate(list(_broken(patterns)))


def _broken(patterns: list[str]) -> Iterator[str]:
    for pattern in patterns:
        try:
            re.compile(pattern)
        except re.error as error:
            why = f"error parsing regexp: {error.msg}: `{pattern}`"
            told = f"member regexMatch pattern is invalid: {why}"
            yield f"spec.members.selector.regexMatch.pattern: Invalid value: {shown(pattern)}: {told}"
