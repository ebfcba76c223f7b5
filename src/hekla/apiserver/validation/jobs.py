"""What is wrong with Job and CronJob and with changes of them."""

from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from hekla.api.meta import Document
from hekla.apiserver.fielderrors import IMMUTABLE, FieldError, invalid, not_supported, required, too_long
from hekla.apiserver.validation import names
from hekla.apiserver.validation.cron_schedules import wrong_with_schedule
from hekla.apiserver.validation.job_policies import check_failure_policy, check_success_policy
from hekla.apiserver.validation.pods import check_pod_template
from hekla.apiserver.validation.selectors import check_label_selector, matches_labels
from hekla.apiserver.validation.workloads import check_counts

_KEPT = ("completionMode", "backoffLimitPerIndex", "podFailurePolicy", "successPolicy", "managedBy")
_MUTABLE_WHILE_SUSPENDED = ("nodeSelector", "tolerations", "affinity", "schedulingGates")
_CONTAINERS = ("containers", "initContainers")
_MOST_INDEXED = 100_000
_LONGEST_MANAGER = 63
_MANUAL = "`selector` not auto-generated"


def check_job(job: Document) -> list[FieldError]:
    """A job."""
    spec, metadata = job.get("spec", {}), job.get("metadata", {})
    errors = check_job_spec(spec, "spec")
    selector = spec.get("selector")
    if selector is None:
        errors.append(required("spec.selector"))
    errors += check_label_selector(selector, "spec.selector")
    labels = spec.get("template", {}).get("metadata", {}).get("labels", {})
    if selector is None or not matches_labels(selector, labels):  # no selector selects nothing
        errors.append(invalid("spec.template.metadata.labels", labels, "`selector` does not match template `labels`"))
    if not spec.get("manualSelector"):
        errors += _check_generated(labels, selector or {}, metadata)
    return errors


def check_new_job(job: Document) -> list[FieldError]:
    """A job whose pods are numbered gives them names that can be host names."""
    spec, name = job.get("spec", {}), job["metadata"].get("name", "")
    if spec.get("completionMode") != "Indexed" or not name or not spec.get("completions"):
        return []
    last = f"{name}-{spec['completions'] - 1}"
    said = f"will not able to create pod with invalid DNS label: {last}"
    return [invalid("metadata.name", name, said)] if names.dns_label(last) else []


def _check_generated(labels: dict[str, str], selector: Document, metadata: Document) -> list[FieldError]:
    expected = {
        f"{head}{key}": value
        for key, value in (("controller-uid", metadata.get("uid", "")), ("job-name", metadata.get("name", "")))
        for head in ("batch.kubernetes.io/", "")
    }
    errors = []
    for key, wanted in expected.items():
        where, said = f"spec.template.metadata.labels[{key}]", f"must be '{wanted}'"
        if key not in labels:
            errors.append(required(where, said))
        elif labels[key] != wanted:
            errors.append(invalid(where, dict(sorted(labels.items())), said))
    if not matches_labels(selector, expected):
        errors.append(invalid("spec.selector", selector, _MANUAL))
    return errors


def check_job_spec(spec: Document, path: str) -> list[FieldError]:
    """What runs, how often, how parallel."""
    errors = check_counts(
        spec, path, "parallelism", "completions", "activeDeadlineSeconds", "backoffLimit", "ttlSecondsAfterFinished",
        "backoffLimitPerIndex", "maxFailedIndexes",
    )  # fmt: skip
    errors += _check_mode(spec, path) + check_failure_policy(spec, path) + check_success_policy(spec, path)
    errors += _check_manager(spec, path)
    errors += check_pod_template(spec.get("template", {}), f"{path}.template")
    policy = spec.get("template", {}).get("spec", {}).get("restartPolicy", "")
    where = f"{path}.template.spec.restartPolicy"
    if policy in ("", "Always"):
        errors.append(required(where, 'valid values: "OnFailure", "Never"'))
    elif policy not in ("OnFailure", "Never"):
        errors.append(not_supported(where, policy, ("OnFailure", "Never")))
    elif "podFailurePolicy" in spec and policy != "Never":
        errors.append(invalid(where, policy, 'only "Never" is supported when podFailurePolicy is specified'))
    return errors


