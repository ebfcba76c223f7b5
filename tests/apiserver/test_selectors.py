import pytest

from hekla.apiserver.selectors import label_selector, object_selector
from hekla.apiserver.status import StatusError

LABELS = {"app": "web", "tier": "front", "n": "7"}


@pytest.mark.parametrize(
    ("text", "matches"),
    [
        ("", True),
        ("app=web", True),
        ("app==web,tier!=back", True),
        ("app!=web", False),
        ("absent!=web", True),
        ("app in (web, api)", True),
        ("app notin (web)", False),
        ("absent notin (web)", True),
        ("app", True),
        ("!app", False),
        ("!absent", True),
        ("n>5", True),
        ("n<5", False),
        ("app>5", False),
        ("app=", False),
        ("example.com/role", False),
        ("in in (x)", False),
    ],
)
def test_a_selector_means_what_kubernetes_means_by_it(text: str, matches: bool) -> None:
    assert label_selector(text).matches(LABELS) is matches


@pytest.mark.parametrize("text", ["app===x", "app in x", "app in (x", "=x", "a b", "app,", "app=!x", "-bad=x", "n>x"])
def test_a_selector_that_makes_no_sense_is_refused(text: str) -> None:
    with pytest.raises(StatusError) as refused:
        label_selector(text)
    assert refused.value.code == 400


def test_an_object_selector_needs_all_its_parts() -> None:
    said = {"matchLabels": {"app": "web"}, "matchExpressions": [{"key": "tier", "operator": "In", "values": ["front"]}]}
    selector = object_selector(said)
    assert selector is not None
    assert selector.matches(LABELS)
    assert not selector.matches({"app": "web"})
    assert object_selector(None) is None
