"""Every import of Ray in its own examples and tests and in well-known libraries works, or says why it does not."""

from __future__ import annotations

import contextlib
import importlib
import logging
import pickle
import sys
from collections.abc import Iterator
from inspect import signature
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest

from trialpod import tune
from trialpod.compat import ray as alias
from trialpod.compat.ray import known_names, table
from trialpod.errors import InvalidInputError, NotOffered, NotSupportedError, TrialpodError
from trialpod.tune.logger.library import MissingLibraryError
from trialpod.tune.resources import resources_of

IMPORTS = Path(__file__).parents[2] / "data" / "ray_imports.tsv"


def statements() -> list[tuple[str, str]]:
    lines = [line.split("\t") for line in IMPORTS.read_text().splitlines() if not line.startswith("#")]
    return [(kind, statement) for kind, statement in lines]


@pytest.fixture(scope="module", autouse=True)
def _alias() -> Iterator[None]:
    alias.install(replace=True)
    yield
    alias.uninstall()


def bound(statement: str) -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(statement, names)
    names.pop("__builtins__")
    return names


def what_becomes_of(kind: str, statement: str) -> str:
    try:
        values = list(bound(statement).values())
    except ImportError as error:
        return "needs a library" if "which is not installed; install it with" in str(error) else str(error)
    if kind == "needs a library":
        return kind  # it is installed here
    stands_in = [isinstance(v, NotOffered) or getattr(v, "never_raised", False) for v in values]
    return "stand-in" if any(stands_in) else "offered"


class TestImportsOfOthers:
    def test_work_or_say_why_not(self) -> None:
        found = [(kind, what_becomes_of(kind, statement), statement) for kind, statement in statements()]
        assert [row for row in found if row[1] not in (row[0], "offered")] == []

    def test_the_list_is_not_empty(self) -> None:
        kinds = [kind for kind, _ in statements()]
        assert kinds.count("offered") > 200
        assert set(kinds) == {"offered", "stand-in", "needs a library"}

    @pytest.mark.parametrize("module", ["ray.tune.tuner", "ray.tune.registry", "ray.tune.experiment.trial"])
    def test_names_of_a_module_can_be_imported(self, module: str) -> None:
        for name in known_names.names(module):
            assert bound(f"from {module} import {name}")

    def test_a_name_that_ray_never_had_is_an_error(self) -> None:
        for statement in ("from ray.tune.tuner import Tunre", "import ray.tune.nothing", "from ray.air import _x, y"):
            with pytest.raises(ImportError):
                bound(statement)


class TestStarImports:
    @pytest.mark.parametrize(
        ("module", "names"),
        [
            ("ray", "init get put remote wait"),
            ("ray.tune", "Tuner TuneConfig run choice uniform Trainable CLIReporter"),
            ("ray.tune.schedulers", "ASHAScheduler PopulationBasedTraining FIFOScheduler create_scheduler"),
            ("ray.tune.search", "BasicVariantGenerator ConcurrencyLimiter Searcher"),
            ("ray.tune.search.optuna", "OptunaSearch"),
            ("ray.tune.stopper", "MaximumIterationStopper Stopper CombinedStopper"),
            ("ray.tune.logger", "LoggerCallback JsonLoggerCallback CSVLogger"),
            ("ray.tune.result", "TRAINING_ITERATION DONE"),
            ("ray.tune.utils", "validate_save_restore flatten_dict"),
            ("ray.air", "Checkpoint RunConfig session"),
            ("ray.train", "Checkpoint RunConfig report get_context"),
            ("ray.air.session", "report get_checkpoint"),
        ],
    )
    def test_bind_the_names(self, module: str, names: str) -> None:
        found = bound(f"from {module} import *")
        missing = [name for name in names.split() if name not in found and (module, name) != ("ray.air", "session")]
        assert not missing
        assert not any(isinstance(value, NotOffered) for value in found.values())

    def test_work_for_every_module(self) -> None:
        for module in table.MODULES:
            with contextlib.suppress(MissingLibraryError):
                bound(f"from {module} import *")


