"""The operator's certificate authority and server certificate: one Secret, made at the first start, kept up to date.

Everything is data in that Secret; `plan_rotation` is a pure function of it and the time, except for the keys that it
generates. Pods get `BUNDLE` alone, the certificate to trust.

The server certificate is renewed at two thirds of its life. The authority lasts ten years and is replaced on its last
day, or after `kubectl delete secret trialpod-authority`. Running trials read the new one from their mounted
ConfigMap, and retry until they have it.

Invariants: several operators may start at once; the first that writes the Secret wins, and the others read what it
wrote, within `CHECK_INTERVAL_S` while they run: until then trials do not trust them. Certificates satisfy OpenSSL's
strict mode (RFC 5280), which Python 3.13 turns on.
"""

from __future__ import annotations

import asyncio
import base64
import datetime as dt
import ipaddress
import logging
import os
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from trialpod.errors import TrialpodError
from trialpod_operator.api.api_errors import AlreadyExistsError, ApiError, ConflictError, NotFoundError
from trialpod_operator.cluster import kube as paths
from trialpod_operator.cluster import names
from trialpod_operator.cluster.kube import Kube

logger = logging.getLogger(__name__)

SECRET = "trialpod-authority"
MAX_WRITE_ATTEMPTS = 5
RETRY_S = 2.0
CHECK_INTERVAL_S = 60.0
PUBLISH_INTERVAL_S = 3600.0
"""Interval at which the bundle is published again, although it has not changed: a user may have edited it."""

BUNDLE = "ca.crt"
"""Key of the certificates to trust, PEM; the only one that leaves the Secret."""

SERVER_CERTIFICATE = "tls.crt"
SERVER_KEY = "tls.key"

_AUTHORITY = "authority.crt"
_AUTHORITY_KEY = "authority.key"

_DAY_S = 86_400.0
_BACKDATED_S = 3600.0  # for nodes whose clocks are behind


class CertificateError(TrialpodError):
    """What is stored is not an authority of this operator."""


@dataclass(frozen=True, slots=True)
class Lifetimes:
    """How long everything lasts, in seconds."""

    authority_s: float = 3650 * _DAY_S
    server_s: float = 90 * _DAY_S
    server_renewed: float = 2 / 3  # of `server_s`


@dataclass(frozen=True, slots=True)
class Rotation:
    """What is to be done."""

    data: dict[str, bytes]
    """The whole new content of the Secret."""
    reasons: tuple[str, ...]
    """What has changed, in words; empty when nothing has."""

    @property
    def changed(self) -> bool:
        """Whether the Secret has to be written."""
        return bool(self.reasons)


def plan_rotation(
    data: Mapping[str, bytes], names: Sequence[str], now: float, lifetimes: Lifetimes | None = None
) -> Rotation:
    """Return what the Secret has to contain now.

    Args:
        data: what it contains; empty when there is none yet.
        names: DNS names and IP addresses of the server, the first one as its common name.
        now: seconds since the epoch.
        lifetimes: how long everything lasts.

    Raises:
        CertificateError: what is stored cannot be read.
    """
    if not names:
        raise CertificateError("a server certificate needs at least one name")
    lifetimes = lifetimes or Lifetimes()
    new = dict(data)
    reasons: list[str] = []
    if new and _AUTHORITY not in new:
        raise CertificateError(
            f"the stored authority has no {_AUTHORITY}, only {', '.join(sorted(new))}; remove the Secret to have "
            "a new one made"
        )
    if not new:
        reasons.append("created a certificate authority")
    elif now >= _certificate(new, _AUTHORITY).not_valid_after_utc.timestamp() - _DAY_S:
        reasons.append("replaced the certificate authority: it expires within a day")
    if reasons:
        _put(new, _AUTHORITY, _AUTHORITY_KEY, _new_authority(now, lifetimes))
    why = _why_renew(new, names, now, lifetimes)
    if why is not None:
        _put(new, SERVER_CERTIFICATE, SERVER_KEY, _new_server(new, names, now, lifetimes))
        reasons.append(f"created a server certificate: {why}")
    new[BUNDLE] = new[_AUTHORITY]
    if new[BUNDLE] != data.get(BUNDLE) and not reasons:
        reasons.append("restored the bundle")
    return Rotation(new, tuple(reasons))


