from __future__ import annotations

import importlib
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import cloudpickle
import pytest

from trialpod import variables
from trialpod.compat import ray as alias
from trialpod.compat.activation import activate
from trialpod.compat.ray import table
from trialpod.errors import InvalidInputError, NotSupportedError


@pytest.fixture
def _alias(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv(variables.COMPAT, raising=False)
    alias.install(replace=True)
    yield
    alias.uninstall()


@pytest.mark.usefixtures("_alias")
def test_modules_and_names_are_where_their_users_look_for_them() -> None:
    code = """
import ray
import ray.tune.schedulers as schedulers
from ray import air, train, tune
from ray.air import session
from ray.air.config import CheckpointConfig
from ray.train import Checkpoint
from ray.tune.schedulers.pbt import PopulationBasedTraining
from ray.tune.search import ConcurrencyLimiter
from ray.tune.search.optuna import OptunaSearch
from ray.tune.stopper import TrialPlateauStopper
from ray.tune.suggest.basic_variant import BasicVariantGenerator
from ray.tune.utils import validate_save_restore
from ray.tune.trainable import wrap_function
"""
    names: dict[str, object] = {}
    exec(code, names)
    from trialpod import tune
    from trialpod.tune.schedulers import ASHAScheduler

    ray = importlib.import_module("ray")
    assert ray.tune.Tuner is tune.Tuner
    assert ray.tune.schedulers.ASHAScheduler is ASHAScheduler
    assert ray.train.report is ray.air.session.report is tune.report
    assert ray.tune.result.DONE == "done"
    assert ray.__version__.endswith("+trialpod")
    assert "Tuner" in dir(ray.tune)


@pytest.mark.usefixtures("_alias")
@pytest.mark.parametrize("name", sorted(table.MODULES))
def test_every_module_in_the_table_can_be_imported(name: str) -> None:
    module = importlib.import_module(name)
    assert module.__name__ == name
    assert isinstance(dir(module), list)


@pytest.mark.usefixtures("_alias")
def test_what_has_no_counterpart_says_so_when_it_is_used() -> None:
    from ray.rllib.algorithms.ppo import PPO  # type: ignore[import-not-found]
    from ray.train import BackendConfig  # type: ignore[import-not-found]
    from ray.train.torch import TorchTrainer  # type: ignore[import-not-found]

    for use in (BackendConfig, TorchTrainer, PPO, lambda **_: PPO.from_checkpoint):
        with pytest.raises(NotSupportedError, match="is not offered by trialpod; "):
            use(num_workers=2)
    with pytest.raises(NotImplementedError, match=r"ray\.train\.torch\.TorchTrainer"):
        type("Mine", (), {}) and exec("class Mine(T): pass", {"T": TorchTrainer})
    assert not isinstance(5, TorchTrainer)
    assert pickle.loads(cloudpickle.dumps(TorchTrainer)).__name__ == "TorchTrainer"


@pytest.mark.usefixtures("_alias")
def test_an_unknown_name_or_module_suggests_the_nearest() -> None:
    tune = importlib.import_module("ray.tune")
    with pytest.raises(AttributeError, match="did you mean 'Tuner'"):
        _ = tune.Tunner
    with pytest.raises(ModuleNotFoundError, match=r"did you mean 'ray\.tune\.schedulers'\? docs/"):
        importlib.import_module("ray.tune.schedulerz")
    assert not hasattr(tune, "__wrapped__")


@pytest.mark.usefixtures("_alias")
def test_a_function_that_uses_the_alias_travels_by_its_name() -> None:
    names: dict[str, object] = {"__name__": "__main__"}
    exec("import ray\nfrom ray import tune\ndef train(config):\n    return ray.__version__, tune.__name__", names)
    data = cloudpickle.dumps(names["train"])
    program = (
        "import pickle, sys; from trialpod.compat.activation import activate; activate('ray!'); "
        "print(pickle.load(sys.stdin.buffer)({}))"
    )
    ran = subprocess.run([sys.executable, "-c", program], input=data, capture_output=True, check=True)
    assert ran.stdout.decode().strip() == str((table.VERSION, "ray.tune"))


@pytest.mark.usefixtures("_alias")
@pytest.mark.parametrize(
    ("statement", "guess"),
    [
        ("from ray.train import ScalingConfg", "ray.train.ScalingConfig"),
        ("from ray.train import Chekpoint", "ray.train.Checkpoint"),
        ("from ray.air import RunConfg", "ray.air.RunConfig"),
        ("from ray.air.session import reprot", "ray.air.session.report"),
        ("from ray.tune import Tunner", "ray.tune.Tuner"),
        ("from ray.tune.logger import JsonLoger", "ray.tune.logger.JsonLogger"),
        ("import ray.train.torhc", "ray.train.torch"),
        ("from ray.util import ActorPol", "ray.util.ActorPool"),
    ],
)
def test_a_misspelt_name_is_an_import_error_with_the_nearest(statement: str, guess: str) -> None:
    with pytest.raises(ImportError, match=f"did you mean '{guess}'"):
        exec(statement, {})


def test_install_imports_nothing_of_tune() -> None:
    program = (
        "import sys; from trialpod.compat.ray import install, uninstall; install(replace=True); import ray.tune; "
        "print('trialpod.tune' in sys.modules); uninstall(); "
        "print([n for n in sys.modules if n.split('.')[0] == 'ray'])"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout.split("\n")[:2] == ["False", "[]"]


def test_a_real_ray_is_hidden_only_when_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "__init__.py").write_text("real = True\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(InvalidInputError, match="a real Ray is installed"):
        alias.install()
    assert importlib.import_module("ray").real
    try:
        alias.install(replace=True)
        assert not hasattr(importlib.import_module("ray"), "real")
    finally:
        alias.uninstall()
    assert importlib.import_module("ray").real
    del sys.modules["ray"]


def test_a_folder_called_ray_is_no_ray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ray").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    try:
        alias.install()
        assert alias.installed()
    finally:
        alias.uninstall()


def test_the_variable_names_what_to_install() -> None:
    activate("")
    assert not alias.installed()
    with pytest.raises(InvalidInputError, match="'ray', or 'ray!'"):
        activate("rai")
