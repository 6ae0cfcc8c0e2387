"""What parameters and metrics become on the wire, and what the operator sees of them."""

import math
from pathlib import Path
from typing import Any

import pytest

from trialpod.protocol.values import OpaqueValue, metrics_encoder, opaque_decoder, params_decoder, params_encoder


class Estimator:
    def __init__(self, depth: int) -> None:
        self.depth = depth


class Scalar(float):
    """As NumPy's float64: a subclass of float."""


def test_plain_data_arrives_as_it_was_with_nan_and_infinities() -> None:
    params: dict[str, Any] = {"a": 1, "b": [1.5, None, True], "c": {"d": "x"}, "e": b"raw", "f": math.inf}
    assert params_decoder.decode(params_encoder.encode(params)) == params
    assert math.isnan(opaque_decoder.decode(metrics_encoder.encode({"loss": math.nan}))["loss"])


def test_subclasses_of_plain_types_and_paths_become_plain() -> None:
    decoded = params_decoder.decode(params_encoder.encode({"lr": Scalar(0.5), "where": Path("a/b"), "t": (1, 2)}))
    assert decoded == {"lr": 0.5, "where": "a/b", "t": [1, 2]}
    assert type(decoded["lr"]) is float


def test_the_operator_passes_on_what_is_no_plain_data_without_opening_it() -> None:
    encoded = params_encoder.encode({"model": Estimator(3), "kind": Estimator})
    seen = opaque_decoder.decode(encoded)
    assert repr(seen) == "{'model': <Estimator>, 'kind': Estimator}"
    assert isinstance(seen["model"], OpaqueValue)
    assert params_encoder.encode(seen) == encoded
    opened = params_decoder.decode(encoded)
    assert opened["model"].depth == 3
    assert opened["kind"] is Estimator


def test_a_metric_that_is_no_plain_data_is_refused() -> None:
    with pytest.raises(TypeError, match="Estimator is not plain data"):
        metrics_encoder.encode({"model": Estimator(1)})


def test_parameters_keep_integers_of_any_size() -> None:
    config = {"big": 2**70, "nested": [{"small": -(2**63) - 1}], "plain": 2**64 - 1}
    assert params_decoder.decode(params_encoder.encode(config)) == config
    shown = opaque_decoder.decode(params_encoder.encode(config))
    assert repr(shown["big"]) == str(2**70)
    assert params_encoder.encode(shown) == params_encoder.encode(config)
