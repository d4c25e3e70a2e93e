"""What keeps payloads from those who look: encryption and masks, around the codecs and for what else is stored.

A type that has neither has none of these objects: its codecs are plain, and nobody asks further.
"""

from datetime import datetime
from typing import Any, NoReturn, TypeAlias
from uuid import UUID

import msgspec

from onward.crypto import MARK, Encryption, is_sealed, key_id_of
from onward.define.codec import Codec, encode_foreign
from onward.define.secrets import Path, Secrets, redacted
from onward.errors import DecryptionError, PayloadError, PayloadNotEncrypted, PayloadTampered, UnknownKey
from onward.model import Blocker, Chain, CompletedJob, Job, JobError, Progress

_WHOLE = f'"{MARK}'
_encode = msgspec.json.encode
_decode = msgspec.json.decode


class Sealing:
    """The encryption of one job type. What is sealed can be read as the same part of the same job only."""

    def __init__(self, job_type: str, encryption: Encryption | None) -> None:
        self.job_type, self.encryption = job_type, encryption

    @property
    def covers_everything(self) -> bool:
        """Whether whole payloads are encrypted, and the texts that may tell of them."""
        return self.encryption is not None and not self.encryption.only_secrets

    def seal(self, data: bytes, part: str, id: UUID, path: Path = ()) -> str:
        assert self.encryption is not None
        return self.encryption.seal(data, self._about(part, id, path))

    def open(self, text: str, part: str, id: UUID, path: Path = ()) -> bytes:
        """What was sealed, or a DecryptionError."""
        try:
            if self.encryption is None:
                raise LookupError(text)
            return self.encryption.open(text, self._about(part, id, path))
        except LookupError:
            raise UnknownKey(job_type=self.job_type, part=part, key_id=key_id_of(text)) from None
        except ValueError:
            raise PayloadTampered(job_type=self.job_type, part=part, key_id=key_id_of(text)) from None

    def _about(self, part: str, id: UUID, path: Path) -> bytes:
        return _encode([self.job_type, part, id, path])


class SealedCodec:
    """A codec whose text is encrypted: as a whole, or its secret fields one by one; or, without a key, refused."""

    def __init__(self, bare: Codec, sealing: Sealing, secrets: Secrets | None) -> None:
        self.bare, self._sealing, self._secrets = bare, sealing, secrets
        self._accept_plain = sealing.encryption is None or sealing.encryption.accept_plain

    def encode(self, value: Any, id: UUID) -> str:
        """The text to be stored of a job, or of a chain's output."""
        text, part = self.bare.encode(value), self.bare.part
        if self._sealing.covers_everything:
            return f'"{self._sealing.seal(text.encode(), part, id)}"'
        if self._secrets is None:
            return text
        if MARK in text:
            self._refuse(f"text with {MARK!r}, which marks what is encrypted")
        if self._sealing.encryption is None:
            return text
        sealed = self._secrets.replaced(
            _decode(text), lambda value, path: self._sealing.seal(_encode(value), part, id, path)
        )
        return _encode(sealed).decode()

    def decode(self, text: str | bytes, id: UUID) -> Any:
        """The value in stored text, or a PayloadError."""
        return self.bare.decode(self.opened(text, id))

    def plain(self, text: str | bytes, id: UUID) -> Any:
        """The plain JSON data in stored text."""
        return self.bare.plain(self.opened(text, id))

    def opened(self, text: str | bytes, id: UUID) -> str | bytes:
        """The JSON text behind what is stored; that itself, where it was stored in plain text."""
        stored = text if isinstance(text, str) else text.decode()
        if stored.startswith(_WHOLE):
            return self._sealing.open(self._read(stored), self.bare.part, id)
        try:
            if not self._accept_plain and self._has_plain(stored):
                raise PayloadNotEncrypted(job_type=self.bare.job_type, part=self.bare.part)
            return _encode(self._open_fields(self._read(stored), id, ())) if MARK in stored else text
        except RecursionError:
            self._refuse("nested too deep")

    def _read(self, text: str) -> Any:
        try:
            return _decode(text)
        except (msgspec.DecodeError, RecursionError) as error:
            self._refuse(str(error))

    def _has_plain(self, text: str) -> bool:
        """Whether there is something that would not have been written like this."""
        if self._sealing.covers_everything:
            return True
        found: list[Any] = []
        if self._secrets is not None:
            self._secrets.replaced(self._read(text), lambda value, path: found.append(value))
        return not all(map(is_sealed, found))

    def _open_fields(self, plain: Any, id: UUID, path: Path) -> Any:
        """Wherever they are: another version of the type may have had its secrets elsewhere."""
        if isinstance(plain, dict):
            return {key: self._open_fields(value, id, (*path, key)) for key, value in plain.items()}
        if isinstance(plain, list):
            return [self._open_fields(value, id, (*path, at)) for at, value in enumerate(plain)]
        return _decode(self._sealing.open(plain, self.bare.part, id, path)) if is_sealed(plain) else plain

    def _refuse(self, problem: str) -> NoReturn:
        raise PayloadError(job_type=self.bare.job_type, part=self.bare.part, field="$", problem=problem)


PayloadCodec: TypeAlias = Codec | SealedCodec


