"""Keyed hashing per tenant: scope keys for the index and fingerprints for the history.

Everything derives from one secret per deployment, through one key per tenant, so that equal
prompts of two tenants cannot be told from each other, in the index or in the decisions.
"""

import struct
from collections.abc import Sequence
from hashlib import blake2b
from typing import Final

from app.errors import ErrorCode, NexusError
from app.index.registered import ScopeIdentity

_CACHE_ENTRIES: Final = 65_536
_PERSON_TENANT: Final = b"nexuskv-tenant"
_PERSON_SCOPE: Final = b"nexuskv-scope"
_PERSON_POOL: Final = b"nexuskv-pool"
_PERSON_BLOCKS: Final = b"nexuskv-blocks"


class TenantHashing:
    """Derives 16-byte keys and fingerprints; results are cached, at most 65,536 of a kind."""

    def __init__(self, secret: bytes | None = None) -> None:
        """Without a secret every derivation raises DATABASE_UNAVAILABLE until one is adopted."""
        self._secret: bytes | None = None
        self._tenants: dict[str, bytes] = {}
        self._scopes: dict[ScopeIdentity, bytes] = {}
        if secret is not None:
            self.adopt(secret)

    def adopt(self, secret: bytes) -> None:
        """`secret`: 32 bytes, equal on every replica; once adopted it cannot change."""
        if len(secret) != 32:
            raise ValueError("the hash secret must have 32 bytes")
        if self._secret not in (None, secret):
            raise ValueError("the hash secret is already another one")
        self._secret = secret

    def scope_key(self, scope: ScopeIdentity) -> bytes:
        """The 16-byte hash key under which this scope's tokens are chained."""
        found = self._scopes.get(scope)
        return self._add(scope) if found is None else found

    def _add(self, scope: ScopeIdentity) -> bytes:
        digest = blake2b(digest_size=16, key=self._tenant_key(scope.tenant), person=_PERSON_SCOPE)
        for part in (scope.namespace, scope.model, scope.engine_family, scope.semantic_type):
            _update_framed(digest, part.encode())
        for number in (scope.block_id, scope.page_id):
            _update_framed(digest, b"" if number is None else str(number).encode())
        if len(self._scopes) >= _CACHE_ENTRIES:
            self._scopes.clear()
        made = self._scopes[scope] = digest.digest()
        return made

    def block_key(self, owner: Sequence[str], parts: Sequence[str]) -> bytes:
        """The 16-byte hash key of an engine's blocks: of one tenant, or of a pool of several.

        `owner`: the tenants in their order. A pool's blocks are not those of any of its tenants,
        nor of another pool. Not cached.
        """
        key = self._tenant_key(owner[0]) if len(owner) == 1 else self._pool_key(owner)
        digest = blake2b(digest_size=16, key=key, person=_PERSON_BLOCKS)
        for part in parts:
            _update_framed(digest, part.encode())
        return digest.digest()

    def fingerprint_key(self, tenant: str) -> bytes:
        """The SipHash key of what is recorded instead of a value: equal values of one tenant agree,
        and nothing else can be read from it.
        """
        return self._tenant_key(tenant)[:16]

    def _pool_key(self, tenants: Sequence[str]) -> bytes:
        digest = blake2b(digest_size=32, key=self._adopted(), person=_PERSON_POOL)
        for tenant in tenants:
            _update_framed(digest, tenant.encode())
        return digest.digest()

    def _adopted(self) -> bytes:
        if self._secret is None:
            raise NexusError(
                ErrorCode.DATABASE_UNAVAILABLE,
                "the service is starting and has not reached its database yet; try again",
            )
        return self._secret

    def _tenant_key(self, tenant: str) -> bytes:
        found = self._tenants.get(tenant)
        if found is None:
            found = blake2b(
                tenant.encode(), digest_size=32, key=self._adopted(), person=_PERSON_TENANT
            ).digest()
            if len(self._tenants) >= _CACHE_ENTRIES:
                self._tenants.clear()
            self._tenants[tenant] = found
        return found


def _update_framed(digest: blake2b, part: bytes) -> None:
    digest.update(struct.pack(">I", len(part)))
    digest.update(part)
