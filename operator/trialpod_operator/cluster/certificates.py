"""The operator's own certificate authority, and the server certificate that trial pods verify.

Everything is data, as it stands in one Secret; `plan_rotation` is a pure function of that data and the time, but for
the keys that it draws. What pods need is `BUNDLE` alone, the certificates to trust.

An authority is replaced in three steps, so that no pod ever meets a certificate that it cannot verify:

1. A new one is made and put into the bundle. It signs nothing yet.
2. When the bundle has been given to all pods (`confirm_published`) and they have had time to see it, the new
   authority signs the server certificate. The old one stays in the bundle.
3. Later the old one leaves the bundle.

Invariants: private keys of authorities that sign no more are dropped; at any moment the bundle contains whoever
signed the server certificate, and whoever is going to sign the next one. Certificates satisfy OpenSSL's strict mode
(RFC 5280), which Python 3.13 turns on.
"""

from __future__ import annotations

import datetime as dt
import ipaddress
import os
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from trialpod.errors import TrialpodError

BUNDLE = "ca.crt"
"""Key of the certificates to trust, PEM; the only one that leaves the Secret."""

SERVER_CERTIFICATE = "tls.crt"
SERVER_KEY = "tls.key"

_AUTHORITY = "authority.crt"
_AUTHORITY_KEY = "authority.key"
_NEXT = "next.crt"
_NEXT_KEY = "next.key"
_NEXT_PUBLISHED = "next.published"  # seconds since the epoch: since when all pods are given the bundle with it
_PREVIOUS = "previous.crt"
_PREVIOUS_UNTIL = "previous.until"  # seconds since the epoch

_DAY_S = 86_400.0
_BACKDATED_S = 3600.0  # for nodes whose clocks are behind


class CertificateError(TrialpodError):
    """What is stored is no authority of ours."""


@dataclass(frozen=True, slots=True)
class Lifetimes:
    """How long everything lasts, in seconds."""

    authority_s: float = 3650 * _DAY_S
    server_s: float = 90 * _DAY_S
    server_renewed: float = 2 / 3  # of `server_s`
    authority_renewed: float = 0.8  # of `authority_s`
    overlap_s: float = 2 * _DAY_S  # between two steps of the replacement of an authority


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
    if _AUTHORITY not in new:
        if new:
            raise CertificateError(
                f"the stored authority has no {_AUTHORITY}, only {', '.join(sorted(new))}; remove the Secret to have "
                "a new one made"
            )
        _put(new, _AUTHORITY, _AUTHORITY_KEY, _new_authority(now, lifetimes))
        reasons.append("a certificate authority was made")
    _replace_authority(new, now, lifetimes, reasons)
    why = _why_renew(new, names, now, lifetimes)
    if why:
        _put(new, SERVER_CERTIFICATE, SERVER_KEY, _new_server(new, names, now, lifetimes))
        reasons.append(f"the server certificate was made anew: {why}")
    new[BUNDLE] = b"".join(new[key] for key in (_AUTHORITY, _NEXT, _PREVIOUS) if key in new)
    if data and new[BUNDLE] != data.get(BUNDLE) and not reasons:
        reasons.append("the bundle was put together again")
    return Rotation(new, tuple(reasons))


def confirm_published(data: Mapping[str, bytes], now: float) -> Rotation:
    """Note that all pods are given the bundle in `data` from `now` on; nothing changes when none waits for it."""
    if _NEXT not in data or _NEXT_PUBLISHED in data:
        return Rotation(dict(data), ())
    return Rotation({**data, _NEXT_PUBLISHED: _time(now)}, ("the next authority has been published",))


def next_change(data: Mapping[str, bytes], lifetimes: Lifetimes | None = None) -> float:
    """Return when `plan_rotation` will have something to do, in seconds since the epoch."""
    lifetimes = lifetimes or Lifetimes()
    authority = _certificate(data, _AUTHORITY)
    moments = [_renewal(_certificate(data, SERVER_CERTIFICATE), lifetimes.server_renewed)]
    if _NEXT_PUBLISHED in data:
        moments.append(_seconds(data, _NEXT_PUBLISHED) + lifetimes.overlap_s)
    elif _NEXT not in data:
        moments.append(_renewal(authority, lifetimes.authority_renewed))
    if _PREVIOUS_UNTIL in data:
        moments.append(_seconds(data, _PREVIOUS_UNTIL))
    return min(moments)


def ssl_context(certificate: bytes, key: bytes) -> ssl.SSLContext:
    """Return a server's TLS context.

    Args:
        certificate: PEM, the server's own first.
        key: its private key, PEM.

    Raises:
        CertificateError: they are no certificate and key, or do not belong together.
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


def _replace_authority(data: dict[str, bytes], now: float, lifetimes: Lifetimes, reasons: list[str]) -> None:
    authority = _certificate(data, _AUTHORITY)
    if _PREVIOUS in data and now >= _seconds(data, _PREVIOUS_UNTIL):
        del data[_PREVIOUS], data[_PREVIOUS_UNTIL]
        reasons.append("the previous authority is trusted no more")
    if _NEXT not in data:
        if now >= _renewal(authority, lifetimes.authority_renewed):
            _put(data, _NEXT, _NEXT_KEY, _new_authority(now, lifetimes))
            reasons.append("the next authority was made; it signs when all pods know it")
        else:
            return
    published = _NEXT_PUBLISHED in data and now >= _seconds(data, _NEXT_PUBLISHED) + lifetimes.overlap_s
    # After its end the old one convinces nobody: then it cannot get worse.
    if not published and now < authority.not_valid_after_utc.timestamp():
        return
    data[_PREVIOUS] = data[_AUTHORITY]
    data[_PREVIOUS_UNTIL] = _time(now + lifetimes.overlap_s)
    data[_AUTHORITY], data[_AUTHORITY_KEY] = data.pop(_NEXT), data.pop(_NEXT_KEY)
    data.pop(_NEXT_PUBLISHED, None)
    reasons.append("the next authority signs from now on")


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


def _why_renew(data: Mapping[str, bytes], names: Sequence[str], now: float, lifetimes: Lifetimes) -> str:
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
    if now >= _renewal(certificate, lifetimes.server_renewed):
        return "it was about to end"
    return ""


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


def _renewal(certificate: x509.Certificate, fraction: float) -> float:
    begin = certificate.not_valid_before_utc.timestamp() + _BACKDATED_S
    return begin + fraction * (certificate.not_valid_after_utc.timestamp() - begin)


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
            f"the stored {name} is no certificate; remove the Secret to have a new authority made"
        ) from error


def _private_key(data: Mapping[str, bytes], name: str) -> ec.EllipticCurvePrivateKey:
    try:
        key = serialization.load_pem_private_key(data[name], None)
    except (KeyError, ValueError, TypeError) as error:
        raise CertificateError(
            f"the stored {name} is no private key; remove the Secret to have a new authority made"
        ) from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise CertificateError(f"the stored {name} is no elliptic-curve key; remove the Secret to have new ones made")
    return key


def _moment(seconds: float) -> dt.datetime:
    return dt.datetime.fromtimestamp(int(seconds), dt.UTC)


def _time(seconds: float) -> bytes:
    return f"{seconds:.0f}\n".encode()


def _seconds(data: Mapping[str, bytes], name: str) -> float:
    try:
        return float(data[name])
    except (KeyError, ValueError) as error:
        raise CertificateError(f"the stored {name} is no time in seconds since the epoch") from error
