"""The Lease that elects one operator as leader; the others stand by.

It is a courtesy, not the guarantee: of two operators that both believe that they hold it, the first object of an
experiment's journal that both want to write stops one (`experiment.replica`).

Invariants: no clock is compared with another machine's: a standby watches whether the record changes, on its own
clock. A holder that could not renew changes nothing at the API server from then on (`lease_valid`). Where others
stand by, its process ends after `RENEW_DEADLINE_S`, before anybody may take over after `DURATION_S`. One that is
alone stays: nobody takes over while the server is away, and trials have results to report meanwhile.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from trialpod_operator.api.api_errors import ApiError, ConflictError, ForbiddenError, NotFoundError
from trialpod_operator.cluster import kube as paths
from trialpod_operator.cluster import names
from trialpod_operator.cluster.kube import Kube

logger = logging.getLogger(__name__)

DURATION_S = 15.0
RENEW_EVERY_S = 4.0
RENEW_DEADLINE_S = 10.0
WATCH_EVERY_S = 1.0


class Lease:
    """One Lease.

    Args:
        kube: the API server.
        namespace: where it is.
        name: its name.
        identity: of this process. A holder of the same identity was this pod's container before it was restarted.
        monotonic: seconds, for differences only.
        facts: annotations that say what this process is.
        alone: nobody stands by, so it is lost only when another has it.
        on_outage: called when the API server answers again, with the seconds for which it did not.
    """

    def __init__(
        self,
        kube: Kube,
        namespace: str,
        name: str,
        identity: str,
        monotonic: Callable[[], float] = time.monotonic,
        facts: Mapping[str, str] | None = None,
        *,
        alone: bool = False,
        on_outage: Callable[[float], None] = lambda _: None,
    ) -> None:
        self._facts = facts or {}
        self._alone = alone
        self._on_outage = on_outage
        self._kube = kube
        self._collection = paths.leases(namespace)
        self._namespace = namespace
        self._name = name
        self._identity = identity
        self._monotonic = monotonic
        self._held: dict[str, Any] | None = None
        self._safe_since = 0.0
        self.held = False

    async def acquire(self) -> None:
        """Wait until this process holds the Lease."""
        seen: dict[str, Any] | None = None
        since = self._monotonic()
        reported = False
        while True:
            try:
                self._safe_since = self._monotonic()
                found = await self._kube.get(self._collection, self._name)
                if found is None:
                    self._held = await self._kube.create(self._collection, self._body(0))
                    break
                spec = found.get("spec") or {}
                if spec != seen:
                    seen, since = spec, self._monotonic()
                holder = spec.get("holderIdentity") or ""
                length = float(spec.get("leaseDurationSeconds") or DURATION_S)
                if holder in ("", self._identity) or self._monotonic() - since >= length:
                    self._held = await self._replace(found, int(spec.get("leaseTransitions") or 0) + 1)
                    break
                if not reported:
                    reported = True
                    logger.info("%s is the leader; waiting for the Lease %s", holder, self._name)
            except ApiError as error:
                if not error.temporary:
                    raise
                logger.info("the Lease %s cannot be taken yet: %s", self._name, error)
            await asyncio.sleep(WATCH_EVERY_S)
        self.held = True

    async def keep(self) -> None:
        """Renew the Lease for as long as that works; returns when it is lost."""
        renewed = self._monotonic()
        missed = False
        while True:
            await asyncio.sleep(RENEW_EVERY_S if self._monotonic() - renewed < RENEW_EVERY_S + 1.0 else 1.0)
            try:
                assert self._held is not None
                began = self._monotonic()
                async with asyncio.timeout(RENEW_DEADLINE_S / 2):
                    self._held = await self._replace(self._held, None)
                self._safe_since = began
                silent_s, renewed = self._monotonic() - renewed, self._monotonic()
                if missed:
                    missed = False
                    logger.warning("the Lease %s is renewed again", self._name)
                    self._on_outage(silent_s)
            except ApiError as error:
                if isinstance(error, NotFoundError | ConflictError) and not await self._is_still_ours():
                    logger.error("the Lease %s was taken by another operator", self._name)
                    self.held = False
                    return
                self._tell(missed, "the Lease %s could not be renewed: %s", error)
            except TimeoutError:
                self._tell(missed, "the Lease %s could not be renewed in time%s", "")
            if self._monotonic() - renewed <= RENEW_DEADLINE_S:
                continue
            if self._alone and not missed:
                missed = True
                logger.warning(
                    "the Lease %s could not be renewed for %.0f s: trials continue and report; nothing new begins "
                    "until the API server answers",
                    self._name,
                    self._monotonic() - renewed,
                )
            elif not self._alone:
                logger.error(
                    "the Lease %s could not be renewed for %.0f s: another operator may take over, so this one ends",
                    self._name,
                    self._monotonic() - renewed,
                )
                self.held = False
                return

    def _tell(self, missed: bool, message: str, why: object) -> None:
        # Once it is said that this takes longer, it is not said every second.
        logger.log(logging.INFO if missed else logging.WARNING, message, self._name, why)

    async def _is_still_ours(self) -> bool:
        """Look who holds it: the answer to a renewal may have been lost, and then its version is another one."""
        try:
            async with asyncio.timeout(RENEW_DEADLINE_S / 2):
                found = await self._kube.get(self._collection, self._name)
        except (ApiError, TimeoutError):
            return True  # not known; the deadline decides
        if found is None or (found.get("spec") or {}).get("holderIdentity") != self._identity:
            return False
        self._held = found
        return True

    def lease_valid(self) -> bool:
        """Whether nobody else can have taken over yet: false also in a process that was stopped, and wakes up."""
        return self.held and self._monotonic() - self._safe_since < DURATION_S

    async def release(self) -> None:
        """Let another process take over at once."""
        if self._held is None or not self.held:
            return
        self.held = False
        try:
            await self._replace(self._held, None, holder="")
        except ApiError as error:
            logger.info("the Lease %s could not be released: %s", self._name, error)

    async def _replace(
        self, found: dict[str, Any], transitions: int | None, holder: str | None = None
    ) -> dict[str, Any]:
        body = self._body(int((found.get("spec") or {}).get("leaseTransitions") or 0))
        body["metadata"]["resourceVersion"] = found["metadata"].get("resourceVersion")
        if transitions is not None:
            body["spec"]["leaseTransitions"] = transitions
        else:
            body["spec"]["acquireTime"] = (found.get("spec") or {}).get("acquireTime")
        if holder is not None:
            body["spec"]["holderIdentity"] = holder
        replaced: dict[str, Any] = await self._kube.request("PUT", f"{self._collection}/{self._name}", body=body)
        return replaced

    def _body(self, transitions: int) -> dict[str, Any]:
        now = dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        return {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": self._name, "namespace": self._namespace, "annotations": dict(self._facts)},
            "spec": {
                "holderIdentity": self._identity,
                "leaseDurationSeconds": int(DURATION_S),
                "acquireTime": now,
                "renewTime": now,
                "leaseTransitions": transitions,
            },
        }


ACTIVE_LABEL = f"{names.GROUP}/active"
RETRY_S = 2.0


class LeaderLabel:
    """The label by which the Service finds the leader's pod.

    Standbys are ready too, else an upgrade would wait for them. The label is set after the Lease is held and the
    report service listens; a process begins by clearing its own pod's label, which the process before may have set.

    Args:
        kube: the API server.
        namespace: of the operator.
        pod: its name.
    """

    def __init__(self, kube: Kube, namespace: str, pod: str) -> None:
        self._kube = kube
        self._collection = paths.pods(namespace)
        self._pod = pod

    async def set(self) -> None:
        """Have reports sent to this pod; retries until the label is written."""
        await self._until_written("true")

    async def clear(self) -> None:
        """Have no reports sent to this pod; retries until the label is removed."""
        await self._until_written(None)

    async def _until_written(self, value: str | None) -> None:
        body = {"metadata": {"labels": {ACTIVE_LABEL: value}}}
        while True:
            try:
                await self._kube.patch(self._collection, self._pod, body)
                return
            except ApiError as error:
                if isinstance(error, ForbiddenError):
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
