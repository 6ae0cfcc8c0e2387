from __future__ import annotations

import functools
from typing import Any

import pytest

from trialpod.errors import TrainableError
from trialpod.runner.function_runner import check_signature


class Callable:
    def __call__(self, config: dict[str, Any]) -> None: ...

    def method(self, config: dict[str, Any]) -> None: ...

    def two(self, a: int, b: int) -> None: ...


def takes_keyword(config: dict[str, Any], *, data: int) -> None: ...


@pytest.mark.parametrize(
    "function",
    [
        lambda config: None,
        lambda config, checkpoint_dir=None: None,
        lambda *args: None,
        lambda config, *, x=1: None,
        functools.partial(takes_keyword, data=1),
        functools.partial(lambda a, config: None, 1),
        Callable(),
        Callable().method,
        dict,
    ],
)
def test_callable_with_the_config_alone_is_accepted(function: Any) -> None:
    check_signature(function)


@pytest.mark.parametrize(
    "function",
    [lambda: None, lambda a, b: None, takes_keyword, functools.partial(takes_keyword), Callable().two],
)
def test_callable_with_other_arguments_is_refused_with_them(function: Any) -> None:
    with pytest.raises(TrainableError, match="cannot be tuned: the function is called with one positional argument"):
        check_signature(function)


def test_a_coroutine_function_is_refused_with_the_remedy() -> None:
    async def train(config: dict[str, Any]) -> None: ...

    with pytest.raises(TrainableError, match=r"asyncio.run"):
        check_signature(train)
