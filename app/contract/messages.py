"""What an operator says of a change, for whoever reads the history."""

from typing import Final

from app.errors import ErrorCode, FieldError, NexusError

MAX_MESSAGE_CHARS: Final = 1024


def check_message(message: str | None) -> None:
    """Raises INVALID_FIELD for a message that is empty, too long or not storable."""
    if message is None:
        return
    if not 1 <= len(message) <= MAX_MESSAGE_CHARS or "\x00" in message:
        detail = f"A message has 1 to {MAX_MESSAGE_CHARS} characters, none of them U+0000"
        finding = FieldError("/query/message", ErrorCode.INVALID_FIELD, detail)
        raise NexusError(ErrorCode.INVALID_FIELD, detail, errors=[finding])
