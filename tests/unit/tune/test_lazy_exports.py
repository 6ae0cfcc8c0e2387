from __future__ import annotations

import subprocess
import sys

import pytest

from trialpod import tune


def test_importing_tune_imports_nothing_else_of_weight() -> None:
    code = "import sys; before = set(sys.modules); from trialpod import tune; print(*set(sys.modules) - before)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(ran.stdout.split()) <= {"__future__", "trialpod", "trialpod.tune"}


def test_every_name_that_is_promised_is_there() -> None:
    for name in tune.__all__:
        assert getattr(tune, name) is not None
    assert set(tune.__all__) <= set(dir(tune))


def test_functions_are_not_hidden_by_modules_of_their_name() -> None:
    code = (
        "from trialpod import tune; import trialpod.tune.tuner; "
        "print([n for n in tune.__all__ if n[0].islower() and n not in tune._MODULES "
        "and not callable(getattr(tune, n))])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "[]\n"


def test_an_unknown_name_suggests_the_nearest() -> None:
    with pytest.raises(AttributeError, match="no attribute 'unifrom'; did you mean 'uniform'"):
        tune.unifrom  # noqa: B018
    assert not hasattr(tune, "_private")
