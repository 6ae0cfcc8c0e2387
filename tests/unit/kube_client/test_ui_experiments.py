"""The page's data of experiments in a cluster, with a user's own permissions."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from api_server import ApiServer, condition_of, experiment_object, trial_object
from sample_experiment import SampleExperiment

from trialpod.errors import InvalidInputError
from trialpod_operator.kube_client import ui_experiments
from trialpod_operator.kube_client.client import Experiments
from trialpod_operator.kube_client.ui_experiments import RESOURCE_INTERVAL_S, DeskActions, DeskExperiments
from trialpod_operator.ui.access import ActionDeniedError, NoSuchExperimentError, User
from trialpod_operator.view.model import ModelClosedError

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

    def test_an_experiment_of_the_same_name_is_another(
        self, api: Experiments, server: ApiServer, sample: SampleExperiment, tmp_path: Path
    ) -> None:
        now = [0.0]
        with contextlib.closing(DeskExperiments(api, clock=lambda: now[0])) as experiments:
            model = experiments.model(USER, "climb")
            other = SampleExperiment(tmp_path / "bucket" / "other", [1, 2, 3])
            server.experiment("climb")["metadata"]["uid"] = "new"
            server.experiment("climb")["status"]["storageUri"] = str(other.folder)
            assert experiments.model(USER, "climb") is model  # the resource was read just now
            now[0] += RESOURCE_INTERVAL_S
            again = experiments.model(USER, "climb")
            again.refresh()
            assert again.header()["trials"] == 3
            with pytest.raises(ModelClosedError):
                model.refresh()

    def test_a_deleted_one_is_dropped_and_an_outage_drops_none(
        self, api: Experiments, server: ApiServer, sample: SampleExperiment
    ) -> None:
        now = [0.0]
        with contextlib.closing(DeskExperiments(api, clock=lambda: now[0])) as experiments:
            model = experiments.model(USER, "climb")
            now[0] += RESOURCE_INTERVAL_S
            server.refuse = {"code": 500, "message": "down"}
            assert experiments.model(USER, "climb") is model
            server.refuse = None
            del server.objects["tuneexperiments", "climb"]
            with pytest.raises(NoSuchExperimentError):
                experiments.model(USER, "climb")
            with pytest.raises(ModelClosedError):
                model.refresh()

    def test_few_are_kept(
        self, api: Experiments, server: ApiServer, sample: SampleExperiment, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(ui_experiments, "MAX_MODELS", 1)
        server.put("tuneexperiments", experiment_object("swim", {}, storageUri=str(sample.folder)))
        with contextlib.closing(DeskExperiments(api)) as experiments:
            first = experiments.model(USER, "climb")
            with first.in_use():
                second = experiments.model(USER, "swim")
                assert experiments.model(USER, "climb") is first
            with pytest.raises(ModelClosedError):
                second.refresh()

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
        actions.perform(USER, model, "stop-trial", {"trial": sample.trials[0]})
        assert (
            "PATCH",
            "/apis/trialpod.dev/v1alpha1/namespaces/team/tunetrials/climb-d75de-00000",
        ) in server.requests

    def test_samples_are_added_to_what_the_manifest_says(
        self, api: Experiments, experiments: DeskExperiments, server: ApiServer
    ) -> None:
        model = experiments.model(USER, "climb")  # its journal has not been read
        spec = server.experiment("climb")["spec"]
        actions = DeskActions(api, "-n team")
        server.routes["POST", ACCESS] = {"status": {"allowed": True}}
        assert actions.perform(USER, model, "more-samples", {"samples": 4}) == "it has 5 samples now"
        spec["numSamples"] = 500
        actions.perform(USER, model, "more-samples", {"samples": 4})
        actions.perform(USER, model, "more-samples", {"samples": 4})
        assert spec["numSamples"] == 508
        more = next(each for each in actions.listed(USER, model) if each["name"] == "more-samples")
        assert (more["base"], '"numSamples":{samples}' in more["command"]) == (508, True)

    def test_samples_of_two_users_are_both_added(
        self, api: Experiments, experiments: DeskExperiments, server: ApiServer
    ) -> None:
        model = experiments.model(USER, "climb")
        spec = server.experiment("climb")["spec"]
        path = "/apis/trialpod.dev/v1alpha1/namespaces/team/tuneexperiments/climb"

        def patched(_body: Any) -> Any:
            """Change it just before the user's change comes."""
            del server.routes["PATCH", path]
            spec["numSamples"] = 20
            return {"code": 409, "reason": "Conflict", "message": "the object has been modified"}

        server.routes["PATCH", path] = patched
        DeskActions(api, "-n team").perform(USER, model, "more-samples", {"samples": 4})
        assert spec["numSamples"] == 24
        sent = [body for (method, _), body in zip(server.requests, server.bodies, strict=True) if method == "PATCH"]
        assert len({body["metadata"]["resourceVersion"] for body in sent}) == 2

    def test_no_samples_are_added_where_there_is_no_limit(
        self, api: Experiments, experiments: DeskExperiments, server: ApiServer
    ) -> None:
        model = experiments.model(USER, "climb")
        server.experiment("climb")["spec"] |= {"algorithm": "auto", "timeBudget": "1h"}
        actions = DeskActions(api, "-n team")
        with pytest.raises(InvalidInputError, match="no limit"):
            actions.perform(USER, model, "more-samples", {"samples": 4})
        assert "numSamples" not in server.experiment("climb")["spec"]
        server.routes["POST", ACCESS] = {"status": {"allowed": True}}
        more = next(each for each in actions.listed(USER, model) if each["name"] == "more-samples")
        assert (more["allowed"], more["why_not"]) == (False, "it has no limit of samples")

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
