"""What a consumed option answers, the first time and every time."""

import msgspec


class Receipt(msgspec.Struct, frozen=True):
    """What is stored with the consumed option and answered, the first time and every time."""

    bytes_transferred: int
    receipt_namespace: str
    receipt_value: str
    physical: bool
    execution_backend: str
    transfer_session: str
    sink_namespace: str
    sink_value: str
    import_id: str
