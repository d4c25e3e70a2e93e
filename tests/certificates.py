"""Certificates for tests of TLS: an authority of our own, and what it signs.

    authority = certificates.authority(tmp_path)
    right = certificates.certificate(authority)  # for localhost and 127.0.0.1
    late = certificates.certificate(authority, expired=True)
    other = certificates.certificate(certificates.authority(tmp_path / "others"))

Files can be read by everybody, so that a server that gave up root may read them: put them where it may look,
for tmp_path is closed to others (`certificates.folder()` is not). A server that insists on a private key of its own
(PostgreSQL) needs a copy of it.
"""

import datetime
import ipaddress
import shutil
import ssl
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_DAY = datetime.timedelta(days=1)


@dataclass(frozen=True)
class Authority:
    """Who signs: `file` is what clients are told to trust."""

    file: Path
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    def context(self) -> ssl.SSLContext:
        """A client's, that trusts this authority alone."""
        return ssl.create_default_context(cafile=str(self.file))


@dataclass(frozen=True)
class Certificate:
    """The files that a server, or a client that shows who it is, is given."""

    file: Path
    key: Path


@contextmanager
def folder() -> Iterator[Path]:
    """A new folder that servers of other users can read, gone at the end."""
    made = Path(tempfile.mkdtemp(prefix="onward-certificates-"))
    made.chmod(0o755)
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


def authority(folder: Path, name: str = "onward tests") -> Authority:
    """A new authority, its certificate in `folder`, which is made if need be."""
    folder.mkdir(parents=True, exist_ok=True)
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _named(name)
    builder = _builder(subject, subject, key, expired=False).add_extension(
        x509.BasicConstraints(ca=True, path_length=0), critical=True
    )
    usage = x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=True,
        crl_sign=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
    signed = builder.add_extension(usage, critical=True).sign(key, hashes.SHA256())
    return Authority(_write(folder / "authority.pem", _pem(signed)), signed, key)


def certificate(
    authority: Authority, names: Sequence[str] = ("localhost", "127.0.0.1"), *, expired: bool = False
) -> Certificate:
    """A certificate for these hosts, names or addresses, in the authority's folder; `expired` since yesterday."""
    key = ec.generate_private_key(ec.SECP256R1())
    signed = (
        _builder(_named(names[0]), authority.certificate.subject, key, expired=expired)
        .add_extension(x509.SubjectAlternativeName([_host(name) for name in names]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key()),
            critical=False,
        )
        .sign(authority.key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    stem = f"{signed.serial_number:x}"
    beside = authority.file.parent
    return Certificate(_write(beside / f"{stem}.pem", _pem(signed)), _write(beside / f"{stem}.key", private))


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, *, expired: bool
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - 3 * _DAY)
        .not_valid_after(now - _DAY if expired else now + 30 * _DAY)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _host(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _pem(signed: x509.Certificate) -> bytes:
    return signed.public_bytes(serialization.Encoding.PEM)


def _write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    path.chmod(0o644)
    return path
