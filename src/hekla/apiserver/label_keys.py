"""Labels whose values a new pod takes from itself into its own selectors, as Kubernetes merges them when a pod is made,
after webhooks: what one of them makes of the labels is what counts.

`matchLabelKeys: [version]` on a pod with `version: a` becomes `version In (a)`: whoever places pods reads one selector.
"""

from collections.abc import Iterator

from hekla.api.meta import Document

_REQUIRED, _PREFERRED = (
    "requiredDuringSchedulingIgnoredDuringExecution",
    "preferredDuringSchedulingIgnoredDuringExecution",
)


def merge_label_keys(pod: Document) -> None:
    """Add the requirements that the pod's own labels make; those that are there already are not added again."""
    spec, labels = pod["spec"], pod["metadata"].get("labels")
    if not labels or not ("affinity" in spec or "topologySpreadConstraints" in spec):
        return
    for term in _terms(spec):
        selector = term.get("labelSelector")
        if selector is None:
            continue
        for field, operator in (("matchLabelKeys", "In"), ("mismatchLabelKeys", "NotIn")):
            for key in term.get(field, ()):
                _add(selector, key, operator, labels)


def _add(selector: Document, key: str, operator: str, labels: dict[str, str]) -> None:
    if key in labels:
        requirement = {"key": key, "operator": operator, "values": [labels[key]]}
        if requirement not in selector.get("matchExpressions", ()):
            selector["matchExpressions"] = [*selector.get("matchExpressions", ()), requirement]


def _terms(spec: Document) -> Iterator[Document]:
    for key in ("podAffinity", "podAntiAffinity"):
        affinity = spec.get("affinity", {}).get(key, {})
        yield from affinity.get(_REQUIRED, ())
        yield from (wish.get("podAffinityTerm", {}) for wish in affinity.get(_PREFERRED, ()))
    yield from spec.get("topologySpreadConstraints", ())
