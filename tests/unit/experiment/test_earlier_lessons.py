"""What an experiment learns from earlier ones at its first start, and what a later start still knows of it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("numpy")
pytest.importorskip("threadpoolctl")

from trialpod.errors import InvalidInputError
from trialpod.protocol.messages import TrainableRef
from trialpod.storage.options import StorageOptions
from trialpod.tune import TuneConfig, uniform
from trialpod.tune.backends import ExperimentRequest
from trialpod.tune.search import BasicVariantGenerator
from trialpod_operator.api.loader import load_manifests
from trialpod_operator.api.models import TuneExperiment
from trialpod_operator.cluster.experiment_plan import make_plan
from trialpod_operator.cluster.storage_access import StorageLocation
from trialpod_operator.decider.code import load_plan, pack_code
from trialpod_operator.experiment.decisions.messages import (
    DecisionAnswer,
    DecisionRequest,
    decode_answer,
    encode,
    read_lessons,
)
from trialpod_operator.experiment.durable import DurableExperiment
from trialpod_operator.experiment.own_code import pack_manifest
from trialpod_operator.experiment.plan import ExperimentPlan, plan_from_manifest, plan_from_request
from trialpod_operator.experiment.warm_start import EarlierHere
from trialpod_operator.kube_client.manifest import ClusterSettings, build_manifest


def store(folder: Path, losses: dict[float, Any], metric: str = "loss", **more: Any) -> None:
    """Write an experiment whose trials have these values of x and this metric."""
    (folder / ".trialpod").mkdir(parents=True)
    (folder / ".trialpod" / "experiment.json").write_text('{"version": 1, "name": "early"}')
    for number, (x, loss) in enumerate(losses.items()):
        row = {metric: loss, "training_iteration": 3, "config": {"x": x, **more}}
        (folder / f"t{number}").mkdir()
        (folder / f"t{number}" / "result.json").write_text(json.dumps(row) + "\n")


def manifest(warm_start: Any, **more: Any) -> TuneExperiment:
    spec = {
        "trainable": {"entrypoint": "a:b"},
        "searchSpace": {"x": {"uniform": [0, 1]}, "y": {"uniform": [0, 1]}},
        "metric": "loss",
        "mode": "min",
        "algorithm": "auto",
        "seed": 3,
        "numSamples": 40,
        "warmStart": warm_start,
        **more,
    }
    document = {
        "apiVersion": "trialpod.dev/v1alpha1",
        "kind": "TuneExperiment",
        "metadata": {"name": "now"},
        "spec": {key: value for key, value in spec.items() if value is not None},
    }
    (experiment,) = load_manifests(json.dumps(document), "now.json")
    return experiment


def planned(parent: Path, warm_start: Any, stored: Any = None, **more: Any) -> ExperimentPlan:
    experiment = manifest(warm_start, **more)
    return plan_from_manifest(experiment, Path("."), stored, earlier=EarlierHere(parent, "", "now"))


def suggested(plan: ExperimentPlan, count: int = 4) -> list[float]:
    found = []
    for _ in range(count):
        suggestion = plan.search.next_suggestion()
        assert suggestion is not None
        found.append(suggestion.config["x"])
    return found


class TestNamedExperiments:
    def test_their_best_configs_take_turns(self, tmp_path: Path) -> None:
        store(tmp_path / "climb", {0.1: 3, 0.2: 1, 0.3: 2})
        store(tmp_path / "walk", {0.7: 10, 0.8: 30, 0.9: 20})
        plan = planned(tmp_path, {"experiments": ["climb", "walk"]})
        assert suggested(plan, 3) == [0.2, 0.7, 0.3]
        assert plan.document["warmStart"]["learned"] == [
            {"experiment": "climb", "trials": 3},
            {"experiment": "walk", "trials": 3},
        ]

    def test_a_directory_names_one_too(self, tmp_path: Path) -> None:
        store(tmp_path / "other" / "climb", {0.25: 1})
        plan = planned(tmp_path / "runs", {"experiments": [str(tmp_path / "other" / "climb")]})
        assert suggested(plan, 1) == [0.25]

    def test_later_starts_need_them_no_more(self, tmp_path: Path) -> None:
        store(tmp_path / "climb", {0.1: 3, 0.2: 1})
        first = planned(tmp_path, {"experiments": ["climb"]})
        document = json.loads(json.dumps(first.document))
        shutil.rmtree(tmp_path / "climb")
        again = planned(tmp_path, {"experiments": ["climb"]}, stored=document)
        assert suggested(again, 20) == suggested(first, 20)
        assert again.document["warmStart"] == document["warmStart"]

    @pytest.mark.parametrize(
        ("name", "said"),
        [
            ("emty", r"there is no experiment 'emty' in .* Did you mean 'empty'\?"),
            ("now", "'now' is this experiment itself"),
            ("empty", "nothing can be learned from empty: none of its trials has a result that can be read"),
            ("foreign", "nothing can be learned from foreign: of its 1 trials that reported none has 'loss'"),
            ("damaged", "nothing can be learned from damaged: none of its trials has a result"),
        ],
    )
    def test_one_without_use_is_an_error(self, tmp_path: Path, name: str, said: str) -> None:
        store(tmp_path / "empty", {})
        store(tmp_path / "foreign", {0.5: 1}, metric="accuracy")
        store(tmp_path / "damaged", {0.5: 1})
        (tmp_path / "damaged" / "t0" / "result.json").write_bytes(b'{"loss": 1, "conf\xff\x00')
        with pytest.raises(InvalidInputError, match=said):
            planned(tmp_path, {"experiments": [name]})

    def test_damaged_trials_are_left_out(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        store(tmp_path / "climb", {0.1: 1, 0.2: 2})
        (tmp_path / "climb" / "t0" / "result.json").write_bytes(b"\x00\xff[[[")
        assert suggested(planned(tmp_path, {"experiments": ["climb"]}), 1) == [0.2]
        assert "1 result files are damaged and left out, such as t0/result.json" in caplog.text


class TestAutomatic:
    def test_takes_all_that_overlap(self, tmp_path: Path) -> None:
        store(tmp_path / "climb", {0.2: 1}, y=0.5)
        store(tmp_path / "half", {0.3: 1}, z=0.5)
        store(tmp_path / "foreign", {7.0: 1}, z=0.5)
        store(tmp_path / "other", {0.5: 1}, metric="accuracy")
        (tmp_path / "no-experiment").mkdir()
        plan = planned(tmp_path, {"auto": True})
        kept = plan.document["warmStart"]
        assert [each["experiment"] for each in kept["learned"]] == ["climb", "half"]
        assert [each["experiment"] for each in kept["unused"]] == ["foreign", "no-experiment", "other"]
        assert suggested(plan, 2) == [0.2, 0.3]
        assert plan.notice == ""

    def test_less_than_half_of_the_parameters_is_too_little(self, tmp_path: Path) -> None:
        store(tmp_path / "climb", {0.2: 1})
        space = {name: {"uniform": [0, 1]} for name in "xyz"}
        plan = planned(tmp_path, {"auto": True}, searchSpace=space)
        assert plan.document["warmStart"]["unused"][0]["why"] == "it shares less than half of the parameters"

    def test_without_any_it_starts_as_without(self, tmp_path: Path) -> None:
        plan = planned(tmp_path / "not-there", {"auto": True})
        assert "no earlier experiment beside this one" in plan.notice
        assert suggested(plan, 15) == suggested(planned(tmp_path, None), 15)

    @pytest.mark.parametrize("learned", [True, False])
    def test_names_that_are_not_looked_at_are_counted(self, tmp_path: Path, learned: bool) -> None:
        for number in range(199):
            (tmp_path / f"a{number:03}").mkdir()
        store(tmp_path / "b", {0.2: 1}, metric="loss" if learned else "accuracy")
        assert "looked at" not in planned(tmp_path, {"auto": True}).notice
        store(tmp_path / "c", {0.3: 1})
        plan = planned(tmp_path, {"auto": True})
        assert len(plan.document["warmStart"]["learned"]) == learned
        assert "only the first 200 of 201 names beside this one were looked at" in plan.notice
        assert ("no earlier experiment" in plan.notice) == (not learned)

    def test_later_ones_change_nothing(self, tmp_path: Path) -> None:
        first = planned(tmp_path, {"auto": True})
        store(tmp_path / "climb", {0.2: 1}, y=0.5)
        assert suggested(planned(tmp_path, {"auto": True}, stored=first.document), 9) == suggested(first, 9)


class TestParameterOfAnySearch:
    def test_is_read_at_the_first_start_only(self, tmp_path: Path) -> None:
        pytest.importorskip("optuna")
        store(tmp_path / "climb", {0.1: 3, 0.2: 1}, y=0.5)
        search = {"name": "optuna", "parameters": {"warm_start": "climb"}}
        first = planned(tmp_path, None, algorithm=None, searchAlgorithm=search)
        assert [entry[0] for entry in first.document["warmStart"]["lessons"]] == ["add", "add"]
        shutil.rmtree(tmp_path / "climb")
        stored = json.loads(json.dumps(first.document))
        again = planned(tmp_path, None, stored=stored, algorithm=None, searchAlgorithm=search)
        assert suggested(again, 12) == suggested(first, 12)


def script_request(parent: Path, **more: Any) -> ExperimentRequest:
    """Return what a script asks for."""
    return ExperimentRequest(
        name="now",
        storage_path=str(parent),
        trainable=TrainableRef(entrypoint="a:b"),
        trainable_name="b",
        is_class=False,
        param_space={"x": uniform(0, 1)},
        metric="loss",
        mode="min",
        **more,
    )


class TestScript:
    def test_learns_from_experiments_beside_it(self, tmp_path: Path) -> None:
        store(tmp_path / "climb", {0.2: 1})
        request = script_request(tmp_path, algorithm="auto", warm_start={"experiments": ["climb"]}, num_samples=9)
        assert suggested(plan_from_request(request, None), 1) == [0.2]

    @pytest.mark.parametrize("search", [BasicVariantGenerator(), None])
    def test_other_searches_take_none(self, tmp_path: Path, search: Any) -> None:
        request = script_request(tmp_path, search_alg=search, warm_start={"auto": True}, num_samples=9)
        with pytest.raises(InvalidInputError, match="advice for the search auto"):
            plan_from_request(request, None)

    @pytest.mark.parametrize(
        "wrong",
        [{}, {"experiments": []}, {"experiments": ["a"], "auto": True}, {"experiments": "a"}, {"auto": 3}, ["a"],
         {"auto": True, "experimnts": []}],
    )  # fmt: skip
    def test_wrong_forms_are_refused(self, wrong: Any) -> None:
        with pytest.raises(InvalidInputError, match="warm_start"):
            TuneConfig(metric="loss", mode="min", algorithm="auto", warm_start=wrong)

    def test_needs_the_search_auto(self) -> None:
        with pytest.raises(InvalidInputError, match='give algorithm="auto"'):
            TuneConfig(metric="loss", mode="min", warm_start={"auto": True})


def never(trial_id: str, result: dict[str, Any]) -> bool:
    return False


class TestDecider:
    """It learns what the operator learned, and opens nothing itself."""

    def followed(
        self, experiment: TuneExperiment, code: bytes, parent: Path, stored: Any = None
    ) -> tuple[ExperimentPlan, ExperimentPlan]:
        """Return the operator's plan, and the one of a decider that it starts."""
        location = StorageLocation(uri=f"{parent}/now", own=StorageOptions(), pods=StorageOptions())
        plan = make_plan(experiment, location, "team", stored, None, lambda: code)
        opened = DurableExperiment(plan, parent / "now", lambda: 1.0)
        assert opened.decisions is not None
        try:
            answer = opened.decisions.handle(DecisionRequest())
            assert isinstance(answer, DecisionAnswer)
            start = decode_answer(encode(answer)).start
            assert start is not None
        finally:
            opened.journaled._journal.close()
        return plan, load_plan(start.code, start.seed, start.name, lessons=read_lessons(start))

    @pytest.mark.parametrize("warm_start", [{"experiments": ["climb"]}, {"auto": True}])
    @pytest.mark.parametrize("script", [False, True])
    def test_has_the_lessons_of_auto(self, tmp_path: Path, warm_start: Any, script: bool) -> None:
        store(tmp_path / "climb", {0.1: 3, 0.2: 1}, y=0.5)
        expected = suggested(planned(tmp_path, warm_start), 20)
        if script:
            given = ExperimentRequest(
                name="now",
                storage_path=str(tmp_path),
                storage_uri="s3://tune/runs/now",
                trainable=TrainableRef(pickle="s3://tune/runs/now/code", sha256="0" * 64),
                trainable_name="b",
                is_class=False,
                param_space={"x": uniform(0, 1), "y": uniform(0, 1)},
                metric="loss",
                mode="min",
                num_samples=40,
                seed=3,
                algorithm="auto",
                warm_start=warm_start,
                stop=never,
            )
            code = pack_code(given)
            decider = {"uri": "s3://tune/runs/now/decider", "sha256": "0" * 64}
            document = build_manifest(given, ClusterSettings(namespace="team"), given.trainable.pickle or "",
                                      decider=decider)  # fmt: skip
            (experiment,) = load_manifests(json.dumps(document), "now.json")
        else:
            own = {"stoppers": [{"entrypoint": f"{__name__}:never"}]}
            experiment = manifest(warm_start, decider=own, storage={"uri": "s3://tune/runs"})
            code = pack_manifest(experiment)
        plan, first = self.followed(experiment, code, tmp_path)
        assert first.document["warmStart"] == {"lessons": plan.document["warmStart"]["lessons"]}
        assert suggested(first, 20) == expected
        shutil.rmtree(tmp_path / "climb")
        _, again = self.followed(experiment, code, tmp_path, json.loads(json.dumps(plan.document)))
        assert suggested(again, 20) == expected

    def test_has_the_lessons_of_a_named_search(self, tmp_path: Path) -> None:
        pytest.importorskip("optuna")
        store(tmp_path / "climb", {0.1: 3, 0.2: 1}, y=0.5)
        search = {"name": "optuna", "parameters": {"warm_start": "climb"}}
        expected = suggested(planned(tmp_path, None, algorithm=None, searchAlgorithm=search), 12)
        own = {"scheduler": {"entrypoint": "trialpod.tune.schedulers:FIFOScheduler"}}
        experiment = manifest(
            None, algorithm=None, searchAlgorithm=search, decider=own, storage={"uri": "s3://tune/runs"}
        )
        _, decider = self.followed(experiment, pack_manifest(experiment), tmp_path)
        assert suggested(decider, 12) == expected

    def test_a_script_search_that_needs_a_neighbour_is_told(self, tmp_path: Path) -> None:
        pytest.importorskip("optuna")
        from trialpod.tune.search import OptunaSearch

        given = script_request(tmp_path, search_alg=OptunaSearch(warm_start="climb"), stop=never)
        with pytest.raises(InvalidInputError, match=r"'climb' cannot be opened .* add_evaluated_experiment\(place\)"):
            suggested(load_plan(pack_code(given), 3, "now"), 1)
        store(tmp_path / "climb", {0.1: 3, 0.2: 1})
        taught = OptunaSearch(metric="loss", mode="min")
        assert taught.add_evaluated_experiment(tmp_path / "climb") == 2
        given.search_alg = taught
        plan = load_plan(pack_code(given), 3, "now")
        suggested(plan, 1)
        log = plan.search.searcher.get_state()["log"]  # type: ignore[attr-defined]
        assert [entry[0] for entry in log] == ["add", "add", "ask"]
