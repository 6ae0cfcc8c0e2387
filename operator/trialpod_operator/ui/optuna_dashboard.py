"""optuna-dashboard over the experiments, behind the same gate as the page, and only to be read."""

from __future__ import annotations

from typing import cast

from a2wsgi import WSGIMiddleware
from optuna_dashboard import wsgi
from starlette.types import ASGIApp

from trialpod_operator.ui.access import Experiments, Sessions
from trialpod_operator.ui.gate import STRICT_HEADERS, Gate
from trialpod_operator.ui.optuna_storage import ExperimentStorage


def dashboard_app(experiments: Experiments, sessions: Sessions, hosts: frozenset[str]) -> ASGIApp:
    """Return the ASGI application; its pages bring their own Content-Security-Policy.

    Args:
        experiments: what is served.
        sessions: the browsers that have signed in.
        hosts: the values of the Host header that are answered.
    """
    inner = cast(ASGIApp, WSGIMiddleware(wsgi(ExperimentStorage(experiments)), workers=4))
    return Gate(inner, sessions, hosts, headers=STRICT_HEADERS, read_only=True)