class StoredAuthority:
    """The authority and the server certificate in their Secret. Owned by the event loop.

    Args:
        kube: the API server.
        namespace: of the Secret.
        server_names: DNS names under which trials call the report service.
        clock: seconds since the epoch.
    """

    def __init__(self, kube: Kube, namespace: str, server_names: Sequence[str], clock: Callable[[], float]) -> None:
        self._kube = kube
        self._namespace = namespace
        self._server_names = list(server_names)
        self._clock = clock
        self._data: dict[str, bytes] = {}

    @property
    def bundle(self) -> str:
        """The certificates that pods have to trust, PEM."""
        return self._data[BUNDLE].decode("ascii")

    def context(self) -> ssl.SSLContext:
        """Return the server's TLS context."""
        return ssl_context(self._data[SERVER_CERTIFICATE], self._data[SERVER_KEY])

    async def refresh(self) -> bool:
        """Read the Secret, renew what is due, write it; return whether anything is new to this process.

        Raises:
            ApiError: the Secret cannot be read or written.
            CertificateError: its content is none of ours.
        """
        before = dict(self._data)
        for _ in range(MAX_WRITE_ATTEMPTS):
            found = await self._kube.get(paths.secrets(self._namespace), SECRET)
            stored = {key: base64.b64decode(value) for key, value in ((found or {}).get("data") or {}).items()}
            rotation = plan_rotation(stored, self._server_names, self._clock())
            if rotation.changed and not await self._write(found, rotation):
                continue  # another operator was faster
            self._data = rotation.data
            return self._data != before
        message = f"the Secret was modified concurrently in {MAX_WRITE_ATTEMPTS} attempts"
        raise ConflictError("PUT", SECRET, 409, {"reason": "Conflict", "message": message})

    async def begin(self) -> None:
        """Refresh at a start; wait while the API server cannot be reached.

        A process that exited instead would be restarted with a growing delay, and still be away afterwards.

        Raises:
            ApiError: the Secret may not be read or written.
            CertificateError: its content is none of ours.
        """
        while True:
            try:
                await self.refresh()
                return
            except ApiError as error:
                if not error.temporary:
                    raise
                logger.warning("the certificates cannot be read yet: %s", error)
            await asyncio.sleep(RETRY_S)

    async def keep(
        self, replace_tls: Callable[[ssl.SSLContext], None], publish: Callable[[], Awaitable[bool]]
    ) -> None:
        """Keep everything up to date, without an end.

        Args:
            replace_tls: called with the server's new TLS context.
            publish: gives the bundle to pods; returns False if some do not have it yet.
        """
        is_published, published_at = True, self._clock()
        while True:
            await asyncio.sleep(CHECK_INTERVAL_S)
            try:
                if await self.refresh():
                    replace_tls(self.context())
                    is_published = False
                if not is_published or self._clock() - published_at >= PUBLISH_INTERVAL_S:
                    is_published, published_at = await publish(), self._clock()
            except TrialpodError as error:
                logger.warning("the certificates could not be renewed: %s", error)

    async def _write(self, found: dict[str, object] | None, rotation: Rotation) -> bool:
        for reason in rotation.reasons:
            logger.info("certificates: %s", reason)
        metadata: dict[str, object] = {
            "name": SECRET,
            "namespace": self._namespace,
            "labels": {names.MANAGED_BY_LABEL: names.MANAGER},
        }
        data = {key: base64.b64encode(value).decode("ascii") for key, value in rotation.data.items()}
        body = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": "Opaque", "data": data}
        collection = paths.secrets(self._namespace)
        try:
            if found is None:
                await self._kube.create(collection, body)
            else:
                known = found["metadata"]
                assert isinstance(known, dict)
                metadata["resourceVersion"] = known.get("resourceVersion")
                await self._kube.request("PUT", f"{collection}/{SECRET}", body=body)
        except (NotFoundError, AlreadyExistsError, ConflictError):
            return False
        return True


