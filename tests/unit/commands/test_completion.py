from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from trialpod.cli.main import built_in_names
from trialpod_operator.commands.completion import SHELLS, script, usages


@pytest.fixture(scope="module")
def bash_script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("completion") / "trialpod.bash"
    path.write_text(script("bash"))
    return path


class TestBash:
    """The script is loaded into a real shell, which is asked what it offers."""

    def offered(self, bash_script: Path, folder: Path, *words: str) -> list[str]:
        code = (
            f'source "{bash_script}"; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _trialpod; '
            'printf "%s\\n" "${COMPREPLY[@]}"'
        )
        done = subprocess.run(
            ["bash", "--norc", "-c", code, "bash", "trialpod", *words],
            cwd=folder, capture_output=True, text=True, check=True, timeout=30,
        )  # fmt: skip
        assert done.stderr == ""
        return done.stdout.split("\n")[:-1]

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        (tmp_path / "trialpod-results" / "climb the hill").mkdir(parents=True)
        (tmp_path / "cli.yaml").touch()
        return tmp_path

    @pytest.mark.parametrize(
        ("words", "expected"),
        [
            (["sta"], ["status"]),
            (["run", "--max"], ["--max-concurrent"]),
            (["results", "-o", "c"], ["csv"]),
            (["status", "cl"], ["cli.yaml", "climb the hill"]),
            (["validate", "cl"], ["cli.yaml"]),
            (["run", "--storage", "trial"], ["trialpod-results"]),
            (["help", "val"], ["validate"]),
            (["completion", "--h"], ["--help"]),
        ],
    )
    def test_offers(self, bash_script: Path, folder: Path, words: list[str], expected: list[str]) -> None:
        assert self.offered(bash_script, folder, *words) == expected


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed here")
class TestFish:
    @pytest.mark.parametrize(
        ("line", "expected"),
        [
            ("trialpod sta", {"status"}),
            ("trialpod run --max", {"--max-concurrent"}),
            ("trialpod results -o c", {"csv"}),
            ("trialpod status climb", {"climb the hill"}),
            ("trialpod help val", {"validate"}),
        ],
    )
    def test_offers(self, tmp_path: Path, line: str, expected: set[str]) -> None:
        (tmp_path / "trialpod-results" / "climb the hill").mkdir(parents=True)
        (tmp_path / "trialpod.fish").write_text(script("fish"))
        code = f"source trialpod.fish; complete -C '{line}'"
        done = subprocess.run(
            ["fish", "--no-config", "-c", code],
            cwd=tmp_path, env={**os.environ, "HOME": str(tmp_path)}, capture_output=True, text=True, timeout=30,
        )  # fmt: skip
        assert done.stderr == ""
        assert {offer.partition("\t")[0] for offer in done.stdout.splitlines()} == expected


class TestScripts:
    @pytest.mark.parametrize("shell", SHELLS)
    def test_name_every_command_and_option(self, shell: str) -> None:
        text = script(shell)
        for usage in usages():
            assert usage.name in text
        assert ("-l max-concurrent" if shell == "fish" else "--max-concurrent") in text

    @pytest.mark.parametrize("shell", ["zsh", "fish"])
    def test_are_valid_where_the_shell_is(self, shell: str, tmp_path: Path) -> None:
        if shutil.which(shell) is None:
            pytest.skip(f"{shell} is not installed here; its script is checked where it is")
        path = tmp_path / "script"
        path.write_text(script(shell))
        subprocess.run([shell, "-n", path], check=True, timeout=30, env={**os.environ, "HOME": str(tmp_path)})

    def test_know_every_built_in_command(self) -> None:
        assert {usage.name for usage in usages()} == set(built_in_names())