class TestStandIns:
    """A stand-in can be imported, compared and mentioned; whatever is done with it names it at once."""

    def make(self) -> Any:
        return bound("from ray.train.torch import TorchTrainer")["TorchTrainer"]

    def test_has_no_attributes(self) -> None:
        stand_in = self.make()
        assert not hasattr(stand_in, "func")
        assert getattr(stand_in, "total_seconds", None) is None
        with pytest.raises(NotSupportedError, match=r"TorchTrainer\.restore is not offered"):
            _ = stand_in.restore

    @pytest.mark.parametrize(
        "use",
        [
            lambda it: tune.Tuner(it),
            lambda it: tune.Tuner(train, param_space=it),
            lambda it: tune.Tuner(train, tune_config=it),
            lambda it: tune.run(it),
            lambda it: tune.with_resources(it, {"cpu": 1}),
            lambda it: tune.with_parameters(it, data=1),
            lambda it: tune.register_trainable("x", it),
            lambda it: tune.RunConfig(callbacks=[it]),
            lambda it: tune.RunConfig(stop=it),
            lambda it: tune.RunConfig(stop=[it]),
            lambda it: tune.RunConfig(storage_path=it),
            lambda it: tune.RunConfig(progress_reporter=it),
            lambda it: tune.RunConfig(checkpoint_config=it),
            lambda it: tune.TuneConfig(scheduler=it),
            lambda it: tune.TuneConfig(search_alg=it),
            lambda it: tune.TuneConfig(metric=it),
            lambda it: tune.TuneConfig(time_budget_s=it),
            lambda it: tune.TuneConfig(trial_name_creator=it),
            lambda it: tune.FailureConfig(max_failures=it),
            lambda it: tune.CheckpointConfig(num_to_keep=it),
        ],
    )
    def test_is_refused_by_name_wherever_it_is_given(self, use: Any) -> None:
        with pytest.raises(NotSupportedError, match=r"ray\.train\.torch\.TorchTrainer is not offered"):
            use(self.make())

    def test_may_be_part_of_annotations(self) -> None:
        names = bound(
            "from ray.data import Dataset\nx: Dataset | None = None\ny = Dataset | None\nz = None | Dataset"
        )
        assert "Dataset" in repr(names["y"])

    def test_of_an_exception_can_be_caught(self) -> None:
        error = bound("from ray.train import TrainerRestoreError")["TrainerRestoreError"]
        try:
            raise KeyError("x")
        except error:
            pytest.fail("it is another one")
        except KeyError:
            pass

    def test_of_a_module_is_refused_too(self) -> None:
        ray = importlib.import_module("ray")
        with pytest.raises(NotSupportedError, match=r"ray\.data"):
            tune.Tuner(ray.data)
        with pytest.raises(NotSupportedError, match=r"ray\.timeline is not offered"):
            ray.timeline()
        with pytest.raises(NotSupportedError, match=r"ray\.data\.read_csv"):
            ray.data.read_csv("x.csv")


def train(config: dict[str, Any]) -> None: ...


