"""Whose blocks they are: the keys under which the chains of an engine's blocks are hashed.

A space is everything that makes blocks of equal tokens differ. Who owns them, the model, its
revision and layout and the shape of a block are in the key of the hash; adapter, salt and extra
keys are in the digest that the first block of a chain begins with, so that every block after it
inherits them and an event need not say them again.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import Final, NamedTuple

import msgspec

from app.engines.events import EngineHash, PackedHashes
from app.engines.registration import EngineSpec
from app.index.scopes import TenantHashing
from nexuskv_core import siphash_128

# One tenant, or the sorted tenants of a pool.
Owner = tuple[str, ...]
# An entry of `extra_keys`: a block's multimodal ids, adapter and salt.
Extra = tuple[object, ...]

# Names are told apart by it, not kept secret: an engine's bytes become the u64 that the index has.
_NAME_KEY: Final = b"nexuskv-name-u64"
_CACHE_ENTRIES: Final = 65_536
_encode = msgspec.msgpack.Encoder().encode


class Shape(NamedTuple):
    """A block: so many positions of so many tokens (2 where a position is a pair)."""

    block_tokens: int
    token_width: int = 1


class Attributed(NamedTuple):
    """Of a chain's first block. `owner` is None where it is nobody's that is registered."""

    owner: Owner | None
    salt: str | None
    rest: Extra | None


class SpaceKey(NamedTuple):
    """What a scope key is made from."""

    owner: Owner
    model: str
    revision: str
    layout: str
    shape: Shape


class Spaces:
    """Scope keys and digests, derived from the deployment's secret. Raises as TenantHashing."""

    def __init__(self, hashing: TenantHashing) -> None:
        self._hashing = hashing
        self._scopes: dict[SpaceKey, bytes] = {}
        self._digests: dict[Owner, bytes] = {}
        # Counts what plans of queries depend on, over all views: streams and groups.
        self.changes = 0

    def scope_key(self, space: SpaceKey) -> bytes:
        """16 bytes, the key of the hash for its blocks."""
        found = self._scopes.get(space)
        if found is None:
            parts = (space.model, space.revision, space.layout, *map(str, space.shape))
            found = self._hashing.block_key(space.owner, parts)
            if len(self._scopes) >= _CACHE_ENTRIES:
                self._scopes.clear()
            self._scopes[space] = found
        return found

    def digest(
        self, owner: Owner, lora: str | None, salt: str | None, rest: Extra | None
    ) -> bytes | None:
        """16 bytes for a block that something but its tokens tells apart, None for a plain one."""
        if lora is None and salt is None and rest is None:
            return None
        key = self._digests.get(owner)
        if key is None:
            if len(self._digests) >= _CACHE_ENTRIES:
                self._digests.clear()
            key = self._digests[owner] = self._hashing.block_key(owner, ("extra",))
        return siphash_128(key, _encode((lora, salt, rest)))

    def extras(
        self,
        owner: Owner,
        lora: str | None,
        keys: Sequence[Extra | None] | None,
        *,
        first: bytes | None,
        blocks: int,
        begins: bool,
    ) -> list[bytes | None] | None:
        """The digest of each block, None where no block has one.

        `first` stands for the first block where it begins a chain.
        """
        if keys is None or not any(keys):
            # What most blocks have: nothing but perhaps the beginning of their chain.
            return [first, *[None] * (blocks - 1)] if begins and blocks and first else None
        rest = [without(lora, each) for each in keys]
        made = [None if each is None else self.digest(owner, None, None, each) for each in rest]
        if begins and made:
            made[0] = first
        return made if any(made) else None


def without(lora: str | None, extra: Extra | None) -> Extra | None:
    """An entry without the adapter, which has its own place; None where nothing is left."""
    if extra is None or lora is None:
        return extra or None
    return tuple(each for each in extra if each != lora and str(each) != lora) or None


def salted(
    salt: str | None, extra: Extra | None, known: Collection[str]
) -> tuple[str | None, Extra | None]:
    """The salt of a chain, and what its first block's extra keys say beside it.

    Engines put the salt among the extra keys, without a mark: it is a text that is known as one,
    else the only text there.
    """
    if extra is None:
        return salt, None
    if salt is None:
        texts = [each for each in extra if isinstance(each, str)]
        named = [each for each in texts if each in known] or texts
        salt = named[0] if len(named) == 1 else None
    if salt is None:
        return None, extra
    return salt, tuple(each for each in extra if each != salt) or None


def attributed(
    spec: EngineSpec,
    lora: str | None,
    salt: str | None,
    extra: Extra | None,
    named: str | None = None,
) -> Attributed:
    """Whose chain begins with this: see EngineSpec for the rule.

    `named`: the one of several tenants whose it is said to be. What a salt says has to agree.
    """
    left = without(lora, extra)
    salt, rest = salted(salt, left, spec.salts)
    if len(spec.tenants) == 1:
        return Attributed(spec.tenants, salt, rest)
    if named is not None:
        its = spec.names_tenants if salt is None else spec.salts.get(salt) == named
        return Attributed((named,) if its else None, salt, rest)
    if salt is not None:
        tenant = spec.salts.get(salt)
        return Attributed(None if tenant is None else (tenant,), salt, rest)
    # Several texts, none of them a known salt: one of them may be somebody's.
    doubtful = left is not None and any(isinstance(each, str) for each in left)
    pool = tuple(sorted(set(spec.tenants))) if spec.pooled and not doubtful else None
    return Attributed(pool, None, rest)


def name_of(engine_hash: EngineHash) -> int:
    """The u64 by which the index calls a block: an integer as it is, bytes by their hash."""
    if isinstance(engine_hash, int):
        return engine_hash
    return int.from_bytes(siphash_128(_NAME_KEY, engine_hash)[:8], "little")


def names_of(hashes: Iterable[EngineHash]) -> Sequence[int]:
    """`name_of` each; a buffer of u64 where that is what they are."""
    if isinstance(hashes, PackedHashes):
        return hashes.packed
    return [each if isinstance(each, int) else name_of(each) for each in hashes]
