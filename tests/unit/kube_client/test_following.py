"""An experiment is followed to its end, also while the cluster cannot answer now and then."""

from __future__ import annotations

import io
from typing import Any

import pytest
from api_server import ApiServer, condition_of, experiment_object, trial_object

from trialpod.errors import InvalidInputError, TrialpodError
from trialpod_operator.api.api_errors import api_error
from trialpod_operator.display.choose import choose_display
from trialpod_operator.kube_client.api import ClusterUnreachableError, KubeClient
from trialpod_operator.kube_client.client import Experiments
from trialpod_operator.kube_client.following import follow
from trialpod_operator.kube_client.kubeconfig import find_access

COUNTS = {"total": 1, "succeeded": 0}
BLIPS = [
    ClusterUnreachableError("the cluster cannot be reached: timed out"),
    api_error("GET", "/", 503, {"message": "the server is currently unable to handle the request"}),
    api_error("GET", "/", 429, {"message": "too many requests"}),
]


class FailingClient(KubeClient):
    """Raises `errors` for requests of the paths that end so, each once."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.errors: list[tuple[str, TrialpodError]] = []

    def request(self, method: str, path: str, *args: Any, **options: Any) -> dict[str, Any]:
        if self.errors and path.endswith(self.errors[0][0]):
            raise self.errors.pop(0)[1]
        return super().request(method, path, *args, **options)


class World:
    """An experiment of one trial, followed on a clock of its own; it ends with the third look."""

    def __init__(self, server: ApiServer, client: FailingClient) -> None:
        self.server, self.client = server, client
        self.out = io.StringIO()
        self.now = 1000.0
        self.refreshed: list[str] = []
        server.put("tuneexperiments", experiment_object("digits", trials=COUNTS))
        server.put("tunetrials", trial_object("digits", 0, "RUNNING"))

    def fail(self, path: str, *errors: TrialpodError) -> None:
        self.client.errors += [(path, error) for error in errors]

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        if self.now == 1003.0:
            done = condition_of("Succeeded", "True", "Completed")
            self.server.put("tuneexperiments", experiment_object("digits", trials=COUNTS, conditions=[done]))
            self.server.put("tunetrials", trial_object("digits", 0, "TERMINATED"))

    def follow(self) -> dict[str, Any]:
        return follow(
            Experiments(self.client),
            self.server.experiment("digits"),
            choose_display(self.out, json=True, verbose=0),
            clock=lambda: self.now,
            sleep=self.sleep,
            each=lambda _item, trials: self.refreshed.append(trials[0]["status"]["state"]),
        )


@pytest.fixture
def world(tmp_path: Any) -> Any:
    server = ApiServer()
    client = FailingClient(find_access({"KUBECONFIG": str(server.kubeconfig(tmp_path))}))
    yield World(server, client)
    client.close()
    server.close()


class TestUnreachableCluster:
    @pytest.mark.parametrize("error", BLIPS, ids=lambda error: type(error).__name__)
    @pytest.mark.parametrize("path", ["/tunetrials", "/digits"])
    def test_request_is_repeated(self, world: World, path: str, error: TrialpodError) -> None:
        world.fail(path, error, error)
        item = world.follow()
        assert item["status"]["conditions"][0]["type"] == "Succeeded"
        assert world.refreshed[-1] == "TERMINATED"
        assert world.client.errors == []

    def test_end_is_shown_with_the_trials_as_they_ended(self, world: World) -> None:
        sleep = world.sleep

        def sleep_until_the_end(seconds: float) -> None:
            sleep(seconds)
            if world.now == 1003.0:
                world.fail("/tunetrials", *BLIPS)

        world.sleep = sleep_until_the_end  # type: ignore[method-assign]
        world.follow()
        assert world.refreshed[-1] == "TERMINATED"
        assert world.client.errors == []

    def test_other_refusals_end_it(self, world: World) -> None:
        world.fail("/tunetrials", api_error("GET", "/", 403, {"message": "no"}))
        with pytest.raises(InvalidInputError, match="you may not list tunetrials"):
            world.follow()
