from __future__ import annotations

import enum
import json
import random
import threading
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import numpy as np
import optuna
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trialpod import tune
from trialpod.errors import InvalidInputError
from trialpod.protocol.messages import CheckpointRules, TrainableRef
from trialpod.protocol.values import ParamsEncoder, params_decoder, params_encoder
from trialpod.tune.backends import ExperimentRequest
from trialpod.tune.plugins.objectives import Objective
from trialpod.tune.schedulers import (
    ASHAScheduler,
    FIFOScheduler,
    PopulationBasedTraining,
    PopulationBasedTrainingReplay,
    ResourceChangingScheduler,
)
from trialpod.tune.search.basic_variant import BasicVariantGenerator
from trialpod.tune.search.optuna import OptunaSearch
from trialpod.tune.search.sample import Domain
from trialpod.tune.search.spaces.variants import VariantSpace
from trialpod.tune.shipping.stored_objects import ValueFiles, read_values_from
from trialpod.tune.stopper import CombinedStopper, MaximumIterationStopper, TrialPlateauStopper
from trialpod_operator.api.command import command_of
from trialpod_operator.api.models import TrainableSpec
from trialpod_operator.api.search_space import compile_search_space
from trialpod_operator.cluster.json_values import bounded
from trialpod_operator.commands.list import cluster_facts
from trialpod_operator.engine.trial import Trial
from trialpod_operator.kube_client.manifest import ClusterSettings, build_manifest, ignored, resource_name
from trialpod_operator.kube_client.script_draws import draw_here_too, without_generator
from trialpod_operator.kube_client.view import view_of

SETTINGS = ClusterSettings(namespace="team", endpoint="http://minio:9000", credentials_secret="minio", image="i:1")
URI = "s3://tune/runs/climb/.trialpod/trainable-00.pkl"


def request(**changes: Any) -> ExperimentRequest:
    fields: dict[str, Any] = {
        "name": "climb",
        "storage_path": "/work",
        "storage_uri": "s3://tune/runs/climb",
        "trainable": TrainableRef(pickle="/work/climb/trainable.pkl", sha256="0" * 64),
        "trainable_name": "train",
        "is_class": False,
        "param_space": {"lr": tune.loguniform(1e-4, 1e-1)},
        "metric": "loss",
        "mode": "min",
        **changes,
    }
    return ExperimentRequest(**fields)


def spec(**changes: Any) -> dict[str, Any]:
    made: dict[str, Any] = build_manifest(request(**changes), SETTINGS, URI)["spec"]
    return made


def test_everything_that_a_manifest_knows_is_in_it() -> None:
    made = build_manifest(
        request(
            num_samples=20,
            max_concurrent=4,
            time_budget_s=90.5,
            max_trial_hours=12,
            max_gpu_hours=1.5,
            stop_when_not_worth=0.01,
            repeats={"top": 2, "times": 3, "seed_parameter": "lr"},
            seed=7,
            max_failures=2,
            fail_fast=True,
            reuse=True,
            stop={"training_iteration": 9, "loss": 0.5},
            checkpoint_rules=CheckpointRules(frequency=2, num_to_keep=3, score_attribute="loss", score_order="min"),
            resources={"cpu": 0.5, "gpu": 1, "memory": 2.0**30, "example.com/fpga": 2},
            scheduler=ASHAScheduler(max_t=9, grace_period=2),
        ),
        SETTINGS,
        URI,
    )
    assert made["metadata"] == {"name": "climb", "namespace": "team"}
    assert made["spec"] == {
        "trainable": {"pickle": {"uri": URI, "sha256": "0" * 64, "name": "train"}},
        "searchSpace": {"lr": {"loguniform": {"lower": 1e-4, "upper": 1e-1}}},
        "metric": "loss",
        "mode": "min",
        "numSamples": 20,
        "maxConcurrentTrials": 4,
        "timeBudget": 91,
        "maxTrialHours": 12,
        "maxGpuHours": 1.5,
        "stopWhenNotWorth": 0.01,
        "repeats": {"top": 2, "times": 3, "seedParameter": "lr"},
        "seed": 7,
        "scheduler": {"name": "async_hyperband", "parameters": {"max_t": 9, "grace_period": 2}},
        "stop": {"training_iteration": 9, "loss": 0.5},
        "checkpoint": {
            "frequency": 2, "atEnd": False, "numToKeep": 3, "scoreAttribute": "loss", "scoreOrder": "min",
        },
        "failurePolicy": {"maxFailures": 2, "failFast": True},
        "reusePods": True,
        "storage": {"uri": "s3://tune/runs", "endpoint": "http://minio:9000", "credentialsSecret": "minio"},
        "image": "i:1",
        "resources": {"cpu": "500m", "gpu": 1, "memory": 2**30, "example.com/fpga": 2},
    }  # fmt: skip


