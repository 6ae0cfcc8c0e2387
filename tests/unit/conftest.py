"""What the tests of the commands, of the user's client and of the operator share."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from api_server import ApiServer, Run

from trialpod.cli.main import main


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ApiServer]:
    """A stand-in for the API server, which the commands find by the KUBECONFIG variable."""
    made = ApiServer()
    monkeypatch.setenv("KUBECONFIG", str(made.kubeconfig(tmp_path)))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_ENDPOINT_URL_S3", "TRIALPOD_NAMESPACE"):
        monkeypatch.delenv(name, raising=False)
    limit = sys.getrecursionlimit()  # a command raises it for the whole process
    yield made
    sys.setrecursionlimit(limit)
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
