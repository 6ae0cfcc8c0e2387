"""The page's data of experiments in a cluster, with a user's own permissions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from api_server import ApiServer, condition_of, experiment_object, trial_object
from sample_experiment import SampleExperiment

from trialpod.errors import InvalidInputError
from trialpod_operator.kube_client.client import Experiments
from trialpod_operator.kube_client.ui_experiments import DeskActions, DeskExperiments
from trialpod_operator.ui.access import ActionDeniedError, NoSuchExperimentError, User

ACCESS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
USER = User("jane")


@pytest.fixture
def sample(server: ApiServer, tmp_path: Path) -> SampleExperiment:
    sample = SampleExperiment(tmp_path / "bucket" / "climb", [1, 2])
    sample.report(sample.trials[0], 5.0)
    status = {
        "storageUri": str(sample.folder),
        "trials": {"running": 2, "total": 2, "progress": "0/2"},
        "best": {"trialId": sample.trials[0], "value": "5.0"},
        "conditions": [condition_of("Ready", "False", "Unschedulable")],
    }
    server.put("tuneexperiments", experiment_object("climb", {"metric": "score"}, **status))
    trial = trial_object("climb", 0, "RUNNING")
    trial["spec"]["trialId"] = sample.trials[0]
    server.put("tunetrials", trial)
    return sample


@pytest.fixture
def api(server: ApiServer) -> Iterator[Experiments]:
    with Experiments.connect("team") as api:
        yield api


@pytest.fixture
def experiments(api: Experiments, sample: SampleExperiment) -> Iterator[DeskExperiments]:
    found = DeskExperiments(api, clock=lambda: 0.0)
    yield found
    found.close()


class TestExperiments:
    def test_list_says_what_the_resources_say(self, experiments: DeskExperiments, server: ApiServer) -> None:
        (one,) = experiments.summaries(USER)
        assert (one["id"], one["namespace"], one["reason"]) == ("climb", "team", "Unschedulable")
        assert one["best"]["value"] == 5.0
        assert one["counts"] == {"RUNNING": 2}

    def test_data_comes_from_the_storage(self, experiments: DeskExperiments, sample: SampleExperiment) -> None:
        model = experiments.model(USER, "climb")
        model.refresh()
        header = model.header()
        assert header["best"]["trial"] == sample.trials[0]
        assert header["reason"] == "Unschedulable"
        assert experiments.model(USER, "climb") is model

    def test_only_what_is_there_is_shown(self, api: Experiments, experiments: DeskExperiments) -> None:
        with pytest.raises(NoSuchExperimentError, match="nope"):
            experiments.model(USER, "nope")
        with pytest.raises(NoSuchExperimentError, match="only other is shown"):
            DeskExperiments(api, "other").model(USER, "climb")


class TestActions:
    def test_change_the_resources(
        self, api: Experiments, experiments: DeskExperiments, server: ApiServer, sample: SampleExperiment
    ) -> None:
        model = experiments.model(USER, "climb")
        model.refresh()
        actions = DeskActions(api, "-n team")
        actions.perform(USER, model, "suspend", {})
        assert server.experiment("climb")["spec"]["suspend"] is True
        actions.perform(USER, model, "more-samples", {"samples": 4})
        assert server.experiment("climb")["spec"]["numSamples"] == model.num_samples + 4
        actions.perform(USER, model, "stop-trial", {"trial": sample.trials[0]})
        assert (
            "PATCH",
            "/apis/trialpod.dev/v1alpha1/namespaces/team/tunetrials/climb-d75de-00000",
        ) in server.requests

    def test_arguments_are_checked(self, api: Experiments, experiments: DeskExperiments) -> None:
        model = experiments.model(USER, "climb")
        model.refresh()
        actions = DeskActions(api, "-n team")
        with pytest.raises(InvalidInputError, match="trial is missing"):
            actions.perform(USER, model, "stop-trial", {})
        for samples in (None, 0, "4", True):
            with pytest.raises(InvalidInputError, match="samples is missing"):
                actions.perform(USER, model, "more-samples", {"samples": samples})

    def test_are_denied_where_the_api_server_does(
        self, api: Experiments, experiments: DeskExperiments, server: ApiServer
    ) -> None:
        model = experiments.model(USER, "climb")
        model.refresh()
        actions = DeskActions(api, "-n team")
        path = "/apis/trialpod.dev/v1alpha1/namespaces/team/tuneexperiments/climb"
        server.routes["PATCH", path] = {"code": 403, "reason": "Forbidden", "message": "jane cannot patch"}
        with pytest.raises(ActionDeniedError, match="patch"):
            actions.perform(USER, model, "suspend", {})
        server.routes["POST", ACCESS] = {"status": {"allowed": False}}
        assert {each["allowed"] for each in actions.listed(USER, model)} == {False}
        server.routes["POST", ACCESS] = {"status": {"allowed": True}}
        listed = {each["name"]: each for each in actions.listed(USER, model)}
        assert listed["suspend"]["command"] == "trialpod suspend climb -n team"
        assert listed["suspend"]["allowed"]
        assert listed["resume"]["why_not"] == "it is not suspended"