def test_several_metrics_stand_in_place_of_one() -> None:
    made = spec(objectives=[Objective("loss", "min", 0.5), Objective("speed", "max")])
    assert made["metrics"] == [{"name": "loss", "mode": "min", "threshold": 0.5}, {"name": "speed", "mode": "max"}]
    assert not {"metric", "mode"} & set(made)


def test_earlier_experiments_go_with_the_search_that_takes_them() -> None:
    made = spec(algorithm="auto", warm_start={"experiments": ["climb"]})
    assert (made["algorithm"], made["warmStart"]) == ("auto", {"experiments": ["climb"]})
    with pytest.raises(InvalidInputError, match="warm_start: is advice for the search auto"):
        spec(warm_start={"auto": True})


def test_front_of_several_metrics_is_read_from_the_status() -> None:
    item = {
        "metadata": {"name": "e"},
        "spec": {"metrics": [{"name": "loss", "mode": "min"}, {"name": "speed", "mode": "max"}]},
        "status": {
            "best": {"trial": "e-1", "trialId": "1", "value": "0.5"},
            "paretoFront": [{"trial": "e-1", "trialId": "1", "values": {"loss": "0.5", "speed": "3"}}],
        },
    }
    trial = {"metadata": {"name": "e-1"}, "spec": {"trialId": "1"}, "status": {"state": "TERMINATED"}}
    view = view_of(item, [trial], now=0.0, rows=None)
    assert [(row.trial_id, point) for row, point in view.front] == [("1", [0.5, 3.0])]
    assert (view.metric, view.mode) == ("loss", "min")
    assert cluster_facts(item)["metric"] == "loss"


_number = st.floats(-1e6, 1e6, allow_nan=False) | st.integers(-(10**9), 10**9)
_bounds = st.tuples(st.floats(0.001, 10), st.floats(10.5, 1000))
_whole = st.tuples(st.integers(1, 10), st.integers(20, 1000))
_domains = st.one_of(
    _bounds.map(lambda b: tune.uniform(*b)),
    _bounds.map(lambda b: tune.loguniform(*b)),
    _whole.map(lambda b: tune.quniform(float(b[0]), float(b[1]), 1)),
    _whole.map(lambda b: tune.randint(*b)),
    _whole.map(lambda b: tune.lograndint(*b, base=2)),
    _whole.map(lambda b: tune.qrandint(b[0], b[1], 3)),
    st.tuples(st.floats(-5, 5), st.floats(0, 3)).map(lambda b: tune.randn(*b)),
)
_keys = st.sampled_from(["a", "b", "uniform", "unifrom", "choice", "literal", "grid_search", "sample_from", "lower"])
_plain = st.none() | st.booleans() | _number | st.text(max_size=5)
_constants = st.recursive(
    _plain, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_keys, inner, max_size=3), max_leaves=6
)


def shape(value: Any) -> Any:
    """What a space means: domains by how they draw."""
    if isinstance(value, Domain):
        if hasattr(value, "value"):
            return shape(value.value)
        if hasattr(value, "categories"):
            return ("choice", [shape(item) for item in value.categories])
        return (value.sampler, value.domain_str)
    if isinstance(value, dict):
        return {key: shape(item) for key, item in value.items()}
    return [shape(item) for item in value] if isinstance(value, list) else value


