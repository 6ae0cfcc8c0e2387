"""Which API server to talk to, and as whom: from a kubeconfig or from inside a pod. For clients, not the operator.

The official client reads the files, asks credential plug-ins and refreshes tokens. Here are the rules that it leaves
to its caller (which files, the first current-context counts, impersonation, token files that are renewed in place),
and errors that name the file and the entry. Nothing is contacted here but plug-ins. Secrets are never in an error.
"""

from __future__ import annotations

import contextlib
import logging
import os
import ssl
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from trialpod.errors import InvalidInputError, nearest
from trialpod.missing import install_command

if TYPE_CHECKING:
    from kubernetes.client import ApiClient, Configuration
    from kubernetes.config.kube_config import ConfigNode, KubeConfigMerger

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_REMEDY = (
    "name a kubeconfig file (KUBECONFIG, or --kubeconfig FILE), or run this where `kubectl get namespaces` works. A "
    "cluster to try things out: https://kind.sigs.k8s.io. `trialpod run` needs none"
)
_HEADER_CHARACTERS = "!#$&'*+^`|"
"""What `quote` leaves, besides letters, digits and ``_.-~``, in the name of a header."""

Json = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Access:
    """How to reach a cluster.

    Attributes:
        configuration: of the official client.
        namespace: to use when none is named.
        source: where this comes from, for messages.
        headers: of every request: impersonation. A name may be there several times.
    """

    configuration: Configuration = field(repr=False)
    namespace: str = "default"
    source: str = ""
    headers: list[tuple[str, str]] = field(default_factory=list)

    @property
    def server(self) -> str:
        """URL of the API server."""
        return str(self.configuration.host)

    def client(self) -> ApiClient:
        """Return a client with connections of its own.

        Raises:
            InvalidInputError: the certificates cannot be used.
        """
        from kubernetes.client import ApiClient

        try:
            client = ApiClient(self.configuration)
        except (ssl.SSLError, OSError, ValueError) as error:
            raise InvalidInputError(f"{self.source}: {error}; {_REMEDY}") from error
        client.user_agent = "trialpod"
        return client


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
        present = [path for path in paths if path.exists()]
        if not present:
            missing = ", ".join(map(str, paths))
            raise InvalidInputError(f"no cluster is known: KUBECONFIG is {missing}, which does not exist; {_REMEDY}")
        return _from_files(present, context)
    if environ.get("KUBERNETES_SERVICE_HOST") and (SERVICE_ACCOUNT / "token").exists():
        return _in_pod()
    raise InvalidInputError(f"no cluster is known: there is no kubeconfig (KUBECONFIG, ~/.kube/config); {_REMEDY}")


def _in_pod() -> Access:
    configuration = _configuration()
    from kubernetes.config import ConfigException, load_incluster_config

    try:
        load_incluster_config(client_configuration=configuration)
    except ConfigException as error:
        raise InvalidInputError(f"the pod's service account cannot be used: {error}; {_REMEDY}") from error
    namespace = SERVICE_ACCOUNT / "namespace"
    return Access(
        configuration=configuration,
        namespace=namespace.read_text().strip() if namespace.exists() else "default",
        source="the pod's service account",
    )


def _configuration() -> Configuration:
    try:
        from kubernetes.client import Configuration
        from urllib3 import Retry
    except ModuleNotFoundError as error:
        raise InvalidInputError(
            f"access to a cluster needs the package {error.name!r}, which is not installed; install it with: "
            f"{install_command('kubernetes')}"
        ) from error
    configuration = Configuration()
    # A connection that the server has closed is opened again; only a request that reads is sent twice.
    configuration.retries = Retry(total=1, connect=0, read=1, redirect=0, status=0, other=0, allowed_methods=["GET"])
    return configuration


def _from_files(paths: list[Path], wanted: str | None) -> Access:
    configuration = _configuration()
    from kubernetes.config import ConfigException
    from kubernetes.config.kube_config import ConfigNode, KubeConfigLoader, KubeConfigMerger
    from urllib3.util import make_headers, parse_url

    source = ", ".join(map(str, paths))
    current = [_read(path).config.safe_get("current-context") for path in paths]
    name = wanted or next(filter(None, current), None)
    if name is None:
        raise InvalidInputError(f"{source} has no current-context; `kubectl config use-context NAME` sets one")
    merged = KubeConfigMerger(os.pathsep.join(map(str, paths))).config
    context = _entry(merged, "contexts", name, source).value["context"] or {}
    cluster = _entry(merged, "clusters", str(context.get("cluster")), source)
    user: Json = {}
    folder = Path()
    if context.get("user"):
        entry = _entry(merged, "users", str(context["user"]), source)
        user, folder = entry.value.get("user") or {}, Path(entry.path).absolute().parent
    where = f"{source}, context {name}"
    if parse_url(str(cluster.value["cluster"].get("server") or "")).scheme not in ("http", "https"):
        raise InvalidInputError(
            f"{cluster.path}: the cluster {context.get('cluster')} has no server's URL; {_REMEDY}"
        )
    try:
        loader = KubeConfigLoader(merged, active_context=name, config_base_path=None)
        with _no_root_logging():
            loader.load_and_set(configuration)
        if "exec" in user and not (configuration.api_key or configuration.cert_file):
            _ask_plugin(ConfigNode("exec", user["exec"] or {}, str(folder)), folder, str(context["user"]), where)
            loader.load_and_set(configuration)
    except ConfigException as error:
        raise InvalidInputError(f"{where}: {error}") from error
    except ValueError as error:  # of base64 that is none
        raise InvalidInputError(
            f"{where}: a certificate or key is not base64: {error}; get a new kubeconfig"
        ) from error
    if user.get("tokenFile") and not user.get("token"):
        _reread_token(configuration, folder / user["tokenFile"])
    if (proxy := parse_url(configuration.proxy or "")).auth:
        configuration.proxy_headers = make_headers(proxy_basic_auth=proxy.auth)
    return Access(
        configuration=configuration,
        namespace=str(context.get("namespace") or "default"),
        source=where,
        headers=_impersonation(user, where),
    )


