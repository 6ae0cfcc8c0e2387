"""Which API server to talk to, and as whom: from a kubeconfig or from inside a pod. For clients, not the operator.

Standard library and PyYAML only, so that `trialpod why` needs nothing that `trialpod run` does not. Understood are
client certificates, tokens, token files, exec plug-ins (EKS, GKE, AKS, OIDC), names and passwords, and proxies.

Invariants: nothing is contacted here. What is missing or wrong is an error that names the file and the entry. Secrets
are never in an error.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import ssl
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from trialpod.errors import InvalidInputError, nearest

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
PLUGIN_TIMEOUT_S = 60.0
_REMEDY = (
    "name a kubeconfig file (KUBECONFIG, or --kubeconfig FILE), or run this where `kubectl get namespaces` works. A "
    "cluster to try things out: https://kind.sigs.k8s.io. `trialpod run` needs none"
)

Json = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Access:
    """How to reach a cluster.

    Attributes:
        server: URL of the API server.
        namespace: to use when none is named.
        source: where this comes from, for messages.
        headers: of every request: the authorization.
        token_file: a file with the token, read for each connection because tokens are renewed in place.
        tls: None for plain HTTP.
        server_name: the name that the server's certificate must have, when that is not the one in `server`.
        proxy: URL of an HTTP proxy; "" = as the environment's HTTPS_PROXY and NO_PROXY say.
    """

    server: str
    namespace: str = "default"
    source: str = ""
    headers: dict[str, str] = field(default_factory=dict, repr=False)
    token_file: str = ""
    tls: ssl.SSLContext | None = None
    server_name: str = ""
    proxy: str = ""


def find_access(environ: Mapping[str, str] = os.environ, *, context: str | None = None) -> Access:
    """Return how to reach the cluster: KUBECONFIG, or ~/.kube/config, or the pod that this runs in.

    Args:
        environ: instead of the process's variables.
        context: name of the kubeconfig's context; None takes its current one.

    Raises:
        InvalidInputError: there is no configuration, or it cannot be used.
    """
    given = environ.get("KUBECONFIG", "")
    paths = [Path(part).expanduser() for part in given.split(os.pathsep) if part]
    if not paths:
        home = Path(environ.get("HOME") or "~").expanduser() / ".kube" / "config"
        paths = [home] if home.exists() else []
    if paths:
        missing = [str(path) for path in paths if not path.exists()]
        if len(missing) == len(paths):
            raise InvalidInputError(
                f"no cluster is known: KUBECONFIG is {', '.join(missing)}, which is not there; {_REMEDY}"
            )
        return _from_files([path for path in paths if path.exists()], context)
    host = environ.get("KUBERNETES_SERVICE_HOST")
    if host and (SERVICE_ACCOUNT / "token").exists():
        return _in_pod(host, environ.get("KUBERNETES_SERVICE_PORT", "443"))
    raise InvalidInputError(f"no cluster is known: there is no kubeconfig (KUBECONFIG, ~/.kube/config); {_REMEDY}")


def _in_pod(host: str, port: str) -> Access:
    address = f"[{host}]" if ":" in host else host
    namespace = SERVICE_ACCOUNT / "namespace"
    return Access(
        server=f"https://{address}:{port}",
        namespace=namespace.read_text().strip() if namespace.exists() else "default",
        source="the pod's service account",
        token_file=str(SERVICE_ACCOUNT / "token"),
        tls=ssl.create_default_context(cafile=str(SERVICE_ACCOUNT / "ca.crt")),
    )


def _from_files(paths: list[Path], wanted: str | None) -> Access:
    entries: dict[str, dict[str, tuple[Json, Path]]] = {"clusters": {}, "contexts": {}, "users": {}}
    current = ""
    for path in paths:
        document = _read(path)
        current = current or str(document.get("current-context") or "")
        for kind, found in entries.items():
            for item in document.get(kind) or []:
                # As kubectl merges files: the first one that names an entry counts.
                found.setdefault(str(item.get("name")), (item.get(kind[:-1]) or {}, path))
    source = ", ".join(map(str, paths))
    name = wanted or current
    if not name:
        raise InvalidInputError(f"{source} has no current-context; `kubectl config use-context NAME` sets one")
    context, _ = _entry(entries, "contexts", name, source)
    cluster, where = _entry(entries, "clusters", str(context.get("cluster")), source)
    user, user_where = (
        _entry(entries, "users", str(context.get("user")), source) if context.get("user") else ({}, where)
    )
    server = str(cluster.get("server") or "")
    if urlsplit(server).scheme not in ("http", "https"):
        raise InvalidInputError(f"{where}: the cluster {context.get('cluster')} has no server's URL; {_REMEDY}")
    headers, token_file, certificate = _identity(user, user_where, str(context.get("user")))
    return Access(
        server=server.rstrip("/"),
        namespace=str(context.get("namespace") or "default"),
        source=f"{source}, context {name}",
        headers=headers,
        token_file=token_file,
        tls=_tls(cluster, where, certificate) if server.startswith("https") else None,
        server_name=str(cluster.get("tls-server-name") or ""),
        proxy=str(cluster.get("proxy-url") or ""),
    )


def _read(path: Path) -> Json:
    import yaml

    try:
        found = yaml.load(path.read_bytes(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except OSError as error:
        raise InvalidInputError(f"{path} cannot be read: {error.strerror}; {_REMEDY}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InvalidInputError(f"{path} is not a kubeconfig: it is no YAML; {_REMEDY}") from error
    if not isinstance(found, dict):
        raise InvalidInputError(f"{path} is not a kubeconfig; {_REMEDY}")
    return found


def _entry(
    entries: Mapping[str, Mapping[str, tuple[Json, Path]]], kind: str, name: str, source: str
) -> tuple[Json, Path]:
    if name in entries[kind]:
        return entries[kind][name]
    guess = nearest(name, entries[kind])
    hint = f"; did you mean {guess!r}?" if guess else f" (there are: {', '.join(entries[kind]) or 'none'})"
    raise InvalidInputError(f"{source} has no {kind[:-1]} {name!r}{hint}")


def _identity(user: Json, where: Path, name: str) -> tuple[dict[str, str], str, tuple[str, str] | None]:
    """Return headers, token file and client certificate (PEM: certificate, key) of a user."""
    if "exec" in user:
        return _plugin(user["exec"] or {}, where, name)
    if "auth-provider" in user:
        kind = (user["auth-provider"] or {}).get("name")
        raise InvalidInputError(
            f"{where}: the user {name} has the auth-provider {kind}, which Kubernetes has removed; use its "
            "exec plug-in"
        )
    certificate = None
    pem = _data(user, "client-certificate", where)
    key = _data(user, "client-key", where)
    if pem and key:
        certificate = (pem, key)
    headers: dict[str, str] = {}
    token_file = ""
    if user.get("token"):
        headers["Authorization"] = f"Bearer {user['token']}"
    elif user.get("tokenFile"):
        token_file = str(where.parent / user["tokenFile"])
    elif user.get("username"):
        pair = f"{user['username']}:{user.get('password', '')}".encode()
        headers["Authorization"] = f"Basic {base64.b64encode(pair).decode()}"
    return headers, token_file, certificate


def _plugin(spec: Json, where: Path, name: str) -> tuple[dict[str, str], str, tuple[str, str] | None]:
    """Ask a credential plug-in, as kubectl does."""
    command = [str(spec.get("command") or ""), *map(str, spec.get("args") or [])]
    version = str(spec.get("apiVersion") or "client.authentication.k8s.io/v1")
    asked = {"apiVersion": version, "kind": "ExecCredential", "spec": {"interactive": False}}
    environ = {**os.environ, "KUBERNETES_EXEC_INFO": json.dumps(asked)}
    environ.update({str(item["name"]): str(item["value"]) for item in spec.get("env") or []})
    if os.sep in command[0]:
        command[0] = str(where.parent / command[0])
    what = f"{where}: the plug-in {command[0]} that tells who the user {name} is"
    try:
        done = subprocess.run(
            command, env=environ, capture_output=True, stdin=subprocess.DEVNULL, timeout=PLUGIN_TIMEOUT_S, check=False
        )
    except FileNotFoundError as error:
        hint = str(spec.get("installHint") or "install it, and put it on the PATH").strip()
        raise InvalidInputError(f"{what} is not installed; {hint}") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InvalidInputError(f"{what} cannot run: {error}; does kubectl work?") from error
    if done.returncode:
        words = " ".join(done.stderr.decode(errors="replace").split())[-500:]
        raise InvalidInputError(f"{what} failed with status {done.returncode}: {words}; log in again")
    try:
        status = json.loads(done.stdout).get("status") or {}
    except ValueError as error:
        raise InvalidInputError(f"{what} printed no JSON; does kubectl work?") from error
    headers = {"Authorization": f"Bearer {status['token']}"} if status.get("token") else {}
    pem, key = status.get("clientCertificateData"), status.get("clientKeyData")
    return headers, "", (pem, key) if pem and key else None


def _data(entry: Json, name: str, where: Path) -> str:
    """Return a PEM text that stands in the kubeconfig, or in a file that it names; "" when there is none."""
    if inline := entry.get(f"{name}-data"):
        try:
            return base64.b64decode(inline, validate=True).decode()
        except (binascii.Error, ValueError) as error:
            raise InvalidInputError(f"{where}: {name}-data is no base64; get a new kubeconfig") from error
    if not entry.get(name):
        return ""
    path = where.parent / str(entry[name])
    try:
        return path.read_text()
    except OSError as error:
        raise InvalidInputError(f"{where}: {name} is {path}, which cannot be read: {error.strerror}") from error


def _tls(cluster: Json, where: Path, certificate: tuple[str, str] | None) -> ssl.SSLContext:
    authority = _data(cluster, "certificate-authority", where)
    try:
        context = ssl.create_default_context(cadata=authority or None)
    except ssl.SSLError as error:
        raise InvalidInputError(f"{where}: the certificate-authority is no PEM certificate; {_REMEDY}") from error
    if cluster.get("insecure-skip-tls-verify"):
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if certificate is not None:
        # The standard library takes a key from a file only; it is there for this moment, for this user alone.
        with tempfile.NamedTemporaryFile("w", prefix="trialpod-", suffix=".pem") as file:
            file.write("\n".join(certificate))
            file.flush()
            try:
                context.load_cert_chain(file.name)
            except ssl.SSLError as error:
                raise InvalidInputError(
                    f"{where}: the client certificate or its key cannot be used; {_REMEDY}"
                ) from error
    return context
