"""The operator's own settings, from the environment that the chart sets."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from trialpod.errors import InvalidInputError
from trialpod_operator.api.models import StorageSpec
from trialpod_operator.cluster.pods import PodOptions

REPORT_PORT = 8443
PROBE_PORT = 8080


@dataclass(frozen=True, kw_only=True)
class OperatorOptions:
    """What the operator is told at its start.

    Attributes:
        namespaces: those to look after; empty = all.
        own_namespace: where the operator runs: its Secret and its Lease are there.
        service: DNS name under which trials reach the report service.
        host: address that the report service and the probes listen on.
        report_port: of the report service, in the Service and in the pod.
        probe_port: of ``/healthz`` and ``/readyz``.
        default_image: for trials whose manifest names no image.
        gpu_resource: what `gpu` means in a manifest's resources.
        default_storage: for experiments whose manifest has no storage.
        work_dir: for open experiments; may be lost at any time.
        identity: of this process, for the Lease.
        log_level: of the operator's logs.
    """

    namespaces: tuple[str, ...] = ()
    own_namespace: str = "default"
    service: str = "trialpod-reports.default.svc"
    host: str | None = None
    report_port: int = REPORT_PORT
    probe_port: int = PROBE_PORT
    default_image: str = ""
    gpu_resource: str = "nvidia.com/gpu"
    default_storage: StorageSpec | None = None
    work_dir: str = "/trialpod"
    identity: str = "operator"
    log_level: str = "INFO"

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> OperatorOptions:
        """Read the settings.

        Raises:
            InvalidInputError: a value cannot work.
        """
        env = os.environ if environment is None else environment
        own = env.get("TRIALPOD_OPERATOR_NAMESPACE", "default")
        uri = env.get("TRIALPOD_DEFAULT_STORAGE_URI", "")
        storage = None
        if uri:
            if not uri.startswith("s3://"):
                raise InvalidInputError(f"TRIALPOD_DEFAULT_STORAGE_URI is {uri!r}; in a cluster it is an s3:// URI")
            storage = StorageSpec(
                uri=uri,
                endpoint=env.get("TRIALPOD_DEFAULT_STORAGE_ENDPOINT") or None,
                credentials_secret=env.get("TRIALPOD_DEFAULT_STORAGE_SECRET") or None,
            )
        return cls(
            namespaces=tuple(filter(None, (part.strip() for part in env.get("TRIALPOD_NAMESPACES", "").split(",")))),
            own_namespace=own,
            service=env.get("TRIALPOD_SERVICE") or f"trialpod-reports.{own}.svc",
            report_port=_number(env, "TRIALPOD_REPORT_PORT", REPORT_PORT),
            probe_port=_number(env, "TRIALPOD_PROBE_PORT", PROBE_PORT),
            default_image=env.get("TRIALPOD_DEFAULT_IMAGE", ""),
            gpu_resource=env.get("TRIALPOD_GPU_RESOURCE") or "nvidia.com/gpu",
            default_storage=storage,
            work_dir=env.get("TRIALPOD_WORK_DIR") or "/trialpod",
            identity=env.get("POD_NAME") or f"process-{os.getpid()}",
            log_level=env.get("TRIALPOD_LOG_LEVEL", "INFO").upper(),
        )

    @property
    def pod_options(self) -> PodOptions:
        """What pods are built with."""
        return PodOptions(
            address=f"https://{self.service}:{self.report_port}",
            default_image=self.default_image,
            gpu_resource=self.gpu_resource,
        )


def _number(env: Mapping[str, str], name: str, default: int) -> int:
    text = env.get(name, "")
    try:
        return int(text) if text else default
    except ValueError as error:
        raise InvalidInputError(f"{name} is {text!r}; it must be a number") from error