@given(_domains)
def test_every_distribution_arrives_as_it_was(domain: Domain) -> None:
    compiled, problems = compile_search_space(spec(param_space={"x": domain})["searchSpace"])
    assert problems == []
    assert shape(compiled["x"]) == shape(domain)


@given(st.dictionaries(st.sampled_from(["x", "y"]), _constants, max_size=2))
def test_every_constant_arrives_as_it_was_whatever_it_looks_like(space: dict[str, Any]) -> None:
    grids = repr(space).count("grid_search")
    if grids:
        return  # {"grid_search": [...]} is a grid for a Tuner too
    compiled, problems = compile_search_space(spec(param_space=space).get("searchSpace", {}))
    assert problems == []
    assert shape(compiled) == space


def test_options_and_grids_may_have_distributions_in_them() -> None:
    space = {
        "model": tune.choice([{"name": "net", "units": tune.randint(1, 9)}, {"name": "tree"}]),
        "depth": tune.grid_search([1, 2]),
    }
    assert spec(param_space=space)["searchSpace"] == {
        "model": {"choice": [{"name": "net", "units": {"randint": {"lower": 1, "upper": 9}}}, {"name": "tree"}]},
        "depth": {"grid_search": [1, 2]},
    }


def test_mutations_of_pbt_travel_as_manifests_have_them() -> None:
    pbt = PopulationBasedTraining(
        perturbation_interval=4, hyperparam_mutations={"lr": tune.loguniform(1e-4, 1e-1), "units": [1, 2]}
    )
    made = spec(scheduler=pbt)["scheduler"]
    assert made["name"] == "pbt"
    assert made["parameters"]["hyperparam_mutations"] == {
        "lr": {"loguniform": {"lower": 1e-4, "upper": 1e-1}},
        "units": [1, 2],
    }


def test_lines_of_a_policy_file_travel_and_not_its_path(tmp_path: Path) -> None:
    (tmp_path / "policy.txt").write_text('["a", "b", 5, 4, {"lr": 1}, {"lr": 2}]\n')
    replay = {"name": "pbt_replay", "parameters": {"policy_file": str(tmp_path / "policy.txt")}}
    sent = {"name": "pbt_replay", "parameters": {"policy": ['["a", "b", 5, 4, {"lr": 1}, {"lr": 2}]']}}
    made = spec(scheduler=PopulationBasedTrainingReplay(str(tmp_path / "policy.txt")))
    assert made["scheduler"] == sent
    outer = spec(scheduler=ResourceChangingScheduler(replay, None))["scheduler"]
    assert outer["parameters"]["base_scheduler"] == sent


def test_the_metric_of_a_scheduler_alone_is_the_experiments() -> None:
    made = spec(metric=None, mode=None, scheduler=ASHAScheduler(metric="loss", mode="min", max_t=9))
    assert (made["metric"], made["mode"]) == ("loss", "min")
    assert made["scheduler"] == {"name": "async_hyperband", "parameters": {"max_t": 9}}


def test_the_same_metric_given_twice_is_said_once() -> None:
    made = spec(scheduler=ASHAScheduler(metric="loss", mode="min"))
    assert made["scheduler"] == {"name": "async_hyperband"}
    with pytest.raises(InvalidInputError, match=r"spec\.metric"):
        spec(scheduler=ASHAScheduler(metric="score", mode="min"))


def test_stoppers_become_named_ones() -> None:
    both = CombinedStopper(MaximumIterationStopper(5), TrialPlateauStopper(metric="loss"))
    assert spec(stop=[both])["stoppers"] == [
        {"name": "maximum_iteration", "parameters": {"max_iter": 5}},
        {"name": "trial_plateau", "parameters": {"metric": "loss"}},
    ]


class OwnScheduler(FIFOScheduler):
    pass


