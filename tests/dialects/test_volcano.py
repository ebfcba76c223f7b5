"""PodGroups as jobs: what of them quotas may bound."""

import msgspec
import pytest

from hekla.api.volcano.scheduling import PodGroup
from hekla.dialects.surroundings import EmptySurroundings
from hekla.dialects.volcano import job_spec


@pytest.mark.parametrize(
    ("asked", "bounded_by"),
    [
        (None, {}),
        ({"cpu": "4", "nvidia.com/gpu": "2"}, {"cpu": 4000, "requests.cpu": 4000, "requests.nvidia.com/gpu": 2, "pods": 3}),
        ({"cpu": "4", "requests.cpu": "3", "limits.cpu": "8", "pods": "5"}, {"requests.cpu": 3000, "limits.cpu": 8000, "pods": 5}),
    ],
)  # fmt: skip
def test_a_minimum_is_bounded_by_quotas_of_requests_and_pods(
    asked: dict[str, str] | None, bounded_by: dict[str, int]
) -> None:
    """A quota of `requests.cpu`, the usual kind, kept no gang of ours outside: its pods were refused when they were made."""
    document = {"spec": {"minMember": 3, "minResources": asked}}
    found = job_spec(msgspec.convert(document, PodGroup), EmptySurroundings())
    assert bounded_by.items() <= found.quota_asked.items()
    assert bool(found.quota_asked) is bool(bounded_by)
    assert not any(name.startswith(("requests.", "limits.", "count/")) for name in found.min_resources or {})
