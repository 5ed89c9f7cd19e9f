"""What tests of profiles share."""

import pytest

from app.clock import SystemClock
from app.db.session import Database
from app.planner.profile import Profile
from app.profiles.document import read_profile
from app.profiles.provider import ProfileProvider
from app.profiles.store import ProfileStore
from app.settings import REFERENCE_PROFILE_FILE


@pytest.fixture(scope="session")
def reference() -> Profile:
    return read_profile(REFERENCE_PROFILE_FILE.read_bytes())


@pytest.fixture
def store(database: Database) -> ProfileStore:
    return ProfileStore(database, SystemClock())


@pytest.fixture
def provider(database: Database, reference: Profile) -> ProfileProvider:
    return ProfileProvider(database, reference, SystemClock())
