import pytest
from fake import FakeEngine


@pytest.fixture
def fake() -> FakeEngine:
    return FakeEngine()
