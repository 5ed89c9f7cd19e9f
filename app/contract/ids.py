"""Identities that must not be mixed up."""

from typing import NewType
from uuid import UUID

Tenant = NewType("Tenant", str)
Namespace = NewType("Namespace", str)
EntryId = NewType("EntryId", str)
StateId = NewType("StateId", UUID)
DecisionId = NewType("DecisionId", UUID)
KeyId = NewType("KeyId", str)
# 16 bytes; keyed per tenant, so equal prompts of two tenants cannot be told from each other.
IdentityHash = NewType("IdentityHash", bytes)
