"""An explanation in words: one screen that says what a job waits for, and what would let it start."""

from collections.abc import Iterator
from typing import Any

from hekla.cli.counting import counted
from hekla.cli.output import columns_text
from hekla.cli.why_below import MOST_REFUSALS
from hekla.cli.why_broken import lines_of, when

MOST_PODS_NAMED = 5

PARTS_OF_A_QUOTA = (
    "gangs that each hold a part of a quota wait for one another; "
    "the scheduler's plug-in resourcequota lets in only those that a quota has room for"
)


def why_text(found: dict[str, Any]) -> str:
    """The explanation as people read it."""
    return "\n".join(_lines(found))


def queue_text(found: dict[str, Any]) -> str:
    """The explanation of a queue as people read it."""
    return "\n".join(_queue_lines(found))


def _queue_lines(found: dict[str, Any]) -> Iterator[str]:
    queue = found["queue"]
    yield f"queue/{queue['name']} is {found['verdict'].lower()}: {_running(queue['running'])}, {queue['waiting']} wait"
    yield f"  weight {queue['weight']}, priority {queue['priority']}, below {queue['parent'] or 'nobody'}"
    if found["amounts"]:
        columns = ("held", "asked", "guarantee", "deserved", "capability")
        rows = [(f"  {one['resource']}", *(one.get(key, "-") for key in columns)) for one in found["amounts"]]
        yield ""
        yield columns_text(["  resource", *columns], rows)
    if found["jobs"]:
        yield from ("", "Who waits, the next one first")
        yield from (f"  {one['job']}" + (f": {one['message']}" if one["message"] else "") for one in found["jobs"])
    if found["remedies"]:
        yield from ("", "Any one of these would let the first of them start (tried on a copy of the cluster)")
        yield from (f"  - {one['message']}" for one in found["remedies"])


def _running(jobs: int) -> str:
    return f"{counted(jobs, 'job')} {'runs' if jobs == 1 else 'run'}"


def _lines(found: dict[str, Any]) -> Iterator[str]:
    verdict = {"Placed": "does not wait", "Starts": "is about to start", "Waits": "waits"}[found["verdict"]]
    yield (
        f"{found['metadata']['name'].replace('.', '/', 1)} in namespace {found['metadata']['namespace']} {verdict}"
        + (" and fails" if found.get("broken") else "")
    )
    yield ""
    yield from (f"  {name:<8}{text}" for name, text in _facts(found) if text)
    yield from _lost(found)
    yield from _why(found)
    yield from _evictions(found)
    yield from _remedies(found)
    if found.get("broken"):
        yield from lines_of({"broken": found["broken"], "failures": ()})
    yield from _transitions(found)


def _lost(found: dict[str, Any]) -> Iterator[str]:
    """The nodes below it that do not answer; a server of an older version says nothing."""
    if found.get("lostNodes"):
        yield from ("", "On nodes that do not answer")
        yield from (f"  {_named(one['pods'])}: {one['message']}" for one in found["lostNodes"])


def _named(pods: list[str]) -> str:
    more = len(pods) - MOST_PODS_NAMED
    return f"pod{'s' if len(pods) > 1 else ''} {', '.join(pods[:MOST_PODS_NAMED])}" + (
        f" and {more} more" if more > 0 else ""
    )


def _facts(found: dict[str, Any]) -> Iterator[tuple[str, str]]:
    queue, gang = found["queue"], found["gang"]
    yield "phase", found["phase"]
    place = f", place {queue['place']} of {queue['waiting']} that wait" if "place" in queue else ""
    ahead = f"; ahead: {', '.join(queue['ahead'])}" if queue.get("ahead") else ""
    yield "queue", f"{queue['name']}{place}{ahead}"
    counts = ", ".join(f"{count} {status}" for status, count in gang["statuses"].items()) or "none made yet"
    yield "pods", f"{gang['pods']} ({counts}); {gang['minAvailable']} must run together"
    if found["verdict"] == "Waits" and not found["refusal"]:
        yield "gang", f"{gang['placeable']} of the {gang['missing']} pods that are missing fit"


def _why(found: dict[str, Any]) -> Iterator[str]:
    nodes = found["nodes"]
    if found["verdict"] != "Waits":
        return
    yield from ("", "Why")
    if found["refusal"]:
        yield f"  {found['refusal']['message']}"
    yield from (f"  refused {one['message']} ({when(one)})" for one in found.get("refusals", ())[:MOST_REFUSALS])
    if _holds_part_of_a_quota(found):
        yield f"  {PARTS_OF_A_QUOTA}"
    if found.get("reserved"):  # a server of an older version says nothing of it
        yield f"  {found['reserved']}"
    yield from (f"  {lack['message']}" for lack in found["lacks"])
    if nodes and "message" in nodes:
        yield f"  {nodes['message']}"
    elif nodes:
        yield f"  pod {found['pod']} finds no node, {nodes['count']} looked at:"
        reasons = sorted(nodes["reasons"], key=lambda reason: (-reason["nodes"], reason["message"]))
        rows = [(f"    {one['nodes']}", one["message"], _some(one)) for one in reasons]
        yield columns_text(["", "", ""], rows, show_headers=False)


def _holds_part_of_a_quota(found: dict[str, Any]) -> bool:
    """Whether some pods of a gang are made, and a quota refuses the others."""
    is_begun = bool((found.get("gang") or {}).get("pods"))
    return is_begun and any("exceeded quota: " in one["message"] for one in found.get("refusals", ()))


def _evictions(found: dict[str, Any]) -> Iterator[str]:
    """What the actions find that evict for others; a server of an older version says nothing."""
    if not found.get("evictions"):
        return
    yield from ("", "Evicting others for it")
    for one in found["evictions"]:
        yield f"  {one['action'] + ': ' if one['action'] else ''}{one['message']}"
        rows = [(f"    {kept['pods']}", kept["message"]) for kept in one["kept"]]
        if rows:
            yield columns_text(["", ""], rows, show_headers=False)


def _some(reason: dict[str, Any]) -> str:
    """`n1, n2, n3 and 5 more`."""
    more = reason["nodes"] - len(reason["examples"])
    return ", ".join(reason["examples"]) + (f" and {more} more" if more > 0 else "")


def _remedies(found: dict[str, Any]) -> Iterator[str]:
    if found["remedies"]:
        yield from ("", "Any one of these would let it start (tried on a copy of the cluster)")
        yield from (f"  - {one['message']}" for one in found["remedies"])
    elif found["verdict"] == "Waits" and not found["refusal"]:
        yield from ("", "No single change that was tried would let it start.")


def _transitions(found: dict[str, Any]) -> Iterator[str]:
    if found["transitions"]:
        yield from ("", "Lately")
        rows = [(f"  {one['time']}", one["of"], one["condition"], one["reason"]) for one in found["transitions"]]
        yield columns_text(["", "", "", ""], rows, show_headers=False)
