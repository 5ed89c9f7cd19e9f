"""What the index's tests share."""

import pytest

from app.index.matcher import StateIndex
from app.index.scopes import TenantHashing
from tests.index.rows import SECRET


@pytest.fixture
def index() -> StateIndex:
    return StateIndex(TenantHashing(SECRET))