class FileLoggers(tune.Callback):
    logger_classes = (object,)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"stop": lambda trial_id, result: True}, r"RunConfig\(stop=...\): the function .*use a dict"),
        ({"param_space": {"a": {"b": (1, tune.uniform(0, 1))}}}, r"\['a'\]\['b'\]: a tuple with distrib.*list"),
        ({"param_space": {"a": "x", "b": threading.Lock()}}, r"param_space\['b'\]"),
        ({"param_space": {"a": b"x" * 100_000}}, r"100,0\d\d bytes are too many .* tune.with_parameters"),
        (
            {"search_alg": OptunaSearch(sampler=optuna.samplers.RandomSampler())},
            r"OptunaSearch\(sampler=...\): a RandomSampler .* give it by its name, such as .*sampler=\"gp\"",
        ),
        ({"scheduler": OwnScheduler()}, "OwnScheduler is a class of your own"),
        ({"callbacks": [FileLoggers()]}, r"RunConfig\(callbacks=\[FileLoggers.*into the trial's directory"),
        ({"resources_fn": lambda config: {}}, "with_resources"),
        ({"resources": {"gpu": 0.5}}, "whole devices only"),
        ({"resources": {"widget": 1}}, "example.com/widget"),
        ({"storage_uri": ""}, r"storage_path=...\): in a cluster it has to be a bucket"),
        ({"name": "My_Run.1"}, "'my-run-1' would do"),
        ({"resume": True, "resume_unfinished": False}, "trialpod stop NAME --trial"),
        ({"strict_metric": False}, "TUNE_DISABLE_STRICT"),
        ({"metric": None, "mode": None, "scheduler": ASHAScheduler()}, "compares trials by a metric"),
    ],
)
def test_what_cannot_be_said_is_refused_with_the_arguments_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        spec(**changes)


def test_everything_that_is_wrong_is_reported_at_once() -> None:
    with pytest.raises(InvalidInputError, match="nothing was started") as caught:
        spec(callbacks=[FileLoggers()], name="A_B", storage_uri="", stop=[lambda trial_id, result: True])
    assert str(caught.value).count("\n  - ") == 4


@given(st.text(max_size=80))
def test_any_text_becomes_a_name_that_is_allowed(text: str) -> None:
    assert build_manifest(request(name=resource_name(text)), SETTINGS, URI)["metadata"]["name"]


def test_placement_group_bundles_are_a_head_and_workers() -> None:
    made = spec(resources={"cpu": 5.0, "gpu": 2.0}, bundles=[{"cpu": 1.0}, *[{"cpu": 2.0, "gpu": 1.0}] * 2])
    assert made["resources"] == {"cpu": "1"}
    assert made["workers"] == {"replicas": 2, "resources": {"cpu": "2", "gpu": 1}}


def test_workers_that_differ_are_refused_with_what_to_do() -> None:
    with pytest.raises(InvalidInputError, match="make them equal, or use strategy='STRICT_PACK'"):
        spec(bundles=[{"cpu": 1.0}, {"cpu": 2.0}, {"gpu": 1.0}])


class Colour(enum.Enum):
    RED = 1


class Bomb:
    def __reduce__(self) -> Any:
        return explode, ()


def explode() -> None:
    raise AssertionError("a pickle was opened")