def _check_mode(spec: Document, path: str) -> list[FieldError]:
    mode, errors = spec.get("completionMode"), []
    if mode is not None and mode not in ("NonIndexed", "Indexed"):
        return [not_supported(f"{path}.completionMode", mode, ("NonIndexed", "Indexed"))]
    if mode == "Indexed":
        if spec.get("completions") is None:
            errors.append(required(f"{path}.completions", "when completion mode is Indexed"))
        elif spec.get("parallelism", 0) > _MOST_INDEXED:
            errors.append(
                invalid(
                    f"{path}.parallelism",
                    spec["parallelism"],
                    f"must be less than or equal to {_MOST_INDEXED} when completion mode is Indexed",
                )
            )
    elif "backoffLimitPerIndex" in spec:
        errors.append(
            invalid(f"{path}.backoffLimitPerIndex", spec["backoffLimitPerIndex"], "requires indexed completion mode")
        )
    return errors + _check_failed_indexes(spec, path) + _check_replacement(spec, path)


def _check_failed_indexes(spec: Document, path: str) -> list[FieldError]:
    most, where = spec.get("maxFailedIndexes"), f"{path}.maxFailedIndexes"
    if most is None:
        return []
    errors = []
    if "backoffLimitPerIndex" not in spec:
        errors.append(required(f"{path}.backoffLimitPerIndex", "when maxFailedIndexes is specified"))
    if spec.get("completionMode") != "Indexed":
        errors.append(invalid(where, most, "requires indexed completion mode"))
    elif spec.get("completions") is not None:
        if most > spec["completions"]:
            errors.append(invalid(where, most, "must be less than or equal to completions"))
        if most > _MOST_INDEXED:
            errors.append(invalid(where, most, f"must be less than or equal to {_MOST_INDEXED}"))
    return errors


def _check_replacement(spec: Document, path: str) -> list[FieldError]:
    policy = spec.get("podReplacementPolicy")
    # a failed pod is counted before another takes its place where failures are looked at one by one
    allowed = ("Failed",) if "podFailurePolicy" in spec else ("Failed", "TerminatingOrFailed")
    return (
        [] if policy is None or policy in allowed else [not_supported(f"{path}.podReplacementPolicy", policy, allowed)]
    )


def _check_manager(spec: Document, path: str) -> list[FieldError]:
    name, where = spec.get("managedBy"), f"{path}.managedBy"
    if name is None:
        return []
    if not name:
        return [required(where)]
    errors = list[FieldError]()
    domain, slash, rest = name.partition("/")
    if not slash or not rest:
        errors.append(invalid(where, name, 'must be a domain-prefixed path (such as "acme.io/foo")'))
    else:
        errors += [invalid(where, domain, said) for said in names.dns_subdomain(domain)]
    return [*errors, too_long(where, _LONGEST_MANAGER)] if len(name) > _LONGEST_MANAGER else errors


def check_job_update(new: Document, old: Document) -> list[FieldError]:
    """A job's selector and template stay; while it is suspended its pods may be placed otherwise."""
    wanted, before = new["spec"], old["spec"]
    errors = []
    if wanted.get("selector") != before.get("selector"):
        errors.append(invalid("spec.selector", wanted.get("selector"), IMMUTABLE))
    errors += _check_completions_kept(wanted, before)
    errors += [
        invalid(f"spec.{key}", wanted.get(key), IMMUTABLE) for key in _KEPT if wanted.get(key) != before.get(key)
    ]
    if _template(wanted, old) != _template(before, old):
        errors.append(invalid("spec.template", wanted.get("template"), IMMUTABLE))
    return errors


