"""Certificates and kubeconfigs: one authority for the cluster, a client certificate for each of its parts."""

from __future__ import annotations

import base64
import datetime as dt
import ipaddress
import json
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from . import layout

_DAYS = 365


def _write_key(path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    path.touch(mode=0o600)
    path.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )


def _name(common: str, organisation: str = "") -> x509.Name:
    attributes = [x509.NameAttribute(NameOID.COMMON_NAME, common)]
    if organisation:
        attributes.insert(0, x509.NameAttribute(NameOID.ORGANIZATION_NAME, organisation))
    return x509.Name(attributes)


class Authority:
    """A certificate authority with its files in a folder."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._subject = _name("trialpod test cluster")
        certificate = (
            self._builder(self._subject, self._key)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(_usage(sign=True), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.certificate_file = folder / "ca.crt"
        self.certificate_file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        self.key_file = folder / "ca.key"
        _write_key(self.key_file, self._key)

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        now = dt.datetime.now(dt.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(hours=1))
            .not_valid_after(now + dt.timedelta(days=_DAYS))
        )

    def issue(self, name: str, common: str, organisation: str = "", hosts: tuple[str, ...] = ()) -> tuple[Path, Path]:
        """Write NAME.crt and NAME.key, and return their paths; with hosts it is a server's, else a client's."""
        key = ec.generate_private_key(ec.SECP256R1())
        purpose = ExtendedKeyUsageOID.SERVER_AUTH if hosts else ExtendedKeyUsageOID.CLIENT_AUTH
        builder = (
            self._builder(_name(common, organisation), key)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(sign=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
        )
        if hosts:
            names = x509.SubjectAlternativeName([_general_name(host) for host in hosts])
            builder = builder.add_extension(names, critical=False)
        certificate_file, key_file = self.folder / f"{name}.crt", self.folder / f"{name}.key"
        certificate_file.write_bytes(
            builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
        )
        _write_key(key_file, key)
        return certificate_file, key_file

    def kubeconfig(self, path: Path, name: str, common: str, organisation: str = "") -> None:
        """Write a kubeconfig, with all keys inside, of a new client certificate."""
        certificate, key = self.issue(name, common, organisation)
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {
                    "name": "trialpod-test",
                    "cluster": {
                        "server": layout.API_URL,
                        "certificate-authority-data": _encoded(self.certificate_file),
                    },
                }
            ],
            "users": [
                {
                    "name": name,
                    "user": {"client-certificate-data": _encoded(certificate), "client-key-data": _encoded(key)},
                }
            ],
            "contexts": [{"name": "trialpod-test", "context": {"cluster": "trialpod-test", "user": name}}],
            "current-context": "trialpod-test",
        }
        path.touch(mode=0o600)
        path.write_text(json.dumps(config, indent=1))


def _encoded(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _usage(*, sign: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=not sign,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=sign,
        crl_sign=sign,
        encipher_only=False,
        decipher_only=False,
    )


def create() -> None:
    """Write all certificates and kubeconfigs of a new cluster."""
    authority = Authority(layout.PKI)
    authority.issue(
        "apiserver",
        "kube-apiserver",
        hosts=(
            "kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local",
            "localhost", "127.0.0.1", layout.KUBERNETES_SERVICE, layout.API_ADDRESS,
        ),
    )  # fmt: skip
    authority.issue("kubelet-client", "kube-apiserver", "system:masters")
    layout.CONFIG.mkdir(parents=True, exist_ok=True)
    authority.kubeconfig(layout.KUBECONFIG, "admin", "admin", "system:masters")
    for part in ("kube-controller-manager", "kube-scheduler", "kube-proxy"):
        authority.kubeconfig(layout.CONFIG / f"{part}.kubeconfig", part, f"system:{part}")
    # CoreDNS runs outside of the cluster, without a ServiceAccount: it reads as the API server's administrator.
    authority.kubeconfig(layout.CONFIG / "coredns.kubeconfig", "coredns", "system:coredns", "system:masters")
    for node in layout.NODES:
        authority.kubeconfig(
            layout.CONFIG / f"{node.name}.kubeconfig", node.name, f"system:node:{node.name}", "system:nodes"
        )
    service_accounts = ec.generate_private_key(ec.SECP256R1())
    _write_key(layout.PKI / "service-accounts.key", service_accounts)
    (layout.PKI / "service-accounts.pub").write_bytes(
        service_accounts.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
    )
