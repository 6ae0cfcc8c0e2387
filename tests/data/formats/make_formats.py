"""Writes tests/data/formats/v1: a sample of every file that trialpod keeps, in the current version of its format."""

from __future__ import annotations

import hashlib
import json
import sys
import zlib
from pathlib import Path
from typing import Any

import msgspec

from trialpod.protocol.messages import AssignmentRequest, AttemptEnd, CheckpointInfo, ReportRequest, TrainableRef
from trialpod.protocol.packed import pack
from trialpod.protocol.values import metrics_encoder, params_encoder
from trialpod.storage.checkpoints import open_checkpoints
from trialpod.storage.checkpoints.manifest import FileEntry, Piece, encode
from trialpod.storage.registry import open_storage
from trialpod.tune.schedulers import create_scheduler
from trialpod.tune.schedulers.trial_scheduler import TrialScheduler
from trialpod.tune.search.basic_variant import BasicVariantGenerator
from trialpod.tune.search.sample import uniform
from trialpod.tune.stopper.combined import CombinedStopper
from trialpod.tune.stopper.experiment_plateau import ExperimentPlateauStopper
from trialpod.tune.stopper.maximum_iteration import MaximumIterationStopper
from trialpod.tune.stopper.stopper import Stopper
from trialpod.tune.stopper.timeout import TimeoutStopper
from trialpod.tune.stopper.trial_plateau import TrialPlateauStopper
from trialpod_operator.engine import events
from trialpod_operator.engine.engine import Engine
from trialpod_operator.engine.settings import Settings
from trialpod_operator.experiment.journaled_engine import JournaledEngine
from trialpod_operator.experiment.plan import ExperimentPlan
from trialpod_operator.experiment.stored import write_stored

BEGAN = 1_700_000_000.0
JOURNAL = "0123456789abcdef"

SCHEDULERS: dict[str, dict[str, Any]] = {
    "fifo": {},
    "async_hyperband": {"max_t": 9, "grace_period": 1, "reduction_factor": 3},
    "hyperband": {"max_t": 9, "reduction_factor": 3},
    "median_stopping_rule": {"grace_period": 1, "min_samples_required": 2},
    "pbt": {"perturbation_interval": 2, "hyperparam_mutations": {"x": [0.1, 0.5, 0.9]}, "seed": 1},
}
"""Schedulers that need no library of their own, and their arguments."""


def make_scheduler(name: str) -> TrialScheduler:
    return create_scheduler(name, **SCHEDULERS[name])


def make_search() -> BasicVariantGenerator:
    search = BasicVariantGenerator(seed=1)
    search.configure({"x": uniform(0.0, 1.0)}, 4)
    return search


def make_stopper() -> Stopper:
    return CombinedStopper(
        MaximumIterationStopper(50),
        TrialPlateauStopper("score", std=1e-9, num_results=30, grace_period=30),
        ExperimentPlateauStopper("score", std=1e-9, top=3, patience=40),
        TimeoutStopper(1_000_000),
    )


def make_engine(scheduler: str) -> Engine:
    return Engine(make_search(), make_scheduler(scheduler), make_stopper())


def make_plan() -> ExperimentPlan:
    return ExperimentPlan(
        settings=Settings(name="golden", trainable_name="train", metric="score", mode="max", num_samples=4),
        search=make_search(),
        scheduler=make_scheduler("async_hyperband"),
        stopper=make_stopper(),
        trainable=TrainableRef(entrypoint="train:train"),
    )


def result(trial: int, step: int) -> msgspec.Raw:
    return msgspec.Raw(
        metrics_encoder.encode(
            {"score": trial + step / 10, "training_iteration": step, "done": False, "nan": float("nan"), "text": "ü"}
        )
    )


def play(engine: Engine) -> bytes:
    """Have the trials of an engine report, and return its snapshot."""
    settings = Settings(name="golden", trainable_name="train", metric="score", mode="max", num_samples=4)
    engine.apply(events.SettingsObserved(settings=settings), BEGAN)
    for step in range(1, 4):
        for index, trial in enumerate(list(engine.state.running.values())):
            event = events.ResultsReceived(
                trial_id=trial.trial_id,
                attempt=trial.attempt,
                first=trial.current.received + 1,
                results=[result(index, step)],
            )
            engine.apply(event, BEGAN + step)
    return engine.snapshot()


