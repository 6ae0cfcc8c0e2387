"""The operator's own settings, from the environment that the chart sets."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from trialpod import __version__, variables
from trialpod.errors import InvalidInputError
from trialpod.protocol.messages import PROTOCOL_VERSION
from trialpod.storage.registry import storage_class
from trialpod.storage.s3.sts import MAX_DURATION_S, MIN_DURATION_S
from trialpod_operator.api.models import ScopedCredentials, StorageSpec
from trialpod_operator.cluster import names
from trialpod_operator.cluster.pods.build import PodOptions
from trialpod_operator.cluster.storage_access import NAMESPACE, StorageRules

REPORT_PORT = 8443
PROBE_PORT = 8080


@dataclass(frozen=True, kw_only=True)
class OperatorOptions:
    """The operator's start options.

    Attributes:
        namespaces: those to serve; empty = all.
        own_namespace: where the operator runs: its Secret and its Lease are there.
        service: DNS name under which trials reach the report service.
        host: address that the report service and the probes listen on.
        report_port: of the report service, in the Service and in the pod.
        probe_port: of ``/healthz`` and ``/readyz``.
        default_image: for trials whose manifest names no image.
        runtime_image: an image of trialpod, whose runtime commands in other images get; "" = they bring it.
        gpu_resource: what `gpu` means in a manifest's resources.
        default_storage: for experiments whose manifest has no storage.
        storage_keys_dir: the operator's own keys for the default storage, as files; they open only what is below its
            URI, which has ``{namespace}`` in it, and trials get short-lived ones. "" = experiments bring their keys.
        always_scoped: trials get short-lived keys, whether their manifest says so or not.
        scoped: how those are made where the manifest does not say.
        work_dir: for open experiments; may be lost at any time.
        identity: of this process, for the Lease; in a pod, the pod's name.
        replicas: how many operators share the work.
        pod_address: IP address at which the trials' pods reach this one of them.
        log_level: of the operator's logs.
        ui_address: of the cluster's page; "" = there is none.
        trial_kinds: kinds of which trials may be objects, "apiVersion/kind" -> plural.
    """

    namespaces: tuple[str, ...] = ()
    own_namespace: str = "default"
    service: str = "trialpod-reports.default.svc"
    host: str | None = None
    report_port: int = REPORT_PORT
    probe_port: int = PROBE_PORT
    default_image: str = ""
    runtime_image: str = ""
    gpu_resource: str = "nvidia.com/gpu"
    default_storage: StorageSpec | None = None
    storage_keys_dir: str = ""
    always_scoped: bool = False
    scoped: ScopedCredentials = field(default_factory=ScopedCredentials)
    work_dir: str = "/trialpod"
    identity: str = "operator"
    replicas: int = 1
    pod_address: str = ""
    log_level: str = "INFO"
    ui_address: str = ""
    trial_kinds: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> OperatorOptions:
        """Read the settings.

        Raises:
            InvalidInputError: a value cannot work.
        """
        env = os.environ if environment is None else environment
        own = env.get(variables.OPERATOR_NAMESPACE, "default")
        uri = env.get(variables.DEFAULT_STORAGE_URI, "")
        storage = None
        if uri:
            if not storage_class(uri).is_shared:
                raise InvalidInputError(
                    f"TRIALPOD_DEFAULT_STORAGE_URI is {uri!r}; in a cluster it is a storage that all pods see, "
                    "such as s3://bucket/prefix"
                )
            storage = StorageSpec(
                uri=uri,
                endpoint=env.get(variables.DEFAULT_STORAGE_ENDPOINT) or None,
                credentials_secret=env.get(variables.DEFAULT_STORAGE_SECRET) or None,
            )
        return cls(
            namespaces=tuple(filter(None, (part.strip() for part in env.get(variables.NAMESPACES, "").split(",")))),
            own_namespace=own,
            service=env.get(variables.SERVICE) or f"trialpod-reports.{own}.svc",
            report_port=_number(env, variables.REPORT_PORT, REPORT_PORT),
            probe_port=_number(env, variables.PROBE_PORT, PROBE_PORT),
            default_image=env.get(variables.DEFAULT_IMAGE, ""),
            runtime_image=env.get(variables.RUNTIME_IMAGE, ""),
            gpu_resource=env.get(variables.GPU_RESOURCE) or "nvidia.com/gpu",
            default_storage=storage,
            storage_keys_dir=_keys_dir(env, uri),
            always_scoped=_scoped_always(env),
            scoped=_scoped(env),
            work_dir=env.get(variables.WORK_DIR) or "/trialpod",
            replicas=_number(env, variables.REPLICAS, 1),
            pod_address=env.get(variables.POD_ADDRESS, ""),
            identity=env.get("POD_NAME") or f"process-{os.getpid()}",
            log_level=env.get(variables.LOG_LEVEL, "INFO").upper(),
            ui_address=env.get(variables.UI_ADDRESS, ""),
            trial_kinds=_trial_kinds(env),
        )

    @property
    def direct_address(self) -> str:
        """Where attempts reach this operator and no other: "host:port", "" when that is not known."""
        host = f"[{self.pod_address}]" if ":" in self.pod_address else self.pod_address
        return f"{host}:{self.report_port}" if host else ""

    @property
    def facts(self) -> dict[str, str]:
        """What the operator tells clients about itself, as annotations."""
        storage = self.default_storage
        return {
            names.VERSION_ANNOTATION: __version__,
            names.REPORTS_ANNOTATION: self.pod_options.address,
            names.UI_ANNOTATION: self.ui_address,
            names.GPU_ANNOTATION: self.gpu_resource,
            names.KINDS_ANNOTATION: ",".join(f"{kind}={plural}" for kind, plural in self.trial_kinds.items()),
            names.PROTOCOL_ANNOTATION: str(PROTOCOL_VERSION),
            names.IMAGE_ANNOTATION: self.default_image,
            names.STORAGE_ANNOTATION: "" if storage is None else json.dumps(msgspec.to_builtins(storage)),
            names.CREDENTIALS_ANNOTATION: names.credentials_fact(
                own=bool(self.storage_rules.keys_dir), always_scoped=self.always_scoped
            ),
        }

    @property
    def pod_options(self) -> PodOptions:
        """What pods are built with."""
        return PodOptions(
            address=f"https://{self.service}:{self.report_port}",
            default_image=self.default_image,
            runtime_image=self.runtime_image,
            gpu_resource=self.gpu_resource,
            trial_kinds=self.trial_kinds,
            storage=self.storage_rules,
        )

    @property
    def storage_rules(self) -> StorageRules:
        """What is to be known of storages."""
        return StorageRules(
            default=self.default_storage,
            keys_dir=self.storage_keys_dir,
            always_scoped=self.always_scoped,
            scoped=self.scoped,
        )


def _keys_dir(env: Mapping[str, str], uri: str) -> str:
    found = env.get(variables.STORAGE_KEYS_DIR, "")
    if found and NAMESPACE not in uri:
        raise InvalidInputError(
            f"TRIALPOD_DEFAULT_STORAGE_URI is {uri!r}; with keys of the operator's own it has to have {NAMESPACE} in "
            "it, as in s3://bucket/tuning/{namespace}: else users of one namespace could reach another's data"
        )
    if found and env.get(variables.DEFAULT_STORAGE_SECRET):
        raise InvalidInputError(
            "TRIALPOD_STORAGE_KEYS_DIR and TRIALPOD_DEFAULT_STORAGE_SECRET are both set: the default storage has the "
            "operator's own keys, or those of a Secret in each namespace, not both"
        )
    return found


def _scoped_always(env: Mapping[str, str]) -> bool:
    text = env.get(variables.SCOPED_CREDENTIALS, "") or "allowed"
    if text not in ("allowed", "required"):
        raise InvalidInputError(f"TRIALPOD_SCOPED_CREDENTIALS is {text!r}; it is allowed or required")
    return text == "required"


def _scoped(env: Mapping[str, str]) -> ScopedCredentials:
    found = ScopedCredentials(
        role_arn=env.get(variables.STS_ROLE_ARN) or None,
        duration=env.get(variables.STS_DURATION) or None,
        sts_endpoint=env.get(variables.STS_ENDPOINT) or None,
    )
    if not MIN_DURATION_S <= found.duration_seconds <= MAX_DURATION_S:
        raise InvalidInputError(f"TRIALPOD_STS_DURATION is {found.duration!r}; stores allow 15m to 12h")
    return found


def _trial_kinds(env: Mapping[str, str]) -> dict[str, str]:
    found = {}
    for each in filter(None, (part.strip() for part in env.get(variables.TRIAL_KINDS, "").split(","))):
        kind, equals, plural = each.partition("=")
        if not equals or "/" not in kind or not plural:
            raise InvalidInputError(
                f"TRIALPOD_TRIAL_KINDS has {each!r}; each is apiVersion/kind=plural, such as batch/v1/Job=jobs"
            )
        found[kind] = plural
    return found


def _number(env: Mapping[str, str], name: str, default: int) -> int:
    text = env.get(name, "")
    try:
        return int(text) if text else default
    except ValueError as error:
        raise InvalidInputError(f"{name} is {text!r}; it must be a number") from error
