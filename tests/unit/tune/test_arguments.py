from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

from trialpod.errors import InvalidInputError
from trialpod.tune import CheckpointConfig, FailureConfig, RunConfig, SyncConfig, TuneConfig, Tuner
from trialpod.tune.arguments import UnknownArgumentError


class TestMisspeltArguments:
    @pytest.mark.parametrize(
        ("make", "message"),
        [
            (
                lambda **more: TuneConfig(num_sample=3, **more),
                "has no argument 'num_sample'; did you mean 'num_samples'",
            ),
            (lambda **more: RunConfig(storage_pth="x", **more), "did you mean 'storage_path'"),
            (lambda **more: CheckpointConfig(num_to_kep=3, **more), "did you mean 'num_to_keep'"),
            (lambda **more: FailureConfig(max_failure=3, **more), "did you mean 'max_failures'"),
            (lambda **more: SyncConfig(sync_perod=3, **more), "did you mean 'sync_period'"),
            (lambda **more: Tuner(lambda config: None, param_spac={}, **more), "did you mean 'param_space'"),
            (lambda **more: Tuner(lambda config: None, xyz={}, **more), "run_config, backend$"),
            (lambda **more: FailureConfig(xyz=3, **more), "there are: max_failures, fail_fast"),
        ],
    )
    def test_the_nearest_is_named(self, make: Callable[..., Any], message: str) -> None:
        with pytest.raises(UnknownArgumentError, match=message):
            make()
        with pytest.raises(TypeError):
            make()

    def test_fields_that_a_library_sets_by_name(self) -> None:
        """As AutoGluon gives them to Ray's Tuner."""
        given = TuneConfig(num_samples=2)
        tuner = Tuner(
            lambda config: None,
            tune_config=given,
            _tuner_kwargs={"trial_dirname_creator": str, "num_samples": 3, "verbose": 0},
        )
        assert tuner.tune_config.trial_dirname_creator is str
        assert (tuner.tune_config.num_samples, given.num_samples, tuner.run_config.verbose) == (3, 2, 0)
        with pytest.raises(UnknownArgumentError, match="did you mean 'trial_name_creator'"):
            Tuner(lambda config: None, _tuner_kwargs={"trial_name_creatr": str})
        with pytest.raises(InvalidInputError, match="num_samples"):
            Tuner(lambda config: None, _tuner_kwargs={"num_samples": "many"})

    def test_signatures_are_kept(self) -> None:
        assert "num_samples" in inspect.signature(TuneConfig).parameters
        assert TuneConfig("max", "loss").metric == "loss"
