from __future__ import annotations

import io
import sys

import pytest

from trialpod.runner.streams import flush, write_stderr


class Tee:
    """A stream of the user's, without `flush`."""

    def __init__(self, error: Exception | None = None) -> None:
        self.text = ""
        self.error = error

    def write(self, text: str) -> None:
        if self.error is not None:
            raise self.error
        self.text += text


@pytest.mark.parametrize("name", ["stdout", "stderr"])
def test_a_stream_without_flush_does_no_harm(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert flush()
    monkeypatch.setattr(sys, name, Tee())
    assert not flush()


def test_stderr_of_the_user_gets_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    tee = Tee()
    monkeypatch.setattr(sys, "stderr", tee)
    write_stderr("why it failed")
    assert tee.text == "why it failed"


def test_stderr_that_raises_does_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", Tee(RuntimeError("mine")))
    write_stderr("why it failed")