class TestTypes:
    """Values that JSON has no form for come to the trial as they were."""

    VALUES: ClassVar[dict[str, Any]] = {
        "whole float": 1.0,
        "infinite": float("inf"),
        "tuple": (3, 4),
        "nested": {"shape": [(1, 2.0)], "name": "x"},
        "path": Path("/data/set"),
        "large": 2**70,
        "numpy": np.float32(0.5),
        "member": Colour.RED,
        "list of floats": [0.0, 0.5, 1.0],
    }

    def drawn(self, space: dict[str, Any]) -> dict[str, Any]:
        """The config of a trial: through JSON to the operator, which opens nothing, and to the trial."""
        stored = json.loads(json.dumps(spec(param_space=space)["searchSpace"]))
        compiled, problems = compile_search_space(stored)
        assert not problems
        search = BasicVariantGenerator(random_state=1)
        search.configure(compiled, 1)
        found = search.next_suggestion()
        assert found is not None
        opened: dict[str, Any] = params_decoder.decode(params_encoder.encode(found.config))
        return opened

    @pytest.mark.parametrize("name", VALUES)
    def test_of_a_constant(self, name: str) -> None:
        value = self.VALUES[name]
        found = self.drawn({"x": value})["x"]
        assert found == value
        assert type(found) is type(value)

    @pytest.mark.parametrize("name", VALUES)
    @pytest.mark.parametrize("make", [lambda value: tune.choice([value]), lambda value: tune.grid_search([value])])
    def test_of_a_choice(self, name: str, make: Any) -> None:
        value = self.VALUES[name]
        found = self.drawn({"a": {"x": make(value)}})["a"]["x"]
        assert found == value
        assert type(found) is type(value)

    def test_plain_values_stay_readable(self) -> None:
        plain = {"a": 1, "b": 0.5, "c": "x", "d": [1, "y"], "e": None, "f": True}
        assert spec(param_space=plain)["searchSpace"] == plain

    def test_others_have_a_readable_form_beside_them(self) -> None:
        found = spec(param_space={"x": Path("/data")})["searchSpace"]["x"]
        assert found["readable"] == "/data"

    def test_operator_opens_no_pickle(self) -> None:
        stored = json.loads(json.dumps(spec(param_space={"x": {"deep": (Bomb(), {"a": 1})}})["searchSpace"]))
        compiled, problems = compile_search_space(stored)
        assert not problems
        params = params_encoder.encode(VariantSpace(compiled).variant(0, random.Random(1)).config)
        trial = Trial(trial_id="a", index=0, tag="", params=params, created_at=0.0)
        assert bounded(trial.shown_config, 4096) == {"x": {"deep": ["<Bomb>", {"a": 1}]}}
        with pytest.raises(AssertionError, match="a pickle was opened"):
            params_decoder.decode(params)

    def test_large_values_are_stored_beside_the_trainable(self, tmp_path: Path) -> None:
        store = ValueFiles(tmp_path)
        space = {"x": np.arange(50_000.0), "many": [float(n) for n in range(20_000)], "text": "x" * 100_000}
        made = build_manifest(request(param_space=space), SETTINGS, URI, ParamsEncoder(store))["spec"]
        assert len(json.dumps(made["searchSpace"])) < 2000
        assert len(store.files) == 3
        compiled, problems = compile_search_space(made["searchSpace"])
        assert not problems
        params = params_encoder.encode(VariantSpace(compiled).variant(0, random.Random(1)).config)
        read_values_from(str(tmp_path))
        found = params_decoder.decode(params)
        assert found["x"].tolist() == space["x"].tolist()
        assert (found["many"], found["text"]) == (space["many"], space["text"])

    def test_what_nobody_has_written_is_refused(self) -> None:
        _, problems = compile_search_space({"x": {"trialpod.dev/value": "???"}})
        assert "is not a value that a script has written" in str(problems[0])


class TestCommands:
    @pytest.mark.parametrize(
        "command",
        [
            tune.Command(["train", "--lr={lr}"]),
            tune.Command(
                ["python", "-m", "train", "{args}"],
                env={"LR": "{lr}"},
                resume_args=["--resume"],
                parameters_file="{trial_dir}/all.yaml",
                parameter_env_prefix="HP_",
                working_dir="/code",
                grace_s=0.5,
                at_horizon="freeze",
                metrics={"format": "csv", "file": "{trial_dir}/m.csv", "names": ["loss"], "step": "epoch"},
                checkpoints={"ready_file": "done", "settle_s": 3.0},
            ),
            tune.Command(["train", "{lr}"], grace_s=120, metrics={"prometheus": "http://[::1]:8", "interval_s": 9.0}),
            tune.Command(
                ["train", "{lr}"], metrics={"pattern": r"loss (?P<loss>\S+)", "tensorboard": "a", "mlflow": "b"}
            ),
        ],
        ids=["plain", "everything", "prometheus", "folders"],
    )
    def test_a_script_and_its_manifest_say_the_same(self, command: tune.Command) -> None:
        said = spec(command=command.command_spec)["trainable"]
        assert command_of(msgspec.convert(said, TrainableSpec)) == command.command_spec
        assert "pickle" not in said

    def test_only_what_differs_from_the_defaults_is_said(self) -> None:
        command = tune.Command(["train", "--lr={lr}"])
        assert spec(command=command.command_spec)["trainable"] == {"command": ["train", "--lr={lr}"]}

    def test_parts_of_seconds_are_rounded_up(self) -> None:
        command = tune.Command(["train", "{lr}"], metrics={"interval_s": 2.1}, checkpoints={"settle_s": 0.5})
        said = spec(command=command.command_spec)["trainable"]
        assert said["metricsFrom"] == {"intervalSeconds": 3}
        assert said["checkpointFolder"] == {"settleSeconds": 1}

    def test_a_name_without_effect_is_warned_of(self) -> None:
        command = tune.Command(["bash", "train.sh", "{lr}"], name="digits")
        (said,) = ignored(request(command=command.command_spec, trainable_name="digits"))
        assert "Command(name=...)" in said
        assert ignored(request(command=command.command_spec, trainable_name="train")) == []


