"""What the tests of workers share."""

import pytest

from tests.topology.workers import Replica


@pytest.fixture
def here(database) -> Replica:
    return Replica(database)


@pytest.fixture
def there(database) -> Replica:
    return Replica(database)