def _read(path: Path) -> KubeConfigMerger:
    import yaml
    from kubernetes.config import ConfigException
    from kubernetes.config.kube_config import KubeConfigMerger

    try:
        merger = KubeConfigMerger(str(path))
        for kind in ("clusters", "contexts", "users"):
            merger.config[kind]
    except OSError as error:
        raise InvalidInputError(f"{path} cannot be read: {error.strerror}; {_REMEDY}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InvalidInputError(f"{path} is not a kubeconfig: it is not YAML; {_REMEDY}") from error
    except (ConfigException, TypeError, AttributeError, KeyError) as error:
        raise InvalidInputError(f"{path} is not a kubeconfig; {_REMEDY}") from error
    return merger


def _entry(merged: ConfigNode, kind: str, name: str, source: str) -> ConfigNode:
    found = merged[kind].get_with_name(name, safe=True)
    if found is not None:
        return found
    known = [str(each["name"]) for each in merged[kind].value]
    guess = nearest(name, known)
    hint = f"; did you mean {guess!r}?" if guess else f" (there are: {', '.join(known) or 'none'})"
    raise InvalidInputError(f"{source} has no {kind[:-1]} {name!r}{hint}")


def _ask_plugin(spec: ConfigNode, folder: Path, user: str, where: str) -> None:
    """Ask a credential plug-in again, for the error that the client has only logged.

    Raises:
        InvalidInputError: it fails.
    """
    from kubernetes.config import ConfigException
    from kubernetes.config.exec_provider import ExecProvider

    what = f"{where}: the plug-in {spec.value.get('command')} that authenticates user {user}"
    try:
        status = ExecProvider(spec, str(folder)).run()
    except FileNotFoundError as error:
        hint = str(spec.value.get("installHint") or "install it, and put it on the PATH").strip()
        raise InvalidInputError(f"{what} is not installed; {hint}") from error
    except OSError as error:
        raise InvalidInputError(f"{what} cannot run: {error}; does kubectl work?") from error
    except ConfigException as error:
        raise InvalidInputError(f"{what} failed: {str(error)[-500:]}; log in again") from error
    if not status.get("token") and not status.get("clientCertificateData"):
        raise InvalidInputError(f"{what} printed no credentials; does kubectl work?")


@contextlib.contextmanager
def _no_root_logging() -> Iterator[None]:
    """Keep the client from installing a handler on the root logger, which it does when a plug-in fails."""
    handler = logging.NullHandler()
    root = logging.getLogger()
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)


def _reread_token(configuration: Configuration, path: Path) -> None:
    """Read a token file for each request: tokens are renewed in place."""

    def refresh(own: Configuration) -> None:
        try:
            own.api_key["BearerToken"] = f"Bearer {path.read_text().strip()}"
        except OSError as error:
            raise InvalidInputError(f"the token {path} cannot be read: {error.strerror}") from error

    configuration.refresh_api_key_hook = refresh


def _impersonation(user: Json, where: str) -> list[tuple[str, str]]:
    """Return the headers for `as`, `as-uid`, `as-groups` and `as-user-extra` of a user.

    Raises:
        InvalidInputError: a value cannot be in a header.
    """
    wanted = [("as", "Impersonate-User", user.get("as")), ("as-uid", "Impersonate-Uid", user.get("as-uid"))]
    wanted += [("as-groups", "Impersonate-Group", group) for group in user.get("as-groups") or ()]
    for key, values in (user.get("as-user-extra") or {}).items():
        name = f"Impersonate-Extra-{quote(str(key), safe=_HEADER_CHARACTERS)}"
        wanted += [("as-user-extra", name, value) for value in values or ()]
    for field_name, _, value in wanted:
        if not str(value).isprintable():
            raise InvalidInputError(
                f"{where}: {field_name} of the user is {value!r}, which has unprintable characters"
            )
    return [(name, str(value)) for _, name, value in wanted if value]
