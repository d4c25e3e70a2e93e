"""The ids of queue jobs are text, those of chains are UUIDs."""

from uuid import UUID, uuid5

_NAMESPACE = UUID("5f8d5b0e-6c1a-5d0f-9a55-0d3c1a6f7e21")


def as_uuid(job_id: str) -> UUID | None:
    """The UUID that this is the text of; other spellings of it are other ids."""
    try:
        found = UUID(job_id)
    except ValueError:
        return None
    return found if str(found) == job_id else None


def derived_id(type_name: str, job_id: str) -> UUID:
    """The id of the chain of this type that stands for the job; the same every time."""
    return uuid5(_NAMESPACE, f"{type_name}\0{job_id}")
