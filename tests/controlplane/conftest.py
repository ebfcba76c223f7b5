from datetime import UTC, datetime

import pytest

NOW = datetime(2026, 1, 1, 0, 10, tzinfo=UTC)


@pytest.fixture
def now():
    return NOW
