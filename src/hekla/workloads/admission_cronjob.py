"""What Volcano refuses in a CronJob: a schedule or time zone that cannot be read, a name too long for its jobs, and a
template of which no job could be made (`admission_job.py`).
"""

import copy
import re
from collections.abc import Iterator
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec

from hekla.api.meta import Document
from hekla.api.volcano import Job
from hekla.apiserver.admission import AdmissionRequest, Reader
from hekla.apiserver.validation.cron_schedules import wrong_with_schedule
from hekla.apiserver.validation.names import qualified_name
from hekla.lib.schedule import ScheduleError, check
from hekla.workloads.admission_job import job_errors
from hekla.workloads.admission_job_defaults import complete
from hekla.workloads.ours import Ours

MAX_NAME = 52
"""A job's name is its CronJob's, a dash and ten digits; together they must fit 63."""

SUFFIX_DIGITS = 8
"""Minutes since 1970, until 2160."""

_ZONE_PART = re.compile(r"[A-Za-z._0-9+\-]{1,14}")


def refuse_cron_job(request: AdmissionRequest, reader: Reader, ours: Ours) -> str:
    """Why a CronJob may not be written; empty if it may."""
    document = request.object or {}
    spec = document.get("spec") or {}
    said = (_wrong_schedule(spec.get("schedule", "")) + "".join(_wrong_zone(spec))).strip()
    name = document.get("metadata", {}).get("name", "")
    of_name = _wrong_name(name)
    skips_jobs = of_name or _keeps_template(request)
    of_jobs = "" if skips_jobs else _wrong_template(name, spec.get("jobTemplate") or {}, reader, ours)
    return "; ".join(one for one in (said, of_jobs, of_name) if one)


def _keeps_template(request: AdmissionRequest) -> bool:
    """Whether a change leaves the template as it is: its queue may have closed since, which must not hold up a suspension."""
    old = ((request.old or {}).get("spec") or {}).get("jobTemplate")
    return old is not None and old == (request.object or {}).get("spec", {}).get("jobTemplate")


def _wrong_template(name: str, template: Document, reader: Reader, ours: Ours) -> str:
    """What would be said of the first job, named with the digits of this decade."""
    spec = copy.deepcopy(template.get("spec") or {})
    complete(spec, ours, reader)
    metadata = {**(template.get("metadata") or {}), "name": f"{name}-{'0' * SUFFIX_DIGITS}"}
    return job_errors(msgspec.convert({"metadata": metadata, "spec": spec}, Job), reader).strip()


def _wrong_schedule(schedule: str) -> str:
    if not schedule:
        return " schedule is required, but got empty"
    if "TZ" in schedule:
        return " schedule should not contain TZ or CRON_TZ, TZ should only be set in the timeZone field"
    return "" if _is_schedule(schedule) else "schedule is not a valid cron expression"


def _is_schedule(schedule: str) -> bool:
    """What reads schedules here knows more words (`L`, 7 for Sunday) than the parser that Volcano and Kubernetes have."""
    if wrong_with_schedule(schedule):
        return False
    try:
        check(schedule)
    except ScheduleError:
        return False
    return True


def _wrong_zone(spec: Document) -> Iterator[str]:
    zone = spec.get("timeZone")
    if zone is None:
        return
    if not zone:
        yield " timeZone must be nil or non-empty string, got empty string"
        return
    for part in zone.split("/"):
        if part in (".", "..") or part.startswith("-") or not _ZONE_PART.fullmatch(part):
            yield " unknown timeZone"
    if zone.lower() == "local":
        yield " timeZone can't be Local, and must be defined in https://www.iana.org/time-zones"
    elif not _exists(zone):
        yield " invalid timeZone"


def _exists(zone: str) -> bool:
    try:
        ZoneInfo(zone)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return False
    return True


def _wrong_name(name: str) -> str:
    if len(name) > MAX_NAME:
        return f"cronJob name must be no more than {MAX_NAME} characters to accommodate job name suffix (max 63 total)"
    if sentences := qualified_name(name):
        return f'invalid cronJob name "{name}": {"; ".join(sentences)}'
    return ""