class TestSmallParts:
    def test_cloudpickle_is_cloudpickle(self) -> None:
        import cloudpickle

        assert bound("import ray.cloudpickle as p")["p"].dumps is cloudpickle.dumps
        assert bound("from ray import cloudpickle as p")["p"].loads is cloudpickle.loads

    def test_loggers_are_loggers(self) -> None:
        assert isinstance(bound("from ray import logger")["logger"], logging.Logger)
        assert isinstance(bound("from ray.tune.trainable.trainable import logger")["logger"], logging.Logger)

    def test_annotations_leave_things_as_they_are(self) -> None:
        names = bound(
            "from ray.util.annotations import PublicAPI, DeveloperAPI\n"
            "@PublicAPI(stability='beta')\ndef f(): return 1\n@DeveloperAPI\nclass C: x = 2"
        )
        assert (names["f"](), names["C"].x) == (1, 2)

    def test_levels_of_verbose_have_names(self) -> None:
        verbosity = bound("from ray.tune.utils.log import Verbosity as V")["V"]
        assert tune.RunConfig(verbose=verbosity.V2_TRIAL_NORM).verbose == 2
        assert bound("from ray.tune.experimental.output import AirVerbosity as V")["V"].SILENT == 0

    def test_spaces_are_parsed_and_filled_in(self) -> None:
        names = bound("from ray.tune.search.variant_generator import assign_value, parse_spec_vars")
        spec = {"a": 1, "b": {"c": tune.uniform(0, 1), "d": [2, tune.grid_search([3, 4])]}, "e": {}}
        constants, domains, grids = names["parse_spec_vars"](spec)
        assert constants == [(("a",), 1), (("b", "d", 0), 2)]
        assert [path for path, _ in domains] == [("b", "c")]
        assert [(path, grid.categories) for path, grid in grids] == [(("b", "d", 1), [3, 4])]
        names["assign_value"](spec, ("b", "d", 1), 4)
        assert spec["b"]["d"] == [2, 4]  # type: ignore[index]

    def test_a_message_is_logged_once(self) -> None:
        log_once = bound("from ray.util.debug import log_once")["log_once"]
        assert [log_once("of this test"), log_once("of this test")] == [True, False]

    def test_names_of_single_releases(self) -> None:
        names = bound(
            "from ray.runtime_context import get_runtime_context\n"
            "from ray.ml.config import RunConfig\n"
            "from ray.tune.analysis.experiment_analysis import NewExperimentAnalysis\n"
            "from ray.tune.logger import TFLogger\n"
            "from ray.tune.schedulers.resource_changing_scheduler import evenly_distribute_cpus_gpus"
        )
        assert names["RunConfig"] is tune.RunConfig
        assert names["NewExperimentAnalysis"] is tune.ExperimentAnalysis
        for module in ("tune", "tune.analysis", "tune.analysis.experiment_analysis"):
            assert "experiment_dir" in signature(bound(f"from ray.{module} import Analysis as A")["A"]).parameters
        assert names["get_runtime_context"]().get_job_id
        assert tune.schedulers.ResourceChangingScheduler(None, names["evenly_distribute_cpus_gpus"])
        with pytest.raises(NotSupportedError, match="MLflowLoggerCallback"):
            bound("from ray.tune.integration.mlflow import MLflowLogger as L")["L"]()

    def test_a_name_of_rllib_says_what_it_needs(self) -> None:
        with pytest.raises(InvalidInputError, match=r"'PPO'.*the algorithms of RLlib need Ray itself"):
            tune.run("PPO")

    def test_export_formats_are_checked(self) -> None:
        formats = bound("from ray.tune.experiment.trial import ExportFormat as E")["E"]
        given = [" H5", formats.MODEL]
        formats.validate(given)
        assert given == ["h5", "model"]
        with pytest.raises(InvalidInputError, match="unknown export format 'zip'"):
            formats.validate(["zip"])

    def test_resources_are_read_from_json(self) -> None:
        read = bound("from ray.tune.resources import json_to_resources as r")["r"]
        assert read('{"cpu": 2, "gpu": 1}').cpu == 2
        assert read("null") is None
        with pytest.raises(TypeError):
            read('{"cores": 2}')

    def test_numbers_are_distinguished_from_none(self) -> None:
        np = pytest.importorskip("numpy")
        util = importlib.import_module("ray.tune.utils.util")
        assert [util.is_nan(v) for v in (float("nan"), np.float32("nan"), 1.0, "x", None)] == [True] * 2 + [False] * 3
        assert [util.is_nan_or_inf(v) for v in (float("inf"), np.float64("-inf"), 0)] == [True, True, False]
        assert util.unflatten_list_dict({"a/0/b": 1, "a/1/b": 2, "c": 3}) == {"a": [{"b": 1}, {"b": 2}], "c": 3}

    def test_a_call_is_retried(self) -> None:
        util = importlib.import_module("ray.tune.utils.util")
        calls: list[int] = []

        def fails_twice() -> None:
            calls.append(1)
            if len(calls) < 3:
                raise OSError("busy")

        assert util.retry_fn(fails_twice, OSError, num_retries=3, sleep_time=0)
        assert len(calls) == 3
        calls.clear()
        assert not util.retry_fn(fails_twice, OSError, num_retries=2, sleep_time=0)


class TestScalingConfig:
    """It is the resources of a trial; Ray's trainers are not offered."""

    def test_is_the_sum_as_one_bundle(self) -> None:
        ScalingConfig = bound("from ray.air import ScalingConfig as S")["S"]  # noqa: N806
        given = ScalingConfig(trainer_resources={"CPU": 2}, num_workers=2, resources_per_worker={"CPU": 1, "GPU": 0})
        assert bound("from ray.train import ScalingConfig as S")["S"] is ScalingConfig
        assert resources_of(tune.with_resources(train, given)) == ({"cpu": 4.0}, None)
        assert given.total_resources == {"CPU": 4.0}
        assert given.as_placement_group_factory() == tune.PlacementGroupFactory([{"CPU": 4}])
        assert ScalingConfig(num_workers=2, use_gpu=True).bundles == [{"CPU": 1.0, "GPU": 2.0}]
        assert ScalingConfig().bundles == [{"CPU": 1.0}]

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"num_workers": "2"}, "must be a number of workers"),
            ({"use_gpu": True, "resources_per_worker": {"GPU": 0}}, "contradict each other"),
            ({"resources_per_worker": {"GPU": 1}}, "contradict each other"),
        ],
    )
    def test_what_cannot_be_is_refused(self, arguments: dict[str, Any], message: str) -> None:
        made = bound("from ray.train import ScalingConfig as S")["S"]
        with pytest.raises(InvalidInputError, match=message):
            made(**arguments)


def test_pretty_print_is_yaml() -> None:
    pretty_print = bound("from ray.tune.logger import pretty_print")["pretty_print"]
    result = {
        "loss": np.float32(0.5),
        "config": {"lr": 1},
        "a": None,
        "n": {"b": [1, 2]},
        "who": Path("x"),
        "left": 1,
    }
    assert pretty_print(result, {"left"}) == "loss: 0.5\nn:\n  b:\n  - 1\n  - 2\nwho: x\n"


