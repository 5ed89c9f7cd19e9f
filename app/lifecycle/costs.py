"""What computing and bringing costs, as the profiles and the topology in force say."""

from typing import Protocol

from app.planner.links import Links
from app.planner.profile import Profile
from app.planner.transfer_costs import ProfileCosts
from app.profiles.provider import Profiles
from app.topology.topology_provider import Topology


class CurrentProfiles(Protocol):
    """Where the profiles in force are read."""

    @property
    def current(self) -> Profiles: ...


class CurrentTopology(Protocol):
    """Where the topology in force is read."""

    @property
    def current(self) -> Topology: ...


class StoredCosts:
    """By the profiles as they are stored."""

    def __init__(self, profiles: CurrentProfiles, topologies: CurrentTopology) -> None:
        self._profiles = profiles
        self._topologies = topologies

    def profile(self, model: str, hardware: str) -> Profile:
        """The one that fits best; the built-in one where none does."""
        return self._profiles.current.best(model, hardware).profile

    def of(self, model: str, engine_id: str | None) -> ProfileCosts:
        """For one target; its hardware is what the topology says of the engine."""
        topology = self._topologies.current
        engine = None if engine_id is None else topology.engines.get(engine_id)
        hardware = "" if engine is None else engine.hardware or ""
        links: Links = topology.links
        return ProfileCosts(self.profile(model, hardware), links)
