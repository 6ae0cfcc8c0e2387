"""`trialpod retry` of an experiment on this machine repeats the command that ran it."""

from __future__ import annotations

from pathlib import Path

import pytest

from trialpod.errors import InvalidInputError
from trialpod.storage.lock import LockOwner
from trialpod_operator.commands.retry import retry_arguments
from trialpod_operator.view.reading import Activity

FOLDER = Path("/home/ada/tune/trialpod-results/exp")


def ran(*arguments: str, directory: str = str(FOLDER)) -> LockOwner:
    return LockOwner(1, "here", 0.0, " ".join(arguments), list(arguments), "/home/ada/tune", directory)


class TestArguments:
    def test_repeats_the_command(self) -> None:
        holder = ran("/usr/bin/python", "/venv/bin/trialpod", "-v", "run", "exp.yaml", "--set", "spec.numSamples=3")
        assert retry_arguments(holder, FOLDER, [], from_scratch=False) == [
            "-v", "run", "exp.yaml", "--set", "spec.numSamples=3", "--retry-failed",
        ]  # fmt: skip

    def test_replaces_what_an_earlier_retry_asked_for(self) -> None:
        words = ("trialpod", "run", "--retry-trial", "a_1", "--from-scratch", "script.py", "--fresh", "--", "--fresh")
        found = retry_arguments(ran(*words), FOLDER, ["a_2", "a_3"], from_scratch=False)
        assert found == ["run", "script.py", "--retry-trial", "a_2", "--retry-trial", "a_3", "--", "--fresh"]
        assert retry_arguments(ran(*words), FOLDER, [], from_scratch=True)[2:4] == [
            "--retry-failed",
            "--from-scratch",
        ]

    def test_replaces_an_earlier_retry_written_with_an_equals_sign(self) -> None:
        holder = ran("trialpod", "run", "--retry-trial=a_1", "exp.yaml", "--set=spec.numSamples=3")
        found = retry_arguments(holder, FOLDER, ["a_2"], from_scratch=False)
        assert found == ["run", "exp.yaml", "--set=spec.numSamples=3", "--retry-trial", "a_2"]

    @pytest.mark.parametrize(
        ("holder", "message"),
        [
            (None, "is not recorded"),
            (ran("python", "script.py"), "resume_errored=True"),
            (ran("trialpod", "run", "-"), "standard input"),
            (ran("trialpod", "run", "e.yaml", directory="/home/ada/tune/trialpod-results/other"), "was moved since"),
        ],
    )
    def test_says_what_else_to_do(self, holder: LockOwner | None, message: str) -> None:
        with pytest.raises(InvalidInputError, match=message):
            retry_arguments(holder, FOLDER, [], from_scratch=False)

    def test_finds_the_folder_behind_a_symlink(self, tmp_path: Path) -> None:
        (tmp_path / "disk" / "exp").mkdir(parents=True)
        (tmp_path / "results").symlink_to("disk")
        real, linked = tmp_path / "disk" / "exp", tmp_path / "results" / "exp"
        for recorded, named in ((real, linked), (linked, real)):
            holder = ran("trialpod", "run", "exp.yaml", directory=str(recorded))
            assert retry_arguments(holder, named, [], from_scratch=False) == ["run", "exp.yaml", "--retry-failed"]


class TestCommand:
    """The command that `why`, `stop` and `resume` name."""

    def test_leaves_out_the_options_of_one_run(self) -> None:
        holder = ran("/venv/bin/trialpod", "run", "my script.py", "--fresh", "--name", "b")
        activity = Activity(holder, runs=False)
        assert activity.command == "trialpod run 'my script.py' --name b"
        assert activity.retry_command == "trialpod run 'my script.py' --name b --retry-failed"

    def test_leaves_a_program_and_its_arguments_alone(self) -> None:
        holder = ran("/venv/bin/trialpod", "run", "--metric", "loss", "--", "./t", "--lr={lr:uniform:0:1}", "--fresh")
        activity = Activity(holder, runs=False)
        assert activity.command == "trialpod run --metric loss -- ./t '--lr={lr:uniform:0:1}' --fresh"
        assert activity.retry_command.startswith("trialpod run --metric loss --retry-failed -- ")

    def test_of_a_script_run_by_python(self) -> None:
        activity = Activity(ran("python", "script.py"), runs=False)
        assert (activity.command, activity.retry_command) == ("python script.py", "")
