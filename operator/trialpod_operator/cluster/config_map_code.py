"""The code of an experiment that is in a ConfigMap: as it was at the start, for all its trials.

It is copied into the experiment's document in the storage when the experiment begins, and travels to the trials with
their assignments. What the ConfigMap says later has no effect; a difference is reported once.
"""

from __future__ import annotations

import base64
import binascii
import logging
from collections.abc import Mapping
from typing import Any

from trialpod_operator.api.api_errors import ForbiddenError
from trialpod_operator.api.models import ConfigMapRef, TrainableSpec
from trialpod_operator.api.reasons import Reason
from trialpod_operator.cluster import kube as paths
from trialpod_operator.cluster.kube import ApiServer
from trialpod_operator.cluster.storage_access import StorageProblemError

logger = logging.getLogger(__name__)

CODE = "code"
"""Key of the document under which the code is kept."""

CHECK_INTERVAL_S = 20.0
"""Minimum interval between two looks at a ConfigMap whose code runs."""


class ConfigMapCode:
    """The ConfigMap of one experiment, as it was read last."""

    def __init__(self) -> None:
        self._found: Mapping[str, Any] | None = None
        self._forbidden = False
        self._checked_at = 0.0
        self._reported = ""

    async def read(self, kube: ApiServer, namespace: str, trainable: TrainableSpec) -> None:
        """Read the ConfigMap that a trainable names, if it names one.

        Raises:
            ApiError: it cannot be read at the moment.
        """
        reference = trainable.config_map_ref
        if reference is None:
            return
        self._forbidden = False
        try:
            self._found = await kube.get(paths.config_maps(namespace), reference.name)
        except ForbiddenError as error:
            # The operator may not read it: pods mount it.
            logger.warning("the code in the ConfigMap %s/%s is not pinned: %s", namespace, reference.name, error)
            self._found, self._forbidden = None, True

    def pinned(self, trainable: TrainableSpec, stored: Mapping[str, Any] | None) -> str | None:
        """Return the code that trials run: that of the start, else what was read; None when it is not pinned.

        Args:
            trainable: of the manifest.
            stored: the experiment's document, None when it begins.

        Raises:
            StorageProblemError: there is none.
        """
        reference = trainable.config_map_ref
        if reference is None:
            return None
        known = (stored or {}).get(CODE)
        if isinstance(known, str):
            return known
        if self._forbidden:
            return None
        found = _text(self._found, reference)
        if found is None:
            raise _missing(self._found, reference)
        return found

    def next_check_s(self, trainable: TrainableSpec, now: float) -> float | None:
        """Return in how many seconds the ConfigMap is to be compared again; None where there is none."""
        if trainable.config_map_ref is None:
            return None
        return max(0.0, self._checked_at + CHECK_INTERVAL_S - now)

    async def changed(
        self, kube: ApiServer, namespace: str, trainable: TrainableSpec, known: str | None, now: float
    ) -> str:
        """Return what there is to tell when the ConfigMap has other code already; "" when nothing is new.

        Args:
            kube: the API server.
            namespace: of the experiment.
            trainable: of its manifest.
            known: the code that its trials run.
            now: seconds since the epoch.
        """
        reference = trainable.config_map_ref
        if reference is None or known is None or now - self._checked_at < CHECK_INTERVAL_S:
            return ""
        self._checked_at = now
        await self.read(kube, namespace, trainable)
        text = _text(self._found, reference)
        if text is None or text in (known, self._reported):
            return ""
        self._reported = text
        return (
            f"{reference.key} in the ConfigMap {reference.name} was changed after the experiment began; all its "
            "trials run the code of the start. To run the new code, start an experiment of another name"
        )


def _text(found: Mapping[str, Any] | None, reference: ConfigMapRef) -> str | None:
    text = ((found or {}).get("data") or {}).get(reference.key)
    if text is not None:
        return str(text)
    data = ((found or {}).get("binaryData") or {}).get(reference.key)
    if data is None:
        return None
    try:
        return base64.b64decode(data).decode()
    except (binascii.Error, UnicodeDecodeError):
        return None


def _missing(found: Mapping[str, Any] | None, reference: ConfigMapRef) -> StorageProblemError:
    where = f"the ConfigMap {reference.name} (spec.trainable.configMapRef)"
    if found is None:
        return StorageProblemError(Reason.CONFIG_MAP_NOT_FOUND, f"{where} is not there; create it")
    known = ", ".join(sorted({**(found.get("data") or {}), **(found.get("binaryData") or {})})) or "none"
    return StorageProblemError(
        Reason.CONFIG_MAP_KEY_NOT_FOUND, f"{where} has no Python file {reference.key} (its keys: {known}); add it"
    )
