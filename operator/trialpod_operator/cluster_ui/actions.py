"""Changes experiments of a cluster with the user's own token.

So the API server decides and its audit log has the user's name. This process has no permission to change anything
or to impersonate a user: a fault in it can do no more than those who are signed in.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
from collections.abc import Iterator

from trialpod_operator.cluster import names
from trialpod_operator.cluster_ui.experiments import ClusterLocation
from trialpod_operator.cluster_ui.reviews import Reviews
from trialpod_operator.kube_client.api import KubeClient
from trialpod_operator.kube_client.client import Experiments
from trialpod_operator.kube_client.kubeconfig import Access
from trialpod_operator.kube_client.ui_experiments import DeskActions, chosen, samples_of
from trialpod_operator.ui.access import ActionDeniedError, Json, User
from trialpod_operator.ui.actions import plan
from trialpod_operator.view.model import ExperimentModel


class ClusterActions:
    """What users may change.

    Args:
        access: to the API server; who it is for is replaced by the user.
        reviews: what users may do.
    """

    def __init__(self, access: Access, reviews: Reviews) -> None:
        self._access = access
        self._reviews = reviews

    def listed(self, user: User, model: ExperimentModel) -> list[Json]:
        """Return the actions, as the API server allows them to the user."""
        namespace = _namespace(model)
        with self._as_user(user, namespace) as api:
            samples = samples_of(api.get(model.location.name))
        allowed = {
            names.EXPERIMENTS: self._reviews.may(user, "patch", names.EXPERIMENTS, namespace, model.location.name),
            names.TRIALS: self._reviews.may(user, "patch", names.TRIALS, namespace),
        }
        return [
            each.data(allowed[each.resource], f"you may not patch {each.resource} in the namespace {namespace}")
            for each in plan(model, "{trial}", samples, f"-n {namespace}")
        ]

    def perform(self, user: User, model: ExperimentModel, action: str, arguments: Json) -> str:
        """Change the resource as the user."""
        namespace = _namespace(model)
        found = chosen(model, action, arguments, f"-n {namespace}")
        name = model.location.name if found.resource == names.EXPERIMENTS else ""
        if not self._reviews.may(user, "patch", found.resource, namespace, name):
            raise ActionDeniedError(
                f"you may not patch {found.resource} in the namespace {namespace}; the role edit has the permission"
            )
        with self._as_user(user, namespace) as api:
            return DeskActions(api, f"-n {namespace}").perform(user, model, action, arguments)

    @contextlib.contextmanager
    def _as_user(self, user: User, namespace: str) -> Iterator[Experiments]:
        client = KubeClient(self._access_of(user))
        try:
            yield Experiments(client, namespace)
        finally:
            client.close()

    def _access_of(self, user: User) -> Access:
        configuration = copy.copy(self._access.configuration)
        configuration.api_key = {"BearerToken": f"Bearer {user.token}"}
        configuration.api_key_prefix = {}
        configuration.refresh_api_key_hook = None
        configuration.cert_file = configuration.key_file = None
        return dataclasses.replace(self._access, configuration=configuration, source="the user's token", headers=[])


def _namespace(model: ExperimentModel) -> str:
    assert isinstance(model.location, ClusterLocation)
    return model.location.namespace