def _check_completions_kept(wanted: Document, before: Document) -> list[FieldError]:
    """A job whose pods are numbered may grow and shrink, as many at once as there are."""
    count = wanted.get("completions")
    if count == before.get("completions"):
        return []
    if wanted.get("completionMode") != "Indexed" or count is None or before.get("completions") is None:
        return [invalid("spec.completions", count, IMMUTABLE)]
    tandem = "can only be modified in tandem with spec.parallelism"
    return [] if count == wanted.get("parallelism") else [invalid("spec.completions", count, tandem)]


def _template(spec: Document, old: Document) -> Document:
    """The template without what a suspended job that runs no pod may still change."""
    template: Document = spec.get("template", {})
    if not old["spec"].get("suspend") or old.get("status", {}).get("startTime"):
        return template
    metadata = {
        key: value for key, value in template.get("metadata", {}).items() if key not in ("labels", "annotations")
    }
    pod = {key: value for key, value in template.get("spec", {}).items() if key not in _MUTABLE_WHILE_SUSPENDED}
    for key in _CONTAINERS:
        if key in pod:
            pod[key] = [{name: value for name, value in one.items() if name != "resources"} for one in pod[key]]
    return {"metadata": metadata, "spec": pod}


def check_cron_job(cron_job: Document) -> list[FieldError]:
    """A cron job."""
    spec = cron_job.get("spec", {})
    errors = _check_schedule(spec.get("schedule", ""))
    errors += check_counts(
        spec, "spec", "startingDeadlineSeconds", "successfulJobsHistoryLimit", "failedJobsHistoryLimit"
    )
    policy = spec.get("concurrencyPolicy", "")
    if policy not in ("Allow", "Forbid", "Replace"):
        errors.append(not_supported("spec.concurrencyPolicy", policy, ("Allow", "Forbid", "Replace")))
    job = spec.get("jobTemplate", {}).get("spec", {})
    errors += check_job_spec(job, "spec.jobTemplate.spec")
    if job.get("manualSelector"):
        errors.append(not_supported("spec.jobTemplate.spec.manualSelector", True, ("nil", "false")))
    if "selector" in job:
        errors.append(invalid("spec.jobTemplate.spec.selector", job["selector"], "`selector` will be auto-generated"))
    errors += _check_time_zone(spec.get("timeZone"))
    name = cron_job.get("metadata", {}).get("name", "")
    if len(name) > 52:  # the time is appended to name the job
        errors.append(invalid("metadata.name", name, "must be no more than 52 characters"))
    return errors


def _check_time_zone(name: str | None) -> list[FieldError]:
    if name is None:
        return []
    if not name:
        return [invalid("spec.timeZone", name, "timeZone must be nil or non-empty string")]
    errors = []
    if name.lower() == "local":
        said = "timeZone must be an explicit time zone as defined in https://www.iana.org/time-zones"
        errors.append(invalid("spec.timeZone", name, said))
    if name == "Local":
        return errors  # Go knows a zone of that name
    try:
        ZoneInfo(name)
    except (ValueError, OSError, ZoneInfoNotFoundError):
        errors.append(invalid("spec.timeZone", name, f"unknown time zone {name}"))
    return errors


def _check_schedule(schedule: str) -> list[FieldError]:
    if not schedule:
        return [required("spec.schedule")]
    if "TZ" in schedule:
        said = "cannot use TZ or CRON_TZ in schedule, use timeZone field instead"
        return [invalid("spec.schedule", schedule, said)]
    wrong = wrong_with_schedule(schedule)
    if wrong or schedule.startswith("@"):
        return [invalid("spec.schedule", schedule, wrong)] if wrong else []
    from croniter import croniter  # 25 ms that a start without cron jobs need not wait for

    if not croniter.is_valid(schedule.replace("?", "*")):  # it is what reads the schedule later
        return [invalid("spec.schedule", schedule, f"failed to parse schedule {schedule}")]
    return []
