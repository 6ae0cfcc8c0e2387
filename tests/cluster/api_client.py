"""Reads, makes and deletes objects by the test cluster's API server, over one connection per thread.

A kubectl takes a tenth of a second of CPU, a question here half a millisecond; tests that wait ask several times a
second, side by side.
"""

from __future__ import annotations

import http.client
import json
import ssl
import threading
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlencode

from testcluster import layout

_GROUPS = {
    "/api/v1": ("configmap", "event", "pod", "secret", "service", "serviceaccount"),
    "/apis/apps/v1": ("deployment",),
    "/apis/batch/v1": ("job",),
    "/apis/coordination.k8s.io/v1": ("lease",),
    "/apis/trialpod.dev/v1alpha1": ("tuneexperiment", "tunetrial"),
    # Of the systems that benchmarks/peers compares with.
    "/apis/kubeflow.org/v1beta1": ("experiment", "trial"),
    "/apis/ray.io/v1": ("rayjob",),
}
_PATHS = {name: path for path, kinds in _GROUPS.items() for kind in kinds for name in (kind, f"{kind}s")}


class KubectlError(AssertionError):
    """The cluster could not be asked, or refused, by kubectl or without it: the message says why."""


class _Connection(http.client.HTTPSConnection):
    """Closed with the thread that has it."""

    def __del__(self) -> None:
        self.close()


class ApiClient:
    """The administrator's view. It may be used by several threads."""

    def __init__(self) -> None:
        self._local = threading.local()

    @staticmethod
    def knows(kind: str) -> bool:
        """Whether objects of this kind, in the singular or plural, can be asked for; all of them have namespaces."""
        return kind in _PATHS

    def get(self, kind: str, namespace: str, name: str) -> dict[str, Any] | None:
        """Return an object as ``kubectl get -o json`` prints it, or None if it is not there.

        Raises:
            KubectlError: The API server did not answer, or refused.
        """
        found = self._ask("GET", f"{_path(kind, namespace)}/{quote(name)}")
        if found is not None:
            found["metadata"].pop("managedFields", None)
        return found

    def list(self, kind: str, namespace: str, selector: str = "") -> list[dict[str, Any]]:
        """Return the objects of a kind with these labels.

        Raises:
            KubectlError: The API server did not answer, or refused.
        """
        query = f"?{urlencode({'labelSelector': selector})}" if selector else ""
        found = self._ask("GET", _path(kind, namespace) + query)
        if found is None:
            raise KubectlError(f"the API server does not know {kind}")
        items: list[dict[str, Any]] = found["items"]
        for item in items:  # in a list of built-in kinds the items do not say what they are
            item.setdefault("apiVersion", found["apiVersion"])
            item.setdefault("kind", found["kind"].removesuffix("List"))
            item["metadata"].pop("managedFields", None)
        return items

    def create(self, item: Mapping[str, Any], namespace: str = "") -> None:
        """Make a namespace, or an object in one.

        Raises:
            KubectlError: The API server did not answer, or refused.
        """
        path = _path(item["kind"].lower(), namespace) if namespace else "/api/v1/namespaces"
        if self._ask("POST", path, item) is None:
            raise KubectlError(f"POST {path}: not found")

    def delete_namespace(self, name: str) -> None:
        """Begin to delete a namespace with all that is in it, if it is there.

        Raises:
            KubectlError: The API server did not answer, or refused.
        """
        self._ask("DELETE", f"/api/v1/namespaces/{quote(name)}")

    def _ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any] | None:
        """Return the answer, None for 404; a connection that the server has closed is opened again once."""
        reused = getattr(self._local, "connection", None) is not None
        try:
            status, answer = self._answer(method, path, body)
        except (OSError, http.client.HTTPException) as error:
            self._close()
            if not reused:
                raise KubectlError(f"{method} {path}: {error!r}") from error
            return self._ask(method, path, body)
        if status == 404:
            return None
        if status >= 300:
            raise KubectlError(f"{method} {path}: {status} {answer[:500].decode('utf-8', 'replace')}")
        found: dict[str, Any] = json.loads(answer)
        return found

    def _answer(self, method: str, path: str, body: Mapping[str, Any] | None) -> tuple[int, bytes]:
        connection: _Connection | None = getattr(self._local, "connection", None)
        if connection is None:
            context = ssl.create_default_context(cafile=str(layout.PKI / "ca.crt"))
            context.load_cert_chain(layout.PKI / "admin.crt", layout.PKI / "admin.key")
            host, _, port = layout.API_URL.removeprefix("https://").partition(":")
            connection = _Connection(host, int(port), timeout=30, context=context)
            self._local.connection = connection
        headers = {"Accept": "application/json", "Content-Type": "application/json"}
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        response = connection.getresponse()
        return response.status, response.read()

    def _close(self) -> None:
        connection: _Connection | None = getattr(self._local, "connection", None)
        self._local.connection = None
        if connection is not None:
            connection.close()


def _path(kind: str, namespace: str) -> str:
    plural = kind if kind.endswith("s") else f"{kind}s"
    return f"{_PATHS[kind]}/namespaces/{quote(namespace)}/{plural}"
