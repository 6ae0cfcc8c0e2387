"""``trialpod operator``: run the operator. It takes its settings from the environment, which the chart sets."""

from __future__ import annotations

import argparse

from trialpod.cli.command import Command
from trialpod.errors import InvalidInputError


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "settings: TRIALPOD_NAMESPACES, TRIALPOD_OPERATOR_NAMESPACE, TRIALPOD_SERVICE, TRIALPOD_DEFAULT_IMAGE, "
        "TRIALPOD_DEFAULT_STORAGE_URI, TRIALPOD_DEFAULT_STORAGE_ENDPOINT, TRIALPOD_DEFAULT_STORAGE_SECRET, "
        "TRIALPOD_GPU_RESOURCE, TRIALPOD_REPLICAS, TRIALPOD_POD_ADDRESS, TRIALPOD_LOG_LEVEL, TRIALPOD_WORK_DIR"
    )


def _run(_arguments: argparse.Namespace) -> int:
    import asyncio

    try:
        from trialpod_operator.cluster.operator import configure_logging, run_operator
    except ModuleNotFoundError as error:
        raise InvalidInputError(
            f"the operator needs the package {error.name}; install it: pip install 'trialpod[operator]'"
        ) from error
    from trialpod_operator.cluster.options import OperatorOptions

    options = OperatorOptions.from_environment()
    configure_logging(options.log_level)
    return asyncio.run(run_operator(options))


command = Command("operator", "run the Kubernetes operator", _configure, _run, cluster=True)
