"""The operator's certificates in its Secret: made at the first start, renewed while it runs.

Several operators may start at once; whoever writes the Secret first wins, and the others read what it wrote.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import ssl
from collections.abc import Callable, Sequence

from trialpod_operator.cluster import kube as paths
from trialpod_operator.cluster import names
from trialpod_operator.cluster.certificates import (
    BUNDLE,
    SERVER_CERTIFICATE,
    SERVER_KEY,
    Rotation,
    confirm_published,
    plan_rotation,
    ssl_context,
)
from trialpod_operator.cluster.kube import ApiError, Kube

logger = logging.getLogger(__name__)

SECRET = "trialpod-authority"
TRIES = 5
AGAIN_S = 2.0


class StoredAuthority:
    """The authority and the server's certificate, as they are in the Secret.

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
        """Read the Secret, renew what is due, and write it; return whether anything is new to this process.

        Raises:
            ApiError: the Secret cannot be read or written.
            CertificateError: its content is none of ours.
        """
        before = dict(self._data)
        for _ in range(TRIES):
            found = await self._kube.get(paths.secrets(self._namespace), SECRET)
            stored = {key: base64.b64decode(value) for key, value in ((found or {}).get("data") or {}).items()}
            rotation = plan_rotation(stored, self._server_names, self._clock())
            if rotation.changed and not await self._write(found, rotation):
                continue  # another operator was faster
            self._data = rotation.data
            return self._data != before
        raise ApiError("PUT", SECRET, 409, {"reason": "Conflict", "message": "the Secret changes all the time"})

    async def begin(self) -> None:
        """Refresh at a start, however long the API server cannot be reached.

        A process that ended instead would be started ever later, and still be away when the API server is back.

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
            await asyncio.sleep(AGAIN_S)

    async def published(self) -> None:
        """Note that all pods are given the bundle as it is now."""
        found = await self._kube.get(paths.secrets(self._namespace), SECRET)
        stored = {key: base64.b64decode(value) for key, value in ((found or {}).get("data") or {}).items()}
        if stored.get(BUNDLE) != self._data.get(BUNDLE):
            return  # another operator has changed it; the next refresh reads that
        rotation = confirm_published(stored, self._clock())
        if rotation.changed and await self._write(found, rotation):
            self._data = rotation.data

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
        except ApiError as error:
            if error.status in (404, 409):
                return False
            raise
        return True