class TestRegistry:
    def test_finds_trainables_as_classes(self) -> None:
        registry = importlib.import_module("ray.tune.registry")
        tune.register_trainable("imports_train", train)
        assert issubclass(registry.get_trainable_cls("imports_train"), tune.Trainable)
        assert registry.is_function_trainable("imports_train")
        registry.validate_trainable("imports_train")
        with pytest.raises(InvalidInputError, match="no Trainable is registered as 'imports_trian'"):
            registry.validate_trainable("imports_trian")
        assert registry._global_registry.contains(registry.TRAINABLE_CLASS, "imports_train")

    def test_gives_a_class_back_as_it_is(self) -> None:
        class Model(tune.Trainable):
            pass

        tune.register_trainable("imports_class", Model)
        assert importlib.import_module("ray.tune.registry").get_trainable_cls("imports_class") is Model

    def test_keeps_inputs_and_environments(self) -> None:
        registry = importlib.import_module("ray.tune.registry")
        registry.register_input("imports_reader", dict)
        assert registry.registry_contains_input("imports_reader")
        assert registry.registry_get_input("imports_reader") is dict
        tune.register_env("imports_env", dict)
        assert registry._global_registry.get(registry.ENV_CREATOR, "imports_env") is dict
        assert not registry._Registry(prefix="mine").contains(registry.RLLIB_INPUT, "imports_reader")

    @pytest.mark.parametrize("wrong", [5, object(), "a name", int])
    def test_refuses_other_types_as_type_errors(self, wrong: Any) -> None:
        with pytest.raises(TypeError):
            tune.register_trainable("imports_wrong", wrong)
        if not callable(wrong):
            with pytest.raises(TypeError):
                tune.register_env("imports_wrong", wrong)


class TestMockTrainable:
    def test_has_a_curve_and_restores(self, tmp_path: Path) -> None:
        cls = bound("from ray.tune.utils.mock_trainable import MyTrainableClass as c")["c"]
        trainable = cls({"width": 2, "height": 10, "mock_error": True})
        first = trainable.train()["episode_reward_mean"]
        assert 0 < first < 10
        saved = trainable.save(str(tmp_path / "c"))
        with pytest.raises(RuntimeError, match="on purpose"):
            trainable.train()
        trainable.restore(saved)
        assert trainable.train()["episode_reward_mean"] > first


class TestCallbackList:
    def test_calls_all_and_keeps_their_states(self, tmp_path: Path) -> None:
        callback_list = bound("from ray.tune.callback import CallbackList as c")["c"]

        class Counts(tune.Callback):
            starts = 0

            def on_trial_start(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
                self.starts += 1

            def get_state(self) -> dict[str, Any]:
                return {"starts": self.starts}

            def set_state(self, state: dict[str, Any]) -> None:
                self.starts = state["starts"]

        one, other = Counts(), Counts()
        both = callback_list([one, tune.Callback(), other])
        both.setup(stop=None)
        both.on_trial_start(iteration=1, trials=[], trial=None)
        assert (one.starts, other.starts) == (1, 1)
        assert not both.can_restore(str(tmp_path))
        with pytest.raises(TrialpodError, match="has no states of callbacks"):
            both.restore_from_dir(str(tmp_path))
        both.save_to_dir(str(tmp_path))
        one.starts = 5
        assert both.can_restore(str(tmp_path))
        both.restore_from_dir(str(tmp_path))
        assert one.starts == 1


class TestExamplesOfRay:
    @pytest.fixture(autouse=True)
    def _fresh(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in [each for each in sys.modules if each.startswith("ray.tune.examples")]:
            monkeypatch.delitem(sys.modules, name)

    def test_those_of_an_installed_ray_are_its_own(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        folder = tmp_path / "ray/tune/examples/parts"
        folder.mkdir(parents=True)
        (folder / "__init__.py").write_text("from ray import tune\nspace = {'x': tune.uniform(0, 1)}\n")
        (folder.parent / "mnist_own.py").write_text("from ray.tune.examples.parts import space\ndef train(): ...\n")
        monkeypatch.syspath_prepend(str(tmp_path))
        found = bound("from ray.tune.examples.mnist_own import train, space")
        assert found["train"].__module__ == "ray.tune.examples.mnist_own"
        assert type(found["space"]["x"]) is type(tune.uniform(0, 1))

    def test_others_travel_by_name_and_refuse_to_be_called(self) -> None:
        found = bound("from ray.tune.examples.mnist_pytorch import get_data_loaders")["get_data_loaders"]
        again = pickle.loads(cloudpickle.dumps(lambda: found()))
        with pytest.raises(NotSupportedError, match=r"ray\.tune\.examples.*examples of its own"):
            again()
