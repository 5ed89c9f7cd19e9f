"""Cost profiles as operators write them, YAML or JSON. Pure; the fields are the planner's."""

from app.errors import NexusError
from app.planner.profile import Profile, load_profile
from app.policy.consistency import with_value
from app.policy.text import parse_document


def read_profile(text: bytes | str) -> Profile:
    """The profile in a YAML or JSON document.

    Raises NexusError with every finding, each with the value that stands there; REQUEST_TOO_LARGE
    or INVALID_BODY for what is no document at all.
    """
    document = parse_document(text)
    try:
        return load_profile(document)
    except NexusError as error:
        error.errors = tuple(with_value(finding, document) for finding in error.errors)
        raise
