from __future__ import annotations

import logging
import pickle
import threading
from typing import Any

import pytest

from trialpod.errors import InvalidInputError, TrialpodError
from trialpod.tune.callback import Callback
from trialpod.tune.callback_list import CallbackError, CallbackList, also_trialpod_error
from trialpod.tune.logger import CSVLoggerCallback, JsonLoggerCallback, LoggerCallback


class Recorder(Callback):
    def __init__(self, seen: list[Any], name: str = "") -> None:
        self.seen, self.name = seen, name

    def on_trial_result(self, iteration: int, trials: Any, trial: Any, result: dict[str, Any], **info: Any) -> None:
        self.seen.append((self.name, iteration, dict(result)))
        result["changed by"] = self.name

    def on_experiment_end(self, trials: Any, **info: Any) -> None:
        self.seen.append((self.name, "end"))

    def get_state(self) -> dict[str, Any]:
        return {"seen": len(self.seen)}

    def set_state(self, state: dict[str, Any]) -> None:
        self.seen.append((self.name, state))


class Broken(Callback):
    def on_experiment_end(self, trials: Any, **info: Any) -> None:
        raise KeyError("gone")


def test_order_and_copies_of_results() -> None:
    seen: list[Any] = []
    hooks = CallbackList([Recorder(seen, "a"), Recorder(seen, "b")])
    hooks.result({"loss": 1}, iteration=3, trials=[], trial=None)
    assert seen == [("a", 3, {"loss": 1}), ("b", 3, {"loss": 1})]


def test_a_hook_that_nobody_overrides_is_not_wanted() -> None:
    hooks = CallbackList([Recorder([])])
    assert hooks.wants("on_trial_result")
    assert not hooks.wants("on_step_begin")
    assert not CallbackList([CSVLoggerCallback()]).wants("on_step_end")


def test_an_exception_names_the_callback_and_the_hook() -> None:
    class Bad(Callback):
        def on_trial_start(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
            raise ValueError("no disk")

    with pytest.raises(
        CallbackError, match=r"callback Bad raised ValueError in on_trial_start\(\): no disk"
    ) as caught:
        CallbackList([Bad()]).call("on_trial_start", iteration=1, trials=[], trial=None)
    assert isinstance(caught.value.__cause__, ValueError)


def test_at_the_end_every_callback_is_called_although_one_raises() -> None:
    seen: list[Any] = []
    with pytest.raises(CallbackError, match="Broken raised KeyError"):
        CallbackList([Broken(), Recorder(seen, "after")]).end(trials=[])
    assert seen == [("after", "end")]


def test_states_return_by_place_and_class() -> None:
    seen: list[Any] = []
    states = CallbackList([Callback(), Recorder(seen, "a")]).get_state()
    assert list(states.values()) == [{"seen": 0}]
    CallbackList([Callback(), Recorder(seen, "b")]).set_state(states)
    CallbackList([Recorder(seen, "c")]).set_state(states)
    assert seen == [("b", {"seen": 0})]


class TestPickledState:
    def test_has_what_each_callback_wants(self) -> None:
        assert CallbackList([Callback()]).pickled_state() == b""
        assert pickle.loads(CallbackList([Callback(), Recorder([])]).pickled_state()) == {"1:Recorder": {"seen": 0}}

    def test_what_cannot_be_pickled_names_the_callback(self) -> None:
        class Locked(Callback):
            def get_state(self) -> dict[str, Any]:
                return {"lock": threading.Lock()}

        with pytest.raises(CallbackError, match=r"get_state\(\) of the callback Locked .*'_thread.lock'") as caught:
            CallbackList([Recorder([]), Locked()]).pickled_state()
        assert isinstance(caught.value.original(), TypeError)


def test_a_slow_hook_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    times = iter([0.0, 2.0, 10.0, 12.0])
    hooks = CallbackList([Recorder([])], clock=lambda: next(times))
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            hooks.result({}, iteration=1, trials=[], trial=None)
    assert caplog.text.count("Recorder.on_trial_result() took 2.0 s") == 1


def test_what_is_no_callback_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="not function"):
        CallbackList([lambda: None])  # type: ignore[list-item]


def test_a_logger_callback_follows_a_trial_from_start_to_end() -> None:
    seen: list[Any] = []

    class Log(LoggerCallback):
        def log_trial_start(self, trial: Any) -> None:
            seen.append(("start", trial))

        def log_trial_restore(self, trial: Any) -> None:
            seen.append(("restore", trial))

        def log_trial_save(self, trial: Any) -> None:
            seen.append(("save", trial))

        def log_trial_result(self, iteration: int, trial: Any, result: dict[str, Any]) -> None:
            seen.append((iteration, trial, result))

        def log_trial_end(self, trial: Any, failed: bool = False) -> None:
            seen.append(("end", trial, failed))

    hooks = CallbackList([Log(), JsonLoggerCallback()])
    hooks.call("setup")
    about: dict[str, Any] = {"iteration": 1, "trials": [], "trial": "t"}
    for hook in ("on_trial_start", "on_trial_restore"):
        hooks.call(hook, **about)
    hooks.result({"loss": 1}, **about)
    for hook in ("on_trial_save", "on_trial_complete", "on_trial_error"):
        hooks.call(hook, **about)
    assert seen == [
        ("start", "t"),
        ("restore", "t"),
        (1, "t", {"loss": 1}),
        ("save", "t"),
        ("end", "t", False),
        ("end", "t", True),
    ]


class TestExceptionUnderRaysName:
    class OwnError(Exception):
        def __init__(self, code: int, *, detail: str) -> None:
            super().__init__(f"code {code}")
            self.code, self.detail = code, detail

    @pytest.mark.parametrize(
        "error", [ValueError("no"), FileNotFoundError(2, "missing", "f"), KeyError("k"), OwnError(3, detail="d")]
    )
    def test_is_of_its_class_and_a_tune_error(self, error: Exception) -> None:
        error.__cause__ = KeyError("why")
        made = also_trialpod_error(error)
        assert isinstance(made, type(error))
        assert isinstance(made, TrialpodError)
        assert (str(made), made.args, vars(made)) == (str(error), error.args, vars(error))
        assert made.__cause__ is error.__cause__
        assert type(made).__name__ == type(error).__name__

    def test_one_that_allows_no_other_class_is_kept(self) -> None:
        class AloneError(Exception):
            def __init_subclass__(cls, **options: object) -> None:
                raise TypeError("no subclasses")

        error = AloneError("x")
        assert also_trialpod_error(error) is error

    def test_only_under_that_name(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for installed in (False, True):
            monkeypatch.setattr("trialpod.compat.ray.installed", lambda installed=installed: installed)
            wrapped = CallbackError("the callback X raised OSError")
            wrapped.__cause__ = OSError("disk")
            raised = wrapped.original()
            assert isinstance(raised, OSError)
            assert isinstance(raised, TrialpodError) is installed
            assert raised.__notes__ == ["the callback X raised OSError"]


class TestSetup:
    def test_gives_the_arguments_that_are_named(self) -> None:
        seen: list[Any] = []

        class Nothing(Callback):
            def setup(self) -> None:  # type: ignore[override]
                seen.append("nothing")

        class One(Callback):
            def setup(self, stop: Any = None) -> None:  # type: ignore[override]
                seen.append(stop)

        class All(Callback):
            def setup(self, stop: Any = None, **info: Any) -> None:
                seen.append(info)

        CallbackList([Nothing(), One(), All()]).setup(stop={"n": 1}, time_budget_s=5.0)
        assert seen == ["nothing", {"n": 1}, {"time_budget_s": 5.0}]
