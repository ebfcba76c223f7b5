import itertools

import pytest

from hekla.testing.platform import running_platform

names = itertools.count()


@pytest.fixture(scope="session")
def platform():
    with running_platform() as started:
        yield started


@pytest.fixture
def namespace(platform):
    name = f"hostile-{next(names)}"
    assert platform.ask("POST", "/api/v1/namespaces", {"metadata": {"name": name}}).status == 201
    return name


@pytest.fixture(autouse=True)
def others_are_served(request):
    """Whatever was done to it, the platform answers others afterwards, and is the same process."""
    if "platform" not in request.fixturenames:
        yield
        return
    platform = request.getfixturevalue("platform")
    said = len(platform.log)
    yield
    assert not platform.has_ended, platform.log[-3000:]
    assert platform.ask("GET", "/readyz").status == 200
    assert "Traceback" not in platform.log[said:], platform.log[said:]
