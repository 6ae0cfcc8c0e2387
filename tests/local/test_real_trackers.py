"""The loggers against the real servers and libraries, in whole runs: skipped where these are not installed.

``pip install mlflow wandb`` brings them; nothing leaves this machine.
"""

from __future__ import annotations

import contextlib
import os
import struct
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from free_port import free_port
from trialpod import tune
from trialpod.tune.logger.mlflow import MLflowLoggerCallback
from trialpod.tune.logger.wandb import WandbLoggerCallback

pytestmark = [
    pytest.mark.local,
    pytest.mark.slow,
    pytest.mark.once,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore"),  # those of the libraries
]


def climb(config: dict[str, Any]) -> None:
    for step in range(1, 4):
        tune.report({"score": config["x"] * step, "nested": {"loss": 1.0 / step}})
    if config["x"] == 3:
        raise ValueError("no")


def fit(folder: Path, callback: Any) -> tune.ResultGrid:
    return tune.Tuner(
        climb,
        param_space={"x": tune.grid_search([1, 2, 3]), "model": {"depth": 4}},
        tune_config=tune.TuneConfig(metric="score", mode="max"),
        run_config=tune.RunConfig(name="climb", storage_path=str(folder), callbacks=[callback], verbose=0),
    ).fit()


@pytest.fixture
def mlflow_server(tmp_path: Path) -> Iterator[str]:
    """A server of MLflow on a free port, with its database in a folder."""
    pytest.importorskip("mlflow", reason="mlflow is not installed: pip install mlflow")
    port = free_port()
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    command += [
        "--backend-store-uri",
        f"sqlite:///{tmp_path}/mlflow.db",
        "--artifacts-destination",
        str(tmp_path / "a"),
    ]
    with open(tmp_path / "mlflow.log", "wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    try:
        uri = f"http://127.0.0.1:{port}"
        deadline = time.monotonic() + 300
        while True:
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{uri}/health", timeout=10) as answer:
                assert answer.read() == b"OK"
                break
            assert process.poll() is None, (tmp_path / "mlflow.log").read_text()
            assert time.monotonic() < deadline, (tmp_path / "mlflow.log").read_text()
            time.sleep(0.2)
        yield uri
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, 15)
        process.wait(60)


class TestMlflow:
    def test_server_has_a_run_for_each_trial(self, mlflow_server: str, tmp_path: Path) -> None:
        import mlflow

        grid = fit(tmp_path, MLflowLoggerCallback(mlflow_server, experiment_name="climb", save_artifact=True))
        client = mlflow.MlflowClient(tracking_uri=mlflow_server)
        found = client.get_experiment_by_name("climb")
        runs = sorted(client.search_runs([found.experiment_id]), key=lambda run: run.data.params["x"])
        assert [run.data.params["x"] for run in runs] == ["1", "2", "3"]
        assert {run.data.params["model/depth"] for run in runs} == {"4"}
        assert [run.data.metrics["score"] for run in runs] == [3.0, 6.0, 9.0]
        assert [run.info.status for run in runs] == ["FINISHED", "FINISHED", "FAILED"]
        history = client.get_metric_history(runs[1].info.run_id, "nested/loss")
        assert [(each.step, each.value) for each in history] == [(1, 1.0), (2, 0.5), (3, pytest.approx(1 / 3))]
        assert {item.path for item in client.list_artifacts(runs[0].info.run_id)} >= {"result.json", "params.json"}
        assert len(grid) == 3


def wandb_records(data: bytes) -> Iterator[bytes]:
    """Yield the records of a ``.wandb`` file: a LevelDB log behind a header of 7 bytes."""
    at, parts = 7, b""
    while at + 7 <= len(data):
        room = 32768 - at % 32768
        if room < 7:
            at += room
            continue
        length, kind = struct.unpack_from("<HB", data, at + 4)
        parts += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield parts
            parts = b""


class TestWandb:
    def test_offline_runs_hold_config_and_history(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        pytest.importorskip("wandb", reason="wandb is not installed: pip install wandb")
        from wandb.proto import wandb_internal_pb2

        monkeypatch.setenv("WANDB_MODE", "offline")
        monkeypatch.setenv("WANDB_SILENT", "true")
        grid = fit(tmp_path, WandbLoggerCallback(project="tuning", group="climb", dir=str(tmp_path)))
        runs: dict[str, dict[str, Any]] = {}
        for file in (tmp_path / "wandb").glob("offline-run-*/run-*.wandb"):
            found: dict[str, Any] = {"history": [], "config": {}, "exit": None}
            for data in wandb_records(file.read_bytes()):
                record = wandb_internal_pb2.Record()
                record.ParseFromString(data)
                kind = record.WhichOneof("record_type")
                if kind == "run":
                    found |= {"id": record.run.run_id, "project": record.run.project, "group": record.run.run_group}
                    found["config"] |= {item.key: item.value_json for item in record.run.config.update}
                elif kind == "history":
                    items = {(item.key or "/".join(item.nested_key)): item.value_json for item in record.history.item}
                    found["history"].append(items)
                elif kind == "exit":
                    found["exit"] = record.exit.exit_code
            runs[found["id"]] = found
        assert {run_id.rpartition("_")[0] for run_id in runs} == {result.metrics["trial_id"] for result in grid}
        by_x = {run["config"]["x"]: run for run in runs.values()}
        assert [float(line["score"]) for line in by_x["2"]["history"]] == [2, 4, 6]
        assert {(run["project"], run["group"]) for run in runs.values()} == {("tuning", "climb")}
        assert [by_x[x]["exit"] for x in ("1", "2", "3")] == [0, 0, 1]
