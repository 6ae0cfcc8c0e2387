"""`trialpod retry` of an experiment on this machine repeats the command that ran it."""

from __future__ import annotations

from pathlib import Path

import pytest

from trialpod.errors import InvalidInputError
from trialpod.storage.lock import LockHolder
from trialpod_operator.commands.retry import retry_arguments

FOLDER = Path("/home/ada/tune/trialpod-results/exp")


def ran(*arguments: str, directory: str = str(FOLDER)) -> LockHolder:
    return LockHolder(1, "here", 0.0, " ".join(arguments), list(arguments), "/home/ada/tune", directory)


class TestArguments:
    def test_repeats_the_command(self) -> None:
        holder = ran("/usr/bin/python", "/venv/bin/trialpod", "-v", "run", "exp.yaml", "--set", "spec.numSamples=3")
        assert retry_arguments(holder, FOLDER, [], from_scratch=False) == [
            "-v", "run", "--retry-failed", "exp.yaml", "--set", "spec.numSamples=3",
        ]  # fmt: skip

    def test_replaces_what_an_earlier_retry_asked_for(self) -> None:
        words = ("trialpod", "run", "--retry-trial", "a_1", "--from-scratch", "script.py", "--fresh", "--", "--fresh")
        found = retry_arguments(ran(*words), FOLDER, ["a_2", "a_3"], from_scratch=False)
        assert found == ["run", "--retry-trial", "a_2", "--retry-trial", "a_3", "script.py", "--", "--fresh"]
        assert retry_arguments(ran(*words), FOLDER, [], from_scratch=True)[1:3] == [
            "--retry-failed",
            "--from-scratch",
        ]

    @pytest.mark.parametrize(
        ("holder", "message"),
        [
            (None, "nobody knows how"),
            (ran("python", "script.py"), "resume_errored=True"),
            (ran("trialpod", "run", "-"), "standard input"),
            (ran("trialpod", "run", "e.yaml", directory="/home/ada/tune/trialpod-results/other"), "was moved since"),
        ],
    )
    def test_says_what_else_to_do(self, holder: LockHolder | None, message: str) -> None:
        with pytest.raises(InvalidInputError, match=message):
            retry_arguments(holder, FOLDER, [], from_scratch=False)
