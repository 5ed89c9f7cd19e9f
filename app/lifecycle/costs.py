"""What computing and bringing costs, as the profiles and the topology in force say."""

from typing import Protocol

from app.calibration.parts import Calibration
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


class CurrentCalibration(Protocol):
    """Where what was learnt from outcomes is read."""

    @property
    def current(self) -> Calibration: ...


class StoredCosts:
    """By the profiles as they are stored, with what was learnt of them."""

    def __init__(
        self,
        profiles: CurrentProfiles,
        topologies: CurrentTopology,
        calibration: CurrentCalibration,
    ) -> None:
        self._profiles = profiles
        self._topologies = topologies
        self._calibration = calibration

    def profile(self, model: str, hardware: str) -> Profile:
        """The one that fits best, calibrated; the built-in one where none does."""
        base = self._profiles.current.best(model, hardware).profile
        return self._calibration.current.profile(base, model, hardware)

    def links(self, base: Links) -> Links:
        """The links of a topology, calibrated."""
        return self._calibration.current.links(base)

    def of(self, model: str, engine_id: str | None) -> ProfileCosts:
        """For one target; its hardware is what the topology says of the engine."""
        topology = self._topologies.current
        engine = None if engine_id is None else topology.engines.get(engine_id)
        hardware = "" if engine is None else engine.hardware or ""
        return ProfileCosts(self.profile(model, hardware), self.links(topology.links), hardware)
