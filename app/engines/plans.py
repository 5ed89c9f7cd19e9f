"""What queries with equal filters have in common: whom they ask, and in which spaces.

It depends on registrations and open streams alone, so that a query itself is a hash and a find.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

from app.engines.reach import GroupRule, Reach, group_rule
from app.engines.registration import EngineKey, EngineSpec
from app.engines.shelves import Group, Lane
from app.engines.spaces import Owner, Shape, Spaces
from app.engines.views import ViewState

# Of one query: each is a hash of the whole prompt.
MAX_SPACES: Final = 32
_CACHE_ENTRIES: Final = 4_096
_CACHED_ENGINES: Final = 262_144


class KnownView(Protocol):
    """What queries read of a view: of EngineView, or of a copy of one in another process."""

    @property
    def spec(self) -> EngineSpec: ...
    @property
    def state(self) -> ViewState: ...
    @property
    def epoch(self) -> int: ...
    @property
    def last_sequence(self) -> int | None: ...
    @property
    def last_frame_at_us(self) -> int | None: ...
    @property
    def lag_us(self) -> int | None: ...
    @property
    def lanes(self) -> Sequence[Lane]: ...
    @property
    def groups(self) -> Mapping[int, Group]: ...

    def state_at(self, now_us: int, stale_after_us: int) -> ViewState: ...


class EngineViews(Protocol):
    """Whose events are known."""

    def views_of(self, model: str) -> Sequence[KnownView]:
        """The views of the engines that run a model, empty for none."""


class Filter(NamedTuple):
    """Which engines are asked, and in which space. None of revision and layout is any."""

    tenant: str
    model: str
    revision: str | None = None
    layout: str | None = None
    lora: str | None = None
    salt: str | None = None
    instance_id: str | None = None


class Space(NamedTuple):
    """One hash of the prompt: which key, which blocks, and what its first block begins with."""

    owner: Owner
    salt: str | None
    shape: Shape
    scope_key: bytes
    first: bytes | None


class Seen(NamedTuple):
    """An engine that a query may see, and its groups."""

    view: KnownView
    groups: dict[int, GroupRule]
    usable: bool
    block_tokens: int
    # Its only group, where it is usable.
    only_group: int | None


# Holder, first block, end.
Segment = tuple[int, int, int]


class Share:
    """What one engine has of a prompt, usable. It is kept from one query to the next, and with it
    what an API made of it.
    """

    __slots__ = ("reach", "seen", "written")

    def __init__(self, seen: Seen, reach: Reach) -> None:
        self.seen = seen
        self.reach = reach
        self.written: Any = None


class Stretch(NamedTuple):
    """A segment of the index that is the whole of what an engine has. They sort the farthest first,
    and then by the engine.
    """

    minus_tokens: int
    key: EngineKey
    share: Share


class Asked(NamedTuple):
    """The engines that a query may see, whatever its adapter and salt."""

    views: tuple[KnownView, ...]
    seen: dict[EngineKey, Seen]
    # By the index's streams that are theirs now; others may be about to close.
    streams: dict[int, EngineKey]
    # One of those that mean the same space for every salt.
    lanes: list[tuple[EngineSpec, Lane]]
    # Of segments that queries have met.
    stretches: dict[Segment, Stretch]


class Plan(NamedTuple):
    """What queries with equal filters do; it depends on registrations and streams alone."""

    asked: Asked
    spaces: list[Space]
    complete: bool

    @property
    def seen(self) -> dict[EngineKey, Seen]:
        return self.asked.seen


class Planner:
    """Makes plans, and keeps them until a registration or a stream changes."""

    def __init__(self, views: EngineViews, spaces: Spaces) -> None:
        self._views = views
        self._spaces = spaces
        self._plans: dict[Filter, Plan] = {}
        self._asked: dict[Filter, Asked] = {}
        self._kept_engines = 0
        self._changes = 0

    def plan(self, wanted: Filter) -> Plan:
        """Raises as TenantHashing before a secret is there."""
        if self._changes != self._spaces.changes:
            self._forget()
        views = tuple(self._views.views_of(wanted.model))
        found = self._plans.get(wanted)
        if found is None or found.asked.views != views:
            if len(self._plans) >= _CACHE_ENTRIES:
                self._forget()
            found = self._plans[wanted] = self._planned(wanted, views)
        return found

    def _forget(self) -> None:
        self._changes = self._spaces.changes
        self._plans.clear()
        self._asked.clear()
        self._kept_engines = 0

    def _planned(self, wanted: Filter, views: tuple[KnownView, ...]) -> Plan:
        key = wanted._replace(lora=None, salt=None)
        asked = self._asked.get(key)
        if asked is None or asked.views != views:
            self._kept_engines += len(views)
            if self._kept_engines > _CACHED_ENGINES:
                self._forget()
                self._kept_engines = len(views)
            asked = self._asked[key] = _asked(key, views)
        spaces = {
            self._space(lane, wanted.lora, salt): None
            for spec, lane in asked.lanes
            for salt in _salts(spec, lane.owner, wanted)
        }
        kept = list(spaces)[:MAX_SPACES]
        return Plan(asked, kept, len(kept) == len(spaces))

    def _space(self, lane: Lane, lora: str | None, salt: str | None) -> Space:
        first = self._spaces.digest(lane.owner, lora, salt, None)
        return Space(lane.owner, salt, lane.shape, lane.scope_key, first)


def _asked(wanted: Filter, views: tuple[KnownView, ...]) -> Asked:
    seen: dict[EngineKey, Seen] = {}
    streams: dict[int, EngineKey] = {}
    lanes: dict[object, tuple[EngineSpec, Lane]] = {}
    for view in views:
        spec = view.spec
        if not _visible(spec, wanted):
            continue
        seen[spec.key] = _seen(view)
        mine: object = None
        if len(spec.tenants) > 1:
            mine = spec.names_tenants, tuple(_own_salts(spec.salts, wanted.tenant))
        for lane in view.lanes:
            streams[lane.stream] = spec.key
            lanes.setdefault((lane.owner, lane.shape, lane.scope_key, mine), (spec, lane))
    return Asked(views, seen, streams, list(lanes.values()), {})


def _seen(view: KnownView) -> Seen:
    groups = {
        group.group_idx: group_rule(group.kind.value, group.window_tokens)
        for group in view.spec.groups
    }
    for number, told in view.groups.items():
        # An event that is silent on a group takes nothing of what is declared back.
        if told.spec_kind is not None or number not in groups:
            groups[number] = group_rule(told.spec_kind, told.window_tokens)
    usable = all(group.rule is not None for group in groups.values())
    only_group = next(iter(groups)) if usable and len(groups) == 1 else None
    return Seen(view, groups, usable, view.spec.block_tokens, only_group)


def _visible(spec: EngineSpec, wanted: Filter) -> bool:
    return (
        wanted.tenant in spec.tenants
        and wanted.revision in (None, spec.revision)
        and wanted.layout in (None, spec.layout)
        and wanted.instance_id in (None, spec.instance_id)
    )


def _salts(spec: EngineSpec, owner: Owner, wanted: Filter) -> list[str | None]:
    """Of the chains there that the query may mean."""
    if wanted.tenant not in owner:
        return []
    if len(spec.tenants) == 1:
        return [wanted.salt]
    if len(owner) > 1:
        return [None] if wanted.salt is None else []
    mine = _own_salts(spec.salts, wanted.tenant)
    if wanted.salt is not None:
        return [wanted.salt] if wanted.salt in mine else []
    # Where a tenant has one salt, its blocks are meant; of several the query must name one.
    salts: list[str | None] = [None] if spec.names_tenants else []
    return [*salts, *mine] if len(mine) == 1 else salts


def _own_salts(salts: Mapping[str, str], tenant: str) -> list[str]:
    return [salt for salt, of in salts.items() if of == tenant]
