from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

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
            (lambda **more: FailureConfig(xyz=3, **more), "there are: max_failures, fail_fast"),
        ],
    )
    def test_the_nearest_is_named(self, make: Callable[..., Any], message: str) -> None:
        with pytest.raises(UnknownArgumentError, match=message):
            make()
        with pytest.raises(TypeError):
            make()

    def test_signatures_are_kept(self) -> None:
        assert "num_samples" in inspect.signature(TuneConfig).parameters
        assert TuneConfig("max", "loss").metric == "loss"
