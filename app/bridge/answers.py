"""The three answers as bytes, put together from parts that were encoded once."""

from typing import Final

import msgspec

from app.bridge.handles import option_id_text
from app.bridge.schemas import BRIDGE_SCHEMA, NEXUSKV_SCHEMA
from app.execution.receipt import Receipt
from app.index.matcher import Candidate
from app.lifecycle.estimate import Priced
from nexuskv_core import TokenText

_encode: Final = msgspec.json.Encoder().encode

_LOOKUP_HEAD: Final = b'{"schema_version":"%b","nexuskv_schema_version":"%b","match_result":' % (
    BRIDGE_SCHEMA.encode(),
    NEXUSKV_SCHEMA.encode(),
)
NO_MATCH: Final = _LOOKUP_HEAD + b"null}"
_COMPATIBLE: Final = (
    b',"compatibility":{"reusable":true,"fallback_to_recompute":false,"reason":"compatible"}'
)


def lookup_answer(
    candidate: Candidate,
    tokens: TokenText,
    evidence_echo: bytes,
    source_handle: str,
) -> bytes:
    """A hit. Only the matched tokens are in it: a partial hit reveals nothing of another prompt.

    `evidence_echo` is the beginning of `validation`, up to the source handle's text.
    """
    matched_tokens = candidate.matched_tokens
    state = candidate.state
    return b"".join(
        (
            _LOOKUP_HEAD,
            b'{"classification":"',
            candidate.classification.encode(),
            b'","matched_extent":{"units":%d,"granularity":"' % matched_tokens,
            state.entry.descriptor.granularity.encode(),
            b'"},"entry":',
            state.answer.before_tokens,
            tokens.json_prefix(matched_tokens),
            state.answer.after_tokens,
            _COMPATIBLE,
            b',"validation":',
            evidence_echo,
            source_handle.encode(),
            b'"}}}',
        )
    )


def estimate_answer(priced: Priced, option_handle: str) -> bytes:
    return _encode(
        {
            "schema_version": BRIDGE_SCHEMA,
            "option_id": option_id_text(priced.grant.option_id),
            "option_handle": option_handle,
            "locality": priced.estimate.locality,
            "topology_path": priced.estimate.topology_path,
            "estimated_transfer_micros": priced.estimate.transfer_us,
        }
    )


def materialize_answer(receipt: Receipt) -> bytes:
    return _encode(
        {
            "schema_version": BRIDGE_SCHEMA,
            "bytes_transferred": receipt.bytes_transferred,
            "receipt": {"namespace": receipt.receipt_namespace, "value": receipt.receipt_value},
            "evidence": {
                "level": "physical" if receipt.physical else "protocol",
                "physical_transfer_verified": receipt.physical,
                "execution_backend": receipt.execution_backend,
                "transfer_session": receipt.transfer_session,
                "sink_namespace": receipt.sink_namespace,
                "sink_value": receipt.sink_value,
                "import_id": receipt.import_id,
            },
        }
    )
