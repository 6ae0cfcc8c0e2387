"""What the tests of the operator and of the commands share. The storage in memory is the storage's own tests'."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import virtual_time
from api_server import ApiServer, Run

from trialpod.cli.main import main

sys.path.append(str(Path(__file__).parents[1] / "storage"))

from cluster_world import Play, Scenario, World


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Play:
    """Runs a scenario in a world with one operator."""

    def run(scenario: Scenario, seed: int = 1) -> None:
        async def test() -> None:
            world = World(monkeypatch, tmp_path, seed)
            world.start_operator()
            await scenario(world)
            await world.close()

        virtual_time.run(test)

    return run


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ApiServer]:
    """A stand-in for the API server, which the commands find by the KUBECONFIG variable."""
    made = ApiServer()
    monkeypatch.setenv("KUBECONFIG", str(made.kubeconfig(tmp_path)))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_ENDPOINT_URL_S3", "TRIALPOD_NAMESPACE"):
        monkeypatch.delenv(name, raising=False)
    yield made
    made.close()


@pytest.fixture
def trialpod(server: ApiServer, capsysbinary: pytest.CaptureFixture[bytes]) -> Run:
    """Runs a command and returns what it printed; it has to end with the status that is given."""

    def run(*arguments: str, status: int = 0) -> str:
        found = main(list(arguments))
        out, err = (each.decode() for each in capsysbinary.readouterr())
        assert found == status, out + err
        return out + err

    return run
