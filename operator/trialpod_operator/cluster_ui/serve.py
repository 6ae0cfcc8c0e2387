"""The process of the cluster's page: `trialpod ui --shared`, which the chart runs as a Deployment of its own.

It is a process apart from the operator: what people look at costs the operator's event loop nothing, its service
account can only read, and it may end at any moment. The next one reads the journals again, and users sign in again.
It removes the keys and copies that a process which was killed has left on the pod's disk.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import uvicorn

from trialpod import variables
from trialpod.errors import InvalidInputError
from trialpod.storage.scratch import Scratch
from trialpod_operator.api.document import allow_deep_json
from trialpod_operator.cluster.options import OperatorOptions
from trialpod_operator.cluster_ui.actions import ClusterActions
from trialpod_operator.cluster_ui.experiments import ClusterExperiments
from trialpod_operator.cluster_ui.reviews import Reviews
from trialpod_operator.cluster_ui.sign_in import SignIn
from trialpod_operator.kube_client.api import KubeClient
from trialpod_operator.kube_client.kubeconfig import Access, find_access
from trialpod_operator.ui.access import AllowedHosts
from trialpod_operator.ui.app import Server
from trialpod_operator.ui.serve import PageServer

PORT = 8080
DROP_INTERVAL_S = 60.0
REQUEST_TIMEOUT_S = 10.0
WORK_DIR_PREFIX = "trialpod-ui-"

Clock = Callable[[], float]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class SharedOptions:
    """The settings of the page.

    Attributes:
        hosts: names under which browsers reach it, besides loopback; "name" or "name:port".
        actions: let users change what they may.
        session_minutes: how long a session lasts at most.
        operator: the operator's settings for namespaces and storages.
    """

    hosts: tuple[str, ...]
    actions: bool
    session_minutes: int
    operator: OperatorOptions

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> SharedOptions:
        """Read the settings.

        Raises:
            InvalidInputError: a value cannot work.
        """
        env = os.environ if environment is None else environment
        minutes = env.get(variables.UI_SESSION_MINUTES) or "60"
        if not minutes.isdecimal() or not 1 <= int(minutes) <= 1440:
            raise InvalidInputError(f"{variables.UI_SESSION_MINUTES} is {minutes!r}; it must be 1 to 1440")
        return cls(
            hosts=tuple(filter(None, (part.strip() for part in env.get(variables.UI_HOSTS, "").split(",")))),
            actions=variables.is_on(variables.UI_ACTIONS, env.get(variables.UI_ACTIONS, "")),
            session_minutes=int(minutes),
            operator=OperatorOptions.from_environment(env),
        )


class SharedPage:
    """The page with what it is made of.

    Args:
        access: to the API server, with the page's own permissions.
        options: the settings.
        work_dir: for keys of storages and copies of journals; it is this process's own.
        clock: monotonic seconds.

    Attributes:
        server: the routes.
        experiments: what they show.
    """

    def __init__(self, access: Access, options: SharedOptions, work_dir: Path, clock: Clock = time.monotonic) -> None:
        self._client = KubeClient(access, timeout_s=REQUEST_TIMEOUT_S)
        reviews = Reviews(lambda path, body: self._client.request("POST", path, body), clock)
        operator = options.operator
        self.experiments = ClusterExperiments(
            self._client, reviews, operator.storage_rules, work_dir, operator.namespaces, clock
        )
        sign_in = SignIn(reviews, options.session_minutes * 60.0, clock)
        self.server = Server(
            self.experiments,
            None,
            AllowedHosts(options.hosts),
            ClusterActions(access, reviews) if options.actions else None,
            sign_in.authenticate,
            sign_in.routes(),
        )

    def close(self) -> None:
        """Close the connections."""
        self._client.close()


def serve_shared(host: str = "", port: int = PORT) -> int:
    """Serve the page until SIGTERM; return the exit status.

    Args:
        host: address to listen on; "" = all, of IPv4 and IPv6.
        port: the same.

    Raises:
        InvalidInputError: a setting cannot work, or there is no cluster.
    """
    options = SharedOptions.from_environment()
    allow_deep_json()
    work_dir = Scratch(None, WORK_DIR_PREFIX)
    try:
        page = SharedPage(find_access(), options, Path(work_dir.path))
        try:
            # No access log: addresses have names of experiments in them.
            config = uvicorn.Config(
                page.server.app(),
                host=host,
                port=port,
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_graceful_shutdown=2,
                limit_concurrency=1000,
            )
            return asyncio.run(_run(PageServer(config, page.server.stop), page.experiments))
        finally:
            page.close()
    finally:
        work_dir.remove()


async def _run(server: PageServer, experiments: ClusterExperiments) -> int:
    dropping = asyncio.ensure_future(_drop_idle(experiments))
    logger.info("the page listens on port %s", server.config.port)
    try:
        await server.serve()
    finally:
        dropping.cancel()
    return 0 if server.started else 1


async def _drop_idle(experiments: ClusterExperiments) -> None:
    while True:
        await asyncio.sleep(DROP_INTERVAL_S)
        await asyncio.get_running_loop().run_in_executor(None, experiments.drop_idle)
