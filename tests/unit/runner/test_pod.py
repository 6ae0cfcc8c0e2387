from __future__ import annotations

import os
from pathlib import Path

import pytest

from trialpod.protocol.messages import AttemptEnd
from trialpod.runner import pod
from trialpod.runner.pod import TerminationMessage


@pytest.fixture
def container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The environment of a pod, in which all is well."""
    for name in ("token", "ca.crt", "message"):
        (tmp_path / name).write_text("x")
    values = {
        "TRIALPOD_ADDRESS": "https://trialpod.svc:8443",
        "TRIALPOD_EXPERIMENT": "team/digits",
        "TRIALPOD_RUNNER": "d75de_00001/1",
        "TRIALPOD_TOKEN_FILE": str(tmp_path / "token"),
        "TRIALPOD_CA_FILE": str(tmp_path / "ca.crt"),
        "TRIALPOD_SCRATCH_DIR": str(tmp_path / "work"),
        "TRIALPOD_TERMINATION_LOG": str(tmp_path / "message"),
        "TMPDIR": str(tmp_path / "work" / "tmp"),
    }
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    return tmp_path


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"TRIALPOD_RUNNER": None}, "TRIALPOD_RUNNER is not set; the operator sets them in the pods of trials"),
        (
            {"TRIALPOD_ADDRESS": None, "TRIALPOD_EXPERIMENT": ""},
            "TRIALPOD_ADDRESS, TRIALPOD_EXPERIMENT are not set",
        ),
        ({"TRIALPOD_ADDRESS": "trialpod.svc:8443"}, "TRIALPOD_ADDRESS is 'trialpod.svc:8443'; it has to be like"),
        ({"TRIALPOD_TOKEN_FILE": None}, "TRIALPOD_TOKEN_FILE is not set; a trial's pod proves its identity"),
        ({"TRIALPOD_CA_FILE": "/none/ca.crt"}, "/none/ca.crt (TRIALPOD_CA_FILE) does not exist; the volume"),
        ({"TMPDIR": "/proc/none"}, "/proc/none cannot be written by user"),
    ],
)
def test_a_container_that_cannot_run_says_so_in_one_sentence(
    container: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    changes: dict[str, str | None],
    words: str,
) -> None:
    for name, value in changes.items():
        if value is None:
            monkeypatch.delenv(name)
        else:
            monkeypatch.setenv(name, value)
    assert pod.main() == 2
    said = capsys.readouterr().err
    assert said.startswith("trialpod: ")
    assert words in said
    assert said.count("\n") == 1
    assert words in (container / "message").read_text()


def test_termination_message_is_the_last_attempts_error(tmp_path: Path) -> None:
    file = tmp_path / "message"
    file.touch()
    message = TerminationMessage(str(file))
    message.ended(AttemptEnd(cause="failed", error="ValueError: bad (train.py:3, in train)", traceback="..."))
    assert file.read_text() == "ValueError: bad (train.py:3, in train)"
    message.ended(AttemptEnd(cause="completed"))
    assert file.read_text() == ""


def test_a_long_termination_message_is_cut_between_characters(tmp_path: Path) -> None:
    file = tmp_path / "message"
    file.touch()
    TerminationMessage(str(file)).write("ä" * 3000)
    assert len(file.read_bytes()) <= 4096
    assert file.read_text() == "ä" * 2046 + "..."


def test_a_termination_message_may_be_no_unicode(tmp_path: Path) -> None:
    file = tmp_path / "message"
    file.touch()
    TerminationMessage(str(file)).write("no caf\udce9")
    assert file.read_text() == "no caf\\udce9"


def test_without_the_file_nothing_is_said_and_none_is_made(tmp_path: Path) -> None:
    TerminationMessage(str(tmp_path / "none")).write("x")
    TerminationMessage(str(tmp_path)).write("x")
    assert os.listdir(tmp_path) == []