def write_experiment(directory: Path) -> None:
    """Write an experiment with a snapshot, records after it, a checkpoint, and a torn end."""
    write_stored(directory, {"name": "golden", "storage": "", "journal": JOURNAL, "seed": 1, "total": 4})
    now = [BEGAN]
    host = JournaledEngine(make_plan(), directory, lambda: now[0], lambda action: None)
    host.apply(events.SettingsObserved(settings=make_plan().settings))
    trials = list(host.engine.state.trials.values())
    for step in range(1, 5):
        now[0] += 1.0
        for index, trial in enumerate(trials):
            if not trial.running or trial.current.decision is not None:
                continue
            committed = []
            if (index, step) == (3, 2):
                store = open_checkpoints(open_storage(str(host.files.path(trial))))
                folder = store.begin(0)
                (folder / "model.txt").write_text("weights\n")
                (folder / "sub").mkdir()
                (folder / "sub" / "more.bin").write_bytes(bytes(range(64)))
                metrics = {"score": 3.2, "loss": float("inf")}
                committed.append(store.commit(0, iteration=2, metrics=metrics, attempt=1, time=BEGAN))
                store.close()
            host.apply(
                events.ResultsReceived(
                    trial_id=trial.trial_id, attempt=1, first=step, results=[result(index, step)], committed=committed
                )
            )
        if step == 2:
            host.write_snapshot()
    for trial in trials[1:]:
        if trial.running:
            cause = "stopped" if trial.current.decision == "stop" else "completed"
            host.apply(events.AttemptEnded(trial_id=trial.trial_id, attempt=1, end=AttemptEnd(cause=cause)))
    host.close()
    for file in directory.glob("*/events.out.*"):
        file.unlink()  # TensorBoard's format, with the name of this machine


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    write_experiment(folder / "experiment")
    for name in SCHEDULERS:
        (folder / f"engine-{name}.msgpack").write_bytes(play(make_engine(name)))
    info = CheckpointInfo(name="checkpoint_000001", index=1, iteration=7, metrics={"x": 1.0}, attempt=2, size=30)
    plain = FileEntry("a.txt", 10, zlib.crc32(b"a" * 10))
    packed = FileEntry("b.txt", 10, 2, key="checkpoint_000000/.trialpod-pack-0000", offset=5)
    pieces = (Piece("checkpoint_000000/c.bin", 0, 6), Piece("checkpoint_000001/.trialpod-blocks-0000", 2, 4))
    divided = FileEntry("c.bin", 10, 3, pieces=pieces)
    (folder / "manifest.json").write_bytes(encode(info, ["empty"], [plain, packed, divided]))
    (folder / "trainable.pkl").write_bytes(
        pack(b"\x80\x05K\x07.", name="train", cloudpickle="3.1.0", objects=["ab" * 32])
    )
    head = json.dumps({"format": 1, "lengths": [5]}).encode() + b"\n"
    stored = head + b"\0" * (-len(head) % 64) + b"\x80\x05K\x07."
    (folder / f"object-{hashlib.sha256(stored).hexdigest()}").write_bytes(stored)
    (folder / "params.msgpack").write_bytes(
        params_encoder.encode({"lr": 0.1, "big": 2**70, "name": "ü", "list": [1, None]})
    )
    (folder / "request-assignment.msgpack").write_bytes(
        msgspec.msgpack.encode(AssignmentRequest(runner="t/1", pid=1, hostname="h", release="0.1.0"))
    )
    (folder / "request-report.msgpack").write_bytes(
        msgspec.msgpack.encode(
            ReportRequest(
                trial_id="t",
                attempt=1,
                results=[result(1, 1)],
                checkpoints=[info],
                deleted_checkpoints=["checkpoint_000000"],
                end=AttemptEnd(cause="failed", error="E: x", traceback="t", retry=False),
            )
        )
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "v1")