def test_what_changes_no_result_is_ignored_and_reported() -> None:
    """Scripts that were written for a machine run without a change."""
    asked = request(
        trial_name=lambda _id, _tag, _name: "x",
        trial_dirname=lambda _id, _tag, _name: "x",
        log_files=("out.txt", "err.txt"),
        progress_reporter=tune.CLIReporter(),
    )
    build_manifest(asked, SETTINGS, URI)
    told = ignored(asked)
    for argument in ("trial_name_creator", "trial_dirname_creator", "log_to_file", "progress_reporter"):
        assert any(argument in each for each in told)
    assert ignored(request()) == []


class TestScriptThatSeedsNumpy:
    SPACE: ClassVar[dict[str, Any]] = {
        "wd": tune.uniform(0, 1),
        "lr": tune.loguniform(1e-4, 1),
        "model": {"z": tune.randint(0, 1000), "a": tune.choice(["x", "y", "z"])},
        "b": tune.grid_search([1, 2]),
        "momentum": tune.randn(0, 1),
    }

    def drawn_by_operator(self, made: dict[str, Any]) -> list[dict[str, Any]]:
        kept = json.loads(json.dumps(made, sort_keys=True))  # as the API server answers
        space, problems = compile_search_space(kept["searchSpace"])
        assert not problems
        search = BasicVariantGenerator(**kept["searchAlgorithm"]["parameters"])
        search.configure(space, kept["numSamples"])
        return [search.next_suggestion().config for _ in range(search.total)]

    def test_the_operator_draws_what_the_script_would(self) -> None:
        np.random.seed(5)
        np.random.rand(3)
        np.random.randn()
        made = spec(param_space=self.SPACE, num_samples=4, search_alg=None)
        here = BasicVariantGenerator()
        here.configure(self.SPACE, 4)
        local = [here.next_suggestion().config for _ in range(8)]
        assert self.drawn_by_operator(made) == local
        assert [list(each) for each in self.drawn_by_operator(made)] == [list(each) for each in local]

    def test_its_generator_is_behind_the_draws_afterwards(self) -> None:
        np.random.seed(5)
        draw_here_too(request(param_space=self.SPACE, num_samples=4, search_alg=None))
        after = np.random.rand()
        np.random.seed(5)
        here = BasicVariantGenerator()
        here.configure(self.SPACE, 4)
        for _ in range(8):
            here.next_suggestion()
        assert np.random.rand() == after

    def test_a_seed_of_the_experiment_goes_before(self) -> None:
        np.random.seed(5)
        assert "searchAlgorithm" not in spec(param_space=self.SPACE, seed=3)

    def test_the_same_script_again_is_no_other_experiment(self) -> None:
        np.random.seed(5)
        first = spec(param_space=self.SPACE, search_alg=BasicVariantGenerator(max_concurrent=2))
        np.random.rand()
        again = spec(param_space=self.SPACE, search_alg=BasicVariantGenerator(max_concurrent=2))
        assert first != again
        assert without_generator(first) == without_generator(again)
        assert without_generator(first)["searchAlgorithm"]["parameters"] == {"max_concurrent": 2}

    def test_what_is_no_generator_is_refused(self) -> None:
        with pytest.raises(InvalidInputError, match="not the state of a generator"):
            BasicVariantGenerator(random_state="MT19937:1:0:0.0:abc")
