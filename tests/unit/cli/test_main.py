from __future__ import annotations

import subprocess
import sys
import types
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from trialpod import __version__
from trialpod.cli import main as cli
from trialpod.cli.command import Command
from trialpod.errors import InvalidInputError, TrialpodError


def _raise(error: BaseException) -> int:
    raise error


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """A module of an installed plug-in, whose `command` a test sets."""
    module = types.ModuleType("fake_command")
    monkeypatch.setitem(sys.modules, "fake_command", module)
    point = EntryPoint("fake", "fake_command:command", cli.GROUP)
    monkeypatch.setattr(cli, "_entry_points", lambda: {"fake": point})
    monkeypatch.delenv("TRIALPOD_DEBUG", raising=False)
    return module


def _command(run: Callable[[Namespace], int]) -> Command:
    def configure(parser: ArgumentParser) -> None:
        parser.add_argument("--number", type=int, default=0)

    return Command("fake", "Does nothing", configure, run)


def test_chosen_command_gets_arguments_and_gives_status(fake: types.ModuleType) -> None:
    def run(arguments: Namespace) -> int:
        return int(arguments.number)

    fake.command = _command(run)  # type: ignore[attr-defined]
    assert cli.main(["fake", "--number", "7"]) == 7


@pytest.mark.parametrize(
    ("error", "status", "text"),
    [
        (InvalidInputError("bad input"), 2, "trialpod: bad input"),
        (TrialpodError("it failed"), 1, "trialpod: it failed"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
)
def test_an_error_is_a_message_and_a_status(
    fake: types.ModuleType, capsys: pytest.CaptureFixture[str], error: BaseException, status: int, text: str
) -> None:
    fake.command = _command(lambda _: _raise(error))  # type: ignore[attr-defined]
    assert cli.main(["fake"]) == status
    assert capsys.readouterr().err == text + "\n"


@pytest.mark.parametrize("arguments", [["-v", "fake"], ["fake", "-vv"], ["fake", "--verbose"]])
def test_verbose_shows_where_an_error_came_from(
    fake: types.ModuleType, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    fake.command = _command(lambda _: _raise(InvalidInputError("bad input")))  # type: ignore[attr-defined]
    assert cli.main(arguments) == 2
    err = capsys.readouterr().err
    assert err.startswith("Traceback")
    assert err.endswith("trialpod: bad input\n")


def test_verbosity_counts_before_and_after_the_command(fake: types.ModuleType) -> None:
    fake.command = _command(lambda arguments: int(arguments.verbose))  # type: ignore[attr-defined]
    assert cli.main(["-v", "fake", "-vv"]) == 3


def test_the_environment_can_ask_for_tracebacks(
    fake: types.ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TRIALPOD_DEBUG", "1")
    assert cli.main(["nothing"]) == 2
    assert capsys.readouterr().err.startswith("Traceback")


def test_wrong_arguments_are_status_2(fake: types.ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    fake.command = _command(lambda _: 0)  # type: ignore[attr-defined]
    assert cli.main(["fake", "--number", "x"]) == 2
    assert "invalid int value" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "fragment"),
    [
        (["valdate"], "did you mean `trialpod validate`?"),
        (["fakee"], "did you mean `trialpod fake`?"),
        (["zzzzzz"], "`trialpod --help` lists the commands"),
        (["--verion"], "unrecognized arguments: --verion"),
    ],
)
def test_an_unknown_command_leads_to_the_nearest(
    fake: types.ModuleType, capsys: pytest.CaptureFixture[str], arguments: list[str], fragment: str
) -> None:
    assert cli.main(arguments) == 2
    assert fragment in capsys.readouterr().err


class TestMissingPackage:
    """A command that cannot be imported, or that finds a package missing at work, says how to install it."""

    @pytest.mark.parametrize(
        ("module", "remedy"),
        [
            ("yaml.nodes", "pip install trialpod"),
            ("kopf", "pip install 'trialpod[operator]'"),
            ("matplotlib", "pip install 'trialpod[plots]'"),
        ],
    )
    def test_names_the_extra(
        self, fake: types.ModuleType, capsys: pytest.CaptureFixture[str], module: str, remedy: str
    ) -> None:
        error = ModuleNotFoundError(f"No module named {module!r}", name=module)
        fake.command = _command(lambda _: _raise(error))  # type: ignore[attr-defined]
        assert cli.main(["fake"]) == 2
        expected = f"trialpod: `trialpod fake` needs the package {module!r}, which is not installed"
        assert capsys.readouterr().err == f"{expected}; install it with: {remedy}\n"

    def test_of_another_package_is_no_matter_of_extras(self, fake: types.ModuleType) -> None:
        fake.command = _command(lambda _: _raise(ModuleNotFoundError("No", name="other")))  # type: ignore[attr-defined]
        with pytest.raises(ModuleNotFoundError):
            cli.main(["fake"])

    def test_incomplete_installation(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        error = ModuleNotFoundError("No module named 'gone'", name="gone")
        monkeypatch.setattr(cli, "import_module", lambda _: _raise(error))
        assert cli.main(["run", "x.yaml"]) == 2
        assert "pip install --force-reinstall trialpod" in capsys.readouterr().err


def test_a_plug_in_that_is_no_command_is_blamed(fake: types.ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    fake.command = 3  # type: ignore[attr-defined]
    assert cli.main(["fake"]) == 2
    assert "report this to the package that provides it" in capsys.readouterr().err


def test_the_help_lists_every_command(fake: types.ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(f"\n  {name} " in out for name in [*cli.built_in_names(), "fake"])
    assert cli.main([]) == 2


@pytest.mark.parametrize("name", cli.built_in_names())
def test_a_command_has_the_name_of_its_module(name: str) -> None:
    command = cli.load_command(name)
    assert command.name == name
    assert cli.declaration(name) == (command.help, command.cluster)


@pytest.mark.parametrize("arguments", [["--help"], ["help"], ["--version"], []])
def test_no_command_is_imported_to_list_them(arguments: list[str]) -> None:
    code = (
        f"import sys; from trialpod.cli.main import main; main({arguments!r});"
        "print(sorted({'yaml', 'rich', 'asyncio', 'msgspec', 'httptools', 'kopf'} & sys.modules.keys()),"
        "[name for name in sys.modules if name.startswith('trialpod_operator.') and name.count('.') > 1])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[] []"


@pytest.mark.parametrize("name", ["run", "validate", "status", "operator", "submit"])
def test_help_of_a_command_imports_no_other_command(name: str) -> None:
    code = (
        f"import sys; from trialpod.cli.main import main; main([{name!r}, '--help']);"
        "found = {each.split('.')[2] for each in sys.modules if each.startswith('trialpod_operator.commands.')};"
        f"print(sorted({{'yaml', 'rich', 'kopf', 'msgspec'}} & sys.modules.keys()), "
        f"sorted(found - {{{name!r}, 'target'}}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[] []"


def test_the_version_is_printed_without_importing_metadata() -> None:
    code = (
        "import sys; from trialpod.cli.main import main; main(['--version']);"
        "print(sorted({'importlib.metadata', 'msgspec', 'asyncio'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, env=_env(), check=True)
    assert done.stdout.splitlines() == [f"trialpod {__version__}", "[]"]


_ENDLESS = """
import sys, types
from importlib.metadata import EntryPoint
from trialpod.cli import main as cli
from trialpod.cli.command import Command
module = sys.modules["endless"] = types.ModuleType("endless")
module.command = Command("run", "", lambda parser: None, lambda arguments: print("x" * 10_000_000) or 0)
cli._entry_points = lambda: {"endless": EntryPoint("endless", "endless:command", cli.GROUP)}
sys.exit(cli.main(["endless"]))
"""


def test_a_reader_that_goes_away_is_no_traceback() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _ENDLESS], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=_env()
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == 141


def _env() -> dict[str, str]:
    runtime = Path(__file__).parents[3] / "runtime"
    return {"PYTHONPATH": f"{runtime}:{runtime.parent / 'operator'}", "PATH": "/usr/bin:/bin"}
