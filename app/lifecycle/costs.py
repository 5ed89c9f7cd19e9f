"""What computing and bringing costs, as the profiles in force say."""

from app.planner.profile import Profile
from app.profiles.provider import ProfileProvider


class StoredCosts:
    """By the profiles as they are stored."""

    def __init__(self, profiles: ProfileProvider) -> None:
        self._profiles = profiles

    def profile(self, model: str, hardware: str) -> Profile:
        """The one that fits best; the built-in one where none does."""
        return self._profiles.current.best(model, hardware).profile
