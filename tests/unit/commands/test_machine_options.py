"""What `trialpod run` takes as options."""

from __future__ import annotations

import argparse

import pytest

from trialpod_operator.commands.run import configure


def parsed(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    configure(parser)
    return parser.parse_args(words)


class TestAmounts:
    def test_are_numbers_of_at_least_0(self) -> None:
        found = parsed("--cpus", "0.5", "--gpus", "0")
        assert (found.cpus, found.gpus) == (0.5, 0)

    @pytest.mark.parametrize("option", ["--cpus", "--gpus"])
    @pytest.mark.parametrize("text", ["-1", "nan", "inf", "-inf", "many", ""])
    def test_others_are_refused(self, option: str, text: str, capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SystemExit):
            parsed(f"{option}={text}")
        assert "number of at least 0" in capsys.readouterr().err
