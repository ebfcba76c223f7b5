from collections.abc import Iterator

import pytest

from hekla.placement import kernels
from hekla.placement.kernels import twin


@pytest.fixture(autouse=True)
def plain_kernels() -> Iterator[None]:
    """Every test begins with the plain kernels, whatever another has switched on."""
    kernels.use(twin)
    yield
    kernels.use(twin)
