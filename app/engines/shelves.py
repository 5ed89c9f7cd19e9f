"""One publisher's blocks in the index, in one epoch of it: what its events change.

A stream of the index is what one owner has, in blocks of one shape; a holder is a place of it. A
chain's owner is settled by its first block; what follows is where its parent is.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from app.engines.events import Cleared, Event, Removed, Stored
from app.engines.quarantine import Outsiders, Quarantine
from app.engines.registration import EngineSpec
from app.engines.spaces import (
    Owner,
    Shape,
    SpaceKey,
    Spaces,
    attributed,
    name_of,
    names_of,
)
from app.engines.tallies import Tallies
from nexuskv_core import BlockIndex

# Of the index.
MAX_BLOCK_TOKENS: Final = 1 << 20
# Of one publisher: media by groups by shapes by owners.
MAX_HOLDERS: Final = 4_096
MAX_SHAPES: Final = 16
MAX_GROUPS: Final = 256


class Shelf(msgspec.Struct, frozen=True, array_like=True):
    """What the label of a holder says: whose place it is, and what its blocks are."""

    instance_id: str
    dp_rank: int
    epoch: int
    medium: str
    group: int
    block_tokens: int
    token_width: int = 1
    spec_kind: str | None = None
    window_tokens: int | None = None


_shelf_decoder = msgspec.msgpack.Decoder(Shelf)
_encode = msgspec.msgpack.Encoder().encode


def shelf_of(label: bytes) -> Shelf:
    """Raises msgspec.DecodeError for a label that is none of ours."""
    return _shelf_decoder.decode(label)


class Group(NamedTuple):
    """What the engine says of a KV cache group."""

    spec_kind: str | None = None
    window_tokens: int | None = None


class Lane(NamedTuple):
    """A stream of the index, and the key of the hash for its blocks."""

    owner: Owner
    shape: Shape
    stream: int
    scope_key: bytes


class SavedHolder(msgspec.Struct, frozen=True, array_like=True):
    """A place of a stream, and its number in the index."""

    stream: int
    medium: str
    group: Group
    number: int
    holder: int


class SavedShelves(msgspec.Struct, frozen=True, array_like=True):
    """What a copy of the index says of one publisher. `waiting`: blocks that it does not have."""

    groups: dict[int, Group]
    lanes: list[tuple[Owner, Shape, int]]
    holders: list[SavedHolder]
    waiting: int

    def streams(self) -> list[int]:
        """Their numbers in the index."""
        return [stream for _, _, stream in self.lanes]


class Shelves:
    """Applies events. Raises IndexFullError, MemoryError where the index has no room."""

    def __init__(self, spec: EngineSpec, core: BlockIndex, spaces: Spaces) -> None:
        self.tallies = Tallies()
        self.quarantine = Quarantine()
        self.groups: dict[int, Group] = {}
        self.lanes: dict[tuple[Owner, Shape], Lane] = {}
        self._spec = spec
        self._core = core
        self._spaces = spaces
        self._epoch = 0
        self._outsiders = Outsiders()
        self._holders: dict[tuple[int, str, Group, int], int] = {}
        self._places: dict[tuple[str, int], list[int]] = {}

    def begin(self, epoch: int, *, same_process: bool) -> None:
        """Nothing is known to be there. Groups are those of the process."""
        self._epoch = epoch
        self._drop()
        if not same_process:
            self.groups.clear()

    def apply(self, event: Event) -> None:
        """Take one event in."""
        if isinstance(event, Stored):
            if event.unclear:
                self._leave_out(event)
            elif event.tokens:
                self._store(event)
            elif event.hashes:
                self._hold(event)
        elif isinstance(event, Removed):
            self._remove(event)
        else:
            self._clear(event)

    def progress(self, sequence: int, at_us: int, state: int) -> None:
        """Say in the index how far each of its streams was applied."""
        for lane in self.lanes.values():
            self._core.set_progress(lane.stream, sequence, at_us, state)

    def blocks(self) -> dict[str, dict[int, int]]:
        """How many blocks are held, by medium and group; nothing is named that has none."""
        found: dict[str, dict[int, int]] = {}
        for (medium, group), holders in sorted(self._places.items()):
            held = sum(self._core.held(holder) for holder in holders)
            if held:
                found.setdefault(medium, {})[group] = held
        return found

    # ---- copies

    def saved(self) -> SavedShelves:
        """For a copy of the index; stores that wait for their parent are only counted."""
        lanes = [(lane.owner, lane.shape, lane.stream) for lane in self.lanes.values()]
        holders = [SavedHolder(*key, holder) for key, holder in self._holders.items()]
        return SavedShelves(dict(self.groups), lanes, holders, self.quarantine.blocks)

    def resume(self, epoch: int, saved: SavedShelves) -> None:
        """Go on with what an index has that was read from a copy.

        Raises ValueError where it has not all of it, and as TenantHashing; nothing is changed then.
        """
        spec, lanes = self._spec, []
        for owner, shape, stream in saved.lanes:
            space = SpaceKey(owner, spec.model, spec.revision, spec.layout, shape)
            lanes.append(Lane(owner, shape, stream, self._spaces.scope_key(space)))
            self._core.progress(stream)
        known = set(saved.streams())
        for one in saved.holders:
            if one.stream not in known or self._core.stream_of(one.holder) != one.stream:
                raise ValueError(f"holder {one.holder} is not of stream {one.stream}")
        self._epoch = epoch
        self.groups.update(saved.groups)
        self.lanes.update(((lane.owner, lane.shape), lane) for lane in lanes)
        for one in saved.holders:
            self._holders[one.stream, one.medium, one.group, one.number] = one.holder
            self._places.setdefault((one.medium, one.number), []).append(one.holder)
        self.quarantine.dropped += saved.waiting

    # ---- stores

    def _leave_out(self, event: Stored) -> None:
        """Blocks that are not what their tokens say, and those after them, are none of ours."""
        self.tallies.unclear += len(event.hashes)
        self._outsiders.add(names_of(event.hashes))

    def _store(self, event: Stored) -> None:
        if event.block_size != self._spec.block_tokens:
            self.tallies.wrong_block_size += 1
        if not self._note_group(event):
            return
        parent = None if event.parent is None else name_of(event.parent)
        todo: list[tuple[Stored, int | None, Sequence[int], set[int]]]
        todo = [(event, parent, names_of(event.hashes), set())]
        while todo:
            one, above, names, removed = todo.pop()
            if not self._place(one, above, names):
                continue
            if removed:
                self._take_away(one.medium, one.group, list(removed), one.tenant)
            if len(self.quarantine):
                todo += [
                    (each.event, each.parent, each.names, each.removed)
                    for each in self.quarantine.adopt(names)
                ]

    def _place(self, event: Stored, parent: int | None, names: Sequence[int]) -> bool:
        """Whether its blocks are in the index now."""
        shape = Shape(event.block_size, event.token_width)
        if shape.block_tokens * shape.token_width > MAX_BLOCK_TOKENS:
            self.tallies.beyond_limits += len(names)
            return False
        first = None
        if parent is not None:
            lane = self._lane_with(parent, shape, event, names)
        elif event.base_block:
            self.tallies.unplaced += len(names)
            lane = None
        else:
            lane, first = self._lane_of(event, shape, names)
        if lane is None:
            return False
        holder = self._holder(lane, event.medium, event.group, self.groups[event.group])
        if holder is None:
            self.tallies.beyond_limits += len(names)
            return False
        extras = None
        if event.extra_keys is not None or first is not None:
            extras = self._spaces.extras(
                lane.owner,
                event.lora,
                event.extra_keys,
                first=first,
                blocks=len(names),
                begins=parent is None,
            )
        stored = self._core.store_tokens(
            holder,
            lane.scope_key,
            names,
            memoryview(event.tokens).cast("I"),
            shape.block_tokens * shape.token_width,
            parent=parent,
            extras=extras,
        )
        return stored is not None

    def _lane_of(
        self, event: Stored, shape: Shape, names: Sequence[int]
    ) -> tuple[Lane | None, bytes | None]:
        """Of a chain that begins; with the digest of its first block."""
        told = None if event.extra_keys is None else event.extra_keys[0]
        owner, salt, rest = attributed(self._spec, event.lora, event.cache_salt, told, event.tenant)
        if salt is not None and salt not in self._spec.salts:
            self.tallies.salted_unknown += len(names)
        if owner is None:
            self.tallies.unattributed += len(names)
            self._outsiders.add(names)
            return None, None
        lane = self._open(owner, shape)
        if lane is None:
            self.tallies.beyond_limits += len(names)
        return lane, self._spaces.digest(owner, event.lora, salt, rest)

    def _lane_with(
        self, parent: int, shape: Shape, event: Stored, names: Sequence[int]
    ) -> Lane | None:
        """Where the parent is; where it is nowhere, the blocks wait or are nobody's, too."""
        found = [
            lane
            for lane in self._of(event.tenant)
            if lane.shape == shape and self._core.key_of(lane.stream, parent) is not None
        ]
        if len(found) == 1:
            return found[0]
        if found:
            self.tallies.unplaced += len(names)
        elif parent in self._outsiders:
            self.tallies.unattributed += len(names)
            self._outsiders.add(names)
        else:
            self.quarantine.add(event, parent, names)
        return None

    def _note_group(self, event: Stored) -> bool:
        """False, and counted, for a group beyond the number that is kept."""
        before = self.groups.get(event.group)
        if before is None and len(self.groups) >= MAX_GROUPS:
            self.tallies.beyond_limits += len(event.hashes)
            return False
        kind, window = event.spec_kind, event.window_tokens
        # An event that is silent on it takes nothing back.
        if before is None or (kind is not None and before != (kind, window)):
            self.groups[event.group] = Group(kind, window)
            self._spaces.changes += 1
        return True

    # ---- what is known already, at other places

    def _hold(self, event: Stored) -> None:
        names = names_of(event.hashes)
        unknown = set(names)
        for lane in self._of(event.tenant):
            known = names
            if len(self.lanes) > 1:
                known = [n for n in names if self._core.key_of(lane.stream, n) is not None]
            if not known:
                continue
            group = self.groups.get(event.group, Group())
            holder = self._holder(lane, event.medium, event.group, group)
            if holder is None:
                self.tallies.beyond_limits += len(known)
            elif self._core.hold(holder, known):
                known = [n for n in known if self._core.key_of(lane.stream, n) is not None]
            unknown.difference_update(known)
        self.tallies.unknown_names += sum(name not in self._outsiders for name in unknown)

    def _remove(self, event: Removed) -> None:
        names = names_of(event.hashes)
        removed = self._take_away(event.medium, event.group, names, event.tenant)
        if len(self.quarantine):
            removed += self.quarantine.remove(names, event.medium, event.group, event.tenant)
        if removed < len(names):
            strange = sum(name in self._outsiders for name in names)
            self.tallies.removed_unknown += max(0, len(names) - removed - strange)

    def _take_away(self, medium: str, group: int, names: Sequence[int], tenant: str | None) -> int:
        holders = self._its(self._places.get((medium, group), ()), tenant)
        return sum(self._core.remove(holder, names) for holder in holders)

    def _clear(self, event: Cleared) -> None:
        self.quarantine.clear(event.medium, event.tenant)
        if event.medium is None and event.tenant is None:
            self._drop()
            return
        closed: set[int] = set()
        for place in [each for each in self._places if event.medium in (None, each[0])]:
            there = self._places.pop(place)
            closed.update(self._its(there, event.tenant))
            if left := [one for one in there if one not in closed]:
                self._places[place] = left
        for holder in closed:
            self._core.close_holder(holder)
        self._holders = {k: v for k, v in self._holders.items() if v not in closed}

    def _of(self, tenant: str | None) -> list[Lane]:
        """The streams of one tenant alone; all of them, where none is named."""
        return [lane for lane in self.lanes.values() if tenant is None or lane.owner == (tenant,)]

    def _its(self, holders: Sequence[int], tenant: str | None) -> Sequence[int]:
        if tenant is None:
            return holders
        own = {lane.stream for lane in self._of(tenant)}
        return [one for one in holders if self._core.stream_of(one) in own]

    # ---- streams and holders

    def _open(self, owner: Owner, shape: Shape) -> Lane | None:
        found = self.lanes.get((owner, shape))
        if found is not None:
            return found
        shapes = {lane.shape for lane in self.lanes.values()}
        if shape not in shapes and len(shapes) >= MAX_SHAPES:
            return None
        spec = self._spec
        space = SpaceKey(owner, spec.model, spec.revision, spec.layout, shape)
        scope_key = self._spaces.scope_key(space)
        label = _encode((spec.instance_id, spec.dp_rank, self._epoch))
        lane = Lane(owner, shape, self._core.open_stream(label), scope_key)
        self.lanes[owner, shape] = lane
        self._spaces.changes += 1
        return lane

    def _holder(self, lane: Lane, medium: str, number: int, group: Group) -> int | None:
        key = (lane.stream, medium, group, number)
        found = self._holders.get(key)
        if found is None and len(self._holders) < MAX_HOLDERS:
            shelf = Shelf(
                instance_id=self._spec.instance_id,
                dp_rank=self._spec.dp_rank,
                epoch=self._epoch,
                medium=medium,
                group=number,
                block_tokens=lane.shape.block_tokens,
                token_width=lane.shape.token_width,
                spec_kind=group.spec_kind,
                window_tokens=group.window_tokens,
            )
            found = self._holders[key] = self._core.open_holder(lane.stream, _encode(shelf))
            self._places.setdefault((medium, number), []).append(found)
        return found

    def _drop(self) -> None:
        for lane in self.lanes.values():
            self._core.close_stream(lane.stream)
        self.lanes.clear()
        self._holders.clear()
        self._places.clear()
        self.quarantine.clear()
        self._outsiders.clear()
        self._spaces.changes += 1