def ssl_context(certificate: bytes, key: bytes) -> ssl.SSLContext:
    """Return a server's TLS context.

    Args:
        certificate: PEM, the server's own first.
        key: its private key, PEM.

    Raises:
        CertificateError: they are not a certificate and its key, or do not belong together.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # Our client resumes no session, and a ticket would be one more write per handshake.
    context.num_tickets = 0
    # OpenSSL wants a file; this one is in memory only, so the key never reaches a disk.
    descriptor = os.memfd_create("trialpod-tls", os.MFD_CLOEXEC)
    try:
        with os.fdopen(descriptor, "wb", closefd=False) as stream:
            stream.write(certificate + b"\n" + key)
        context.load_cert_chain(f"/proc/self/fd/{descriptor}")
    except ssl.SSLError as error:
        raise CertificateError(f"the server certificate and its key cannot be used: {error}") from error
    finally:
        os.close(descriptor)
    return context


# Authorities.


def _new_authority(now: float, lifetimes: Lifetimes) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    key = ec.generate_private_key(ec.SECP256R1())
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    # Two authorities in one bundle must not have the same name.
    name = _common_name(f"trialpod authority {identifier.digest.hex()[:16]}")
    builder = (
        _begun(name, name, key, now, lifetimes.authority_s)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(signs_certificates=True), critical=True)
        .add_extension(identifier, critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier), critical=False)
    )
    return builder.sign(key, hashes.SHA256()), key


# The server.


def _new_server(
    data: Mapping[str, bytes], names: Sequence[str], now: float, lifetimes: Lifetimes
) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    authority, signer = _certificate(data, _AUTHORITY), _private_key(data, _AUTHORITY_KEY)
    if signer.public_key() != authority.public_key():
        raise CertificateError(
            f"the stored {_AUTHORITY_KEY} does not belong to {_AUTHORITY}; remove the Secret to have new ones made"
        )
    key = ec.generate_private_key(ec.SECP256R1())
    issuer_key = authority.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    left = authority.not_valid_after_utc.timestamp() - now
    builder = (
        # A common name has 64 characters at most; what is verified are the alternative names.
        _begun(_common_name(names[0][:64]), authority.subject, key, now, min(lifetimes.server_s, left))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([_general_name(name) for name in names]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(issuer_key), critical=False)
    )
    return builder.sign(signer, hashes.SHA256()), key


def _why_renew(data: Mapping[str, bytes], names: Sequence[str], now: float, lifetimes: Lifetimes) -> str | None:
    if SERVER_CERTIFICATE not in data or SERVER_KEY not in data:
        return "there was none"
    certificate = _certificate(data, SERVER_CERTIFICATE)
    if certificate.public_key() != _private_key(data, SERVER_KEY).public_key():
        return "its key was another one's"
    try:
        certificate.verify_directly_issued_by(_certificate(data, _AUTHORITY))
    except (ValueError, TypeError, InvalidSignature):
        return "another authority had signed it"
    found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    if set(found) != {_general_name(name) for name in names}:
        return "the server has other names now"
    begin = certificate.not_valid_before_utc.timestamp() + _BACKDATED_S
    end = certificate.not_valid_after_utc.timestamp()
    return "it was about to expire" if now >= begin + lifetimes.server_renewed * (end - begin) else None


# Small parts.


def _begun(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, now: float, lifetime_s: float
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(_moment(now - _BACKDATED_S))
        .not_valid_after(_moment(now + lifetime_s))
    )


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _common_name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _put(
    data: dict[str, bytes],
    certificate_name: str,
    key_name: str,
    made: tuple[x509.Certificate, ec.EllipticCurvePrivateKey],
) -> None:
    certificate, key = made
    data[certificate_name] = certificate.public_bytes(serialization.Encoding.PEM)
    data[key_name] = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _certificate(data: Mapping[str, bytes], name: str) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(data[name])
    except (KeyError, ValueError) as error:
        raise CertificateError(
            f"the stored {name} is not a certificate; remove the Secret to have a new authority made"
        ) from error


def _private_key(data: Mapping[str, bytes], name: str) -> ec.EllipticCurvePrivateKey:
    try:
        key = serialization.load_pem_private_key(data[name], None)
    except (KeyError, ValueError, TypeError) as error:
        raise CertificateError(
            f"the stored {name} is not a private key; remove the Secret to have a new authority made"
        ) from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise CertificateError(
            f"the stored {name} is not an elliptic-curve key; remove the Secret to have new ones made"
        )
    return key


def _moment(seconds: float) -> dt.datetime:
    return dt.datetime.fromtimestamp(int(seconds), dt.UTC)