class Guard:
    """What a type with encryption or secrets lets be seen of its jobs."""

    def __init__(self, sealing: Sealing, input: Secrets | None, output: Secrets | None) -> None:
        self._sealing = sealing
        self._secrets = {"input": input, "output": output}

    # -- what is written

    def secrets_in(self, *inputs: Any) -> set[str]:
        """The secrets of an input, in plain JSON data or decoded."""
        secrets = self._secrets["input"]
        if secrets is None:
            return set()
        return {text for input in inputs for text in secrets.texts(_as_plain(input))}

    def told(self, error: JobError, secrets: set[str]) -> JobError:
        """An error as it is told, without the secrets of the input."""
        if not secrets:
            return error
        message, traceback = redacted(error.message, secrets), redacted(error.traceback, secrets)
        return msgspec.structs.replace(error, message=message, traceback=traceback)

    def stored(self, error: JobError, job_id: UUID) -> JobError:
        """An error as it is stored; its type stays to be asked for."""
        if not self._sealing.covers_everything:
            return error
        message, traceback = self._seal(error.message, "error", job_id), self._seal(error.traceback, "error", job_id)
        return msgspec.structs.replace(error, message=message, traceback=traceback)

    def note(self, note: str, job_id: UUID, input: Any) -> str:
        """A note on progress as it is stored."""
        note = redacted(note, self.secrets_in(input))
        return self._seal(note, "note", job_id) if self._sealing.covers_everything else note

    def _seal(self, text: str, part: str, id: UUID) -> str:
        return self._sealing.seal(text.encode(), part, id) if text else text

    # -- what is read

    def error(self, error: JobError, job_id: UUID) -> JobError:
        """A stored error, as well as it can be shown."""
        if not is_sealed(error.message) and not is_sealed(error.traceback):
            return error
        message, traceback = (self._text(text, "error", job_id)[0] for text in (error.message, error.traceback))
        return msgspec.structs.replace(error, message=message, traceback=traceback)

    def shown(self, job: Job) -> Job:
        """A job for those who look: what it may show, and why not more."""
        problems = [job.problem]
        changes: dict[str, Any] = {"errors": tuple(self.error(error, job.id) for error in job.errors)}
        changes["input"], problem = self.payload(job.input, "input", job.id)
        problems.append(problem)
        if isinstance(job, CompletedJob):
            changes["output"], problem = self.payload(job.output, "output", job.chain_id)
            problems.append(problem)
        if job.progress is not None and is_sealed(job.progress.note):
            note, problem = self._text(job.progress.note or "", "note", job.id)
            changes["progress"] = Progress(job.progress.fraction, note)
            problems.append(problem)
        changes["problem"] = "; ".join(filter(None, problems)) or None
        return msgspec.structs.replace(job, **changes)

    def payload(self, plain: Any, part: str, id: UUID) -> tuple[Any, str | None]:
        """A stored payload in plain JSON data as it may be shown, and what is wrong with it."""
        problem = None
        if is_sealed(plain):
            text, problem = self._text(plain, part, id)
            plain = text if problem else _decode(text)
        secrets = self._secrets[part]
        try:
            return plain if secrets is None or problem else secrets.masked(plain), problem
        except RecursionError:  # a hand has written it
            return None, f"{part}: nested too deep to be shown"

    def _text(self, text: str, part: str, id: UUID) -> tuple[str, str | None]:
        if not is_sealed(text):
            return text, None
        try:
            return self._sealing.open(text, part, id).decode(), None
        except DecryptionError as error:
            return f"<encrypted with key {error.key_id!r}>", f"{part}: {error.problem}"


def _as_plain(input: Any) -> Any:
    try:
        # What a handler prints of these differs from what is stored.
        as_they_are = (bytes, bytearray, datetime)
        return msgspec.to_builtins(input, builtin_types=as_they_are, enc_hook=encode_foreign, str_keys=True)
    except Exception:  # noqa: BLE001 - a handler may have put anything into it
        return None


def shown_job(job: Job, guard: Guard | None) -> Job:
    """A stored job for those who look. Without the key, that it is encrypted."""
    if guard is None:
        if not _is_sealed_somewhere(job):
            return job
        guard = Guard(Sealing(job.type_name, None), None, None)
    return guard.shown(job)


def shown_chain(chain: Chain, guard: Guard | None) -> Chain:
    """A stored chain for those who look."""
    job = shown_job(chain.current, guard)
    return chain if job is chain.current else msgspec.structs.replace(chain, current=job)


def shown_blocker(blocker: Blocker, guard: Guard | None) -> Blocker:
    """A blocker for those who look."""
    if blocker.output is None or (guard is None and MARK not in blocker.output):
        return blocker
    guard = guard or Guard(Sealing(blocker.current_type_name, None), None, None)
    try:
        plain = _decode(blocker.output)
    except (msgspec.DecodeError, RecursionError):
        return msgspec.structs.replace(blocker, output=None)  # a hand has written it
    shown, _ = guard.payload(plain, "output", blocker.chain_id)
    return msgspec.structs.replace(blocker, output=_encode(shown).decode())


def _is_sealed_somewhere(job: Job) -> bool:
    return (
        is_sealed(job.input)
        or (isinstance(job, CompletedJob) and is_sealed(job.output))
        or (job.progress is not None and is_sealed(job.progress.note))
        or any(is_sealed(error.message) for error in job.errors)
    )
