"""Which of several operators the Service sends reports to: the pod of the one at work has a label, the others do not.

Those that stand by are ready too, or an upgrade and whoever watches the Deployment would wait for them for ever.

Invariants: the label comes after the Lease and after the report service listens; a process begins by taking it off
its own pod, which may have it from the process before.
"""

from __future__ import annotations

import asyncio
import logging

from trialpod_operator.cluster import kube as paths
from trialpod_operator.cluster import names
from trialpod_operator.cluster.kube import ApiError, Kube

logger = logging.getLogger(__name__)

ACTIVE_LABEL = f"{names.GROUP}/active"
RETRY_S = 2.0


class Mark:
    """The label on one operator's pod.

    Args:
        kube: the API server.
        namespace: of the operator.
        pod: its name.
    """

    def __init__(self, kube: Kube, namespace: str, pod: str) -> None:
        self._kube = kube
        self._collection = paths.pods(namespace)
        self._pod = pod

    async def put(self) -> None:
        """Send reports to this pod from now on; tries again until that works."""
        await self._until_written("true")

    async def take_away(self) -> None:
        """Send no reports to this pod; tries again until that works."""
        await self._until_written(None)

    async def _until_written(self, value: str | None) -> None:
        body = {"metadata": {"labels": {ACTIVE_LABEL: value}}}
        while True:
            try:
                await self._kube.patch(self._collection, self._pod, body)
                return
            except ApiError as error:
                if error.status == 403:
                    logger.error(
                        "the label %s of pod %s cannot be written, so no reports arrive: let the operator's service "
                        "account patch pods in its own namespace, as the chart's Role does: %s",
                        ACTIVE_LABEL,
                        self._pod,
                        error,
                    )
                else:
                    logger.warning("the label %s of pod %s cannot be written: %s", ACTIVE_LABEL, self._pod, error)
            await asyncio.sleep(RETRY_S)
