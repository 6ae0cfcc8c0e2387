"""The checker of histories finds what is wrong with damaged ones."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from trialpod.cli.main import main
from trialpod.protocol.messages import AttemptEnd, TrainableRef
from trialpod.storage.checkpoints import open_checkpoints
from trialpod.storage.journal.journal import Journal
from trialpod.storage.registry import open_storage
from trialpod.tune.schedulers.async_hyperband import AsyncHyperBandScheduler
from trialpod.tune.search.basic_variant import BasicVariantGenerator
from trialpod.tune.search.sample import grid_search
from trialpod_operator.engine import events
from trialpod_operator.engine.choices import MAX_DECISIONS, Decision, append_decision
from trialpod_operator.engine.settings import Settings
from trialpod_operator.engine.snapshot import Snapshot
from trialpod_operator.experiment.fsck import examine as examine_module
from trialpod_operator.experiment.fsck.examine import _Examiner, examine, recording_engine
from trialpod_operator.experiment.fsck.findings import Finding
from trialpod_operator.experiment.fsck.history import History, check_records
from trialpod_operator.experiment.journaled_engine import JournaledEngine
from trialpod_operator.experiment.plan import ExperimentPlan
from trialpod_operator.experiment.records import EngineSnapshot, Record, decode_record, encode
from trialpod_operator.experiment.stored import write_stored


def make_plan(**settings: Any) -> ExperimentPlan:
    search = BasicVariantGenerator(seed=1)
    search.configure({"x": grid_search([1, 2, 3])}, 1)
    return ExperimentPlan(
        settings=Settings(name="e", trainable_name="train", metric="score", max_failures=1, **settings),
        search=search,
        scheduler=AsyncHyperBandScheduler(max_t=3, grace_period=1, reduction_factor=3),
        stopper=None,
        trainable=TrainableRef(entrypoint="m:train"),
    )


class Stand:
    """An experiment of three trials under ASHA, whose journal can be read and damaged."""

    def __init__(self, directory: Path, **settings: Any) -> None:
        self.directory = directory
        self.plan = make_plan(**settings)
        write_stored(directory, {"name": "e", "total": 3})
        self.records: list[Record] = []
        self.host = JournaledEngine(self.plan, directory, lambda: 1000.0, lambda action: None)
        self.apply(events.SettingsObserved(settings=self.plan.settings))
        self.good, self.bad, self.other = self.host.engine.state.trials

    def apply(self, event: events.AnyEvent) -> None:
        self.host.apply(event)
        self.records.append(decode_record(encode(Record(1000.0, event, self.host.engine.choices))))

    def report(self, trial_id: str, attempt: int, number: int, iteration: int, score: float) -> None:
        raw = msgspec.Raw(msgspec.msgpack.encode({"training_iteration": iteration, "score": score}))
        self.apply(events.ResultsReceived(trial_id=trial_id, attempt=attempt, first=number, results=[raw]))

    def end(self, trial_id: str, attempt: int, **fields: Any) -> None:
        self.apply(events.AttemptEnded(trial_id=trial_id, attempt=attempt, end=AttemptEnd(**fields)))

    def checkpoint(self, trial_id: str, index: int, iteration: int) -> Path:
        folder = self.host.files.path(self.host.engine.state.trials[trial_id])
        store = open_checkpoints(open_storage(str(folder)))
        (store.begin(index) / "state").write_text("1234")
        info = store.commit(index, iteration=iteration, metrics={}, attempt=1, time=1000.0)
        self.apply(events.CheckpointsChanged(trial_id=trial_id, attempt=1, committed=[info]))
        return folder / info.name

    def results(self, trial_id: str) -> Path:
        return self.host.files.path(self.host.engine.state.trials[trial_id]) / "result.json"

    def live(self) -> None:
        """One is lost and continues to its end, one is stopped at a rung, one fails for good."""
        self.report(self.good, 1, 1, 1, 5.0)
        self.kept = self.checkpoint(self.good, 0, 1)
        self.report(self.bad, 1, 1, 1, 1.0)
        self.end(self.bad, 1, cause="stopped")
        self.end(self.good, 1, cause="lost", error="SIGKILL")
        self.report(self.good, 2, 1, 2, 6.0)
        self.report(self.good, 2, 2, 3, 7.0)
        self.end(self.good, 2, cause="stopped")
        self.end(self.other, 1, cause="failed", error="ValueError: no")
        self.end(self.other, 2, cause="failed", error="ValueError: no")
        assert self.host.engine.finished
        self.host.flush()

    def index(self, kind: type[events.Event], nth: int = 0) -> int:
        return [i for i, record in enumerate(self.records) if isinstance(record.event, kind)][nth]

    def findings(self) -> list[Finding]:
        """What is wrong with the records as they are now."""
        return check_records(History(self.records), recording_engine()).findings.errors

    def found(self) -> list[tuple[str, str, str]]:
        """What is wrong in the directory."""
        return [(each.check, each.trial, each.what) for each in examine(open_storage(str(self.directory))).findings
                if each.severity == "error"]  # fmt: skip


@pytest.fixture
def stand(tmp_path: Path) -> Stand:
    made = Stand(tmp_path)
    made.live()
    return made


def test_nested_metrics_are_no_finding(tmp_path: Path) -> None:
    stand = Stand(tmp_path)
    results = [{"score": 1.0, "loss/a": 2}, {"score": 1.0, "loss/a": 3, "eval/b": None}]
    for number, (result, names) in enumerate(zip(results, (["loss"], ["eval"]), strict=True), 1):
        raw = msgspec.Raw(msgspec.msgpack.encode({"training_iteration": number, **result}))
        stand.apply(events.ResultsReceived(trial_id=stand.good, attempt=1, first=number, results=[raw], nested=names))
    stand.host.flush()
    rows = [json.loads(line) for line in stand.results(stand.good).read_text().splitlines()]
    assert [row["loss"] for row in rows] == [{"a": 2}, {"a": 3}]
    assert rows[1]["eval"] == {"b": None}
    assert stand.found() == []
    reopened = JournaledEngine(make_plan(), tmp_path, lambda: 1001.0, lambda action: None)
    assert reopened.engine.state.trials[stand.good].nested == ("loss", "eval")
    reopened.flush()
    assert [json.loads(line) for line in stand.results(stand.good).read_text().splitlines()] == rows


def test_a_whole_history_has_no_findings(stand: Stand) -> None:
    assert stand.findings() == []
    found = examine(open_storage(str(stand.directory)), verify=True)
    assert found.findings == []
    assert (found.whole, found.state, found.trials, found.results, found.checkpoints) == (True, "Succeeded", 3, 4, 1)
    assert found.records == len(stand.records)


def test_a_lost_result_is_found_in_the_records_and_in_the_file(stand: Stand) -> None:
    del stand.records[stand.index(events.ResultsReceived, 2)]
    errors = {(each.check, each.trial) for each in stand.findings()}
    assert ("result", stand.good) in errors
    assert any("results 1 to 1 of attempt 2 are missing" in each.what for each in stand.findings())


def test_a_decision_without_a_verdict_is_found(stand: Stand) -> None:
    index = next(i for i, record in enumerate(stand.records) if record.choices and record.choices.verdicts)
    choices = stand.records[index].choices
    assert choices is not None
    choices.verdicts = []
    (error, *_) = stand.findings()
    assert (error.check, error.trial) == ("verdict", stand.bad)
    assert "says that it was stopped, but nothing had decided so" in error.what


def test_a_verdict_about_a_result_that_never_came_is_found(stand: Stand) -> None:
    index = next(i for i, record in enumerate(stand.records) if record.choices and record.choices.verdicts)
    choices = stand.records[index].choices
    assert choices is not None
    choices.verdicts[0].number = 7
    assert any("is about result 7, which has not just arrived" in each.what for each in stand.findings())


def test_an_overlapping_attempt_is_found(stand: Stand) -> None:
    index = stand.index(events.AttemptEnded, 1)
    stand.records[index] = Record(1000.0, events.TimerFired(), stand.records[index].choices)
    errors = stand.findings()
    assert any(
        each.trial == stand.good and "attempt 2 was started while attempt 1 had not ended" in each.what
        for each in errors
    )


def test_what_an_attempt_says_before_its_start_is_found(stand: Stand) -> None:
    late = stand.records.pop(stand.index(events.ResultsReceived, 2))
    stand.records.insert(1, late)
    assert any("of attempt 2, which was never started (the latest is 1)" in each.what for each in stand.findings())


def test_late_reports_of_ended_attempt_count_nothing(stand: Stand) -> None:
    stand.records.append(stand.records[stand.index(events.ResultsReceived, 0)])
    checked = check_records(History(stand.records), recording_engine())
    assert [(each.severity, each.check) for each in checked.findings.all] == [("note", "attempt")]
    assert checked.facts[stand.good].count == 3


def test_a_duplicated_line_is_found(stand: Stand) -> None:
    path = stand.results(stand.good)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([lines[0], *lines]))
    (found, *_) = stand.found()
    assert found[:2] == ("results", stand.good)
    assert "line 2 of result.json has score=5.0, but the result has 6.0" in found[2]


@pytest.mark.parametrize("cut", [1, 10])
def test_a_truncated_result_file_is_found(stand: Stand, cut: int) -> None:
    path = stand.results(stand.good)
    path.write_bytes(path.read_bytes()[:-cut])
    told = [what for check, trial, what in stand.found() if (check, trial) == ("results", stand.good)]
    assert any("result.json has 2 results, but the journal has 3" in what for what in told)
    assert any("ends within a line" in what for what in told)


def test_a_changed_value_is_found(stand: Stand) -> None:
    path = stand.results(stand.bad)
    path.write_text(path.read_text().replace('"score":1.0', '"score":2.0'))
    ((_, trial, what),) = stand.found()
    assert (trial, what) == (stand.bad, "line 1 of result.json has score=2.0, but the result has 1.0")


def _remove(folder: Path) -> None:
    (folder / "state").unlink()
    (folder / ".trialpod-manifest.json").unlink()
    folder.rmdir()


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (_remove, "is missing"),
        (lambda folder: (folder / ".trialpod-manifest.json").unlink(), "has no manifest"),
        (lambda folder: (folder / "state").unlink(), "is damaged: checkpoint_000000/state is missing"),
        (lambda folder: (folder / "state").write_text("12"), "has 2 bytes instead of 4"),
        (lambda folder: (folder / ".trialpod-manifest.json").write_text("{}"), "is damaged: its manifest"),
    ],
)
def test_a_checkpoint_that_is_missing_or_damaged_is_found(
    stand: Stand, damage: Callable[[Path], object], told: str
) -> None:
    damage(stand.kept)
    ((check, trial, what),) = stand.found()
    assert (check, trial) == ("checkpoint", stand.good)
    assert what.startswith("checkpoint_000000 (iteration 1) ")
    assert told in what


def test_changed_bytes_are_found_when_checkpoints_are_verified(stand: Stand) -> None:
    (stand.kept / "state").write_text("1235")
    storage = open_storage(str(stand.directory))
    assert examine(storage).whole
    (error,) = [each for each in examine(storage, verify=True).findings if each.severity == "error"]
    assert "the checksum of state does not match" in error.what


@pytest.mark.parametrize("step", ["_manifests", "open_checkpoints"])
def test_checkpoint_deleted_during_the_check_is_no_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    stand = Stand(tmp_path)
    stand.report(stand.good, 1, 1, 1, 5.0)
    folder = stand.checkpoint(stand.good, 0, 1)
    stand.report(stand.good, 1, 2, 2, 6.0)
    kept = stand.checkpoint(stand.good, 1, 2)
    stand.host.flush()
    original = getattr(examine_module, step)

    def delete_first(*arguments: Any) -> Any:
        if folder.exists():
            stand.apply(events.CheckpointsChanged(trial_id=stand.good, attempt=1, unneeded=[folder.name]))
            stand.host.flush()
            _remove(folder)
        return original(*arguments)

    monkeypatch.setattr(examine_module, step, delete_first)
    found = examine(open_storage(str(tmp_path)), verify=True)
    assert [each.what for each in found.findings if each.severity == "error"] == []
    assert found.checkpoints == 1
    _remove(kept)
    assert [what for _, _, what in stand.found()] == ["checkpoint_000001 (iteration 2) is missing"]


@pytest.mark.parametrize(("step", "file"), [("open_checkpoints", "state"), ("_manifests", ".trialpod-manifest.json")])
def test_unreadable_file_of_a_checkpoint_is_an_error(
    stand: Stand, monkeypatch: pytest.MonkeyPatch, step: str, file: str
) -> None:
    original = getattr(examine_module, step)

    def break_first(*arguments: Any) -> Any:
        (stand.kept / file).unlink()
        (stand.kept / file).symlink_to(file)  # opening it fails, but not because it is missing
        return original(*arguments)

    monkeypatch.setattr(examine_module, step, break_first)
    (error,) = examine(open_storage(str(stand.directory)), verify=True).findings
    assert (error.severity, error.trial) == ("error", stand.good)
    assert "cannot read " in error.what


@pytest.mark.parametrize("change", ["end", "snapshot"])
def test_files_read_before_the_journal_changed_are_no_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    stand = Stand(tmp_path)
    original = _Examiner._trial_data
    changed: list[str] = []

    def change_after(self: _Examiner, dirname: str, sizes: Any) -> dict[str, bytes]:
        data = original(self, dirname, sizes)
        if not changed:
            changed.append(change)
            if change == "end":
                stand.live()
            else:
                stand.report(stand.good, 1, 1, 1, 5.0)
                stand.host.write_snapshot()
        return data

    monkeypatch.setattr(_Examiner, "_trial_data", change_after)
    assert stand.found() == []
    assert changed


def test_garbage_is_listed_and_harmless(stand: Stand) -> None:
    folder = stand.kept.parent
    (folder / ".trialpod-staging-checkpoint_000003-abc").mkdir()
    (folder / ".trialpod-staging-checkpoint_000003-abc" / "half").write_text("x")
    (folder / "checkpoint_000004").mkdir()
    (folder / "checkpoint_000004" / "half").write_text("x")
    (stand.directory / "mine.txt").write_text("x")
    (folder / "plot.png").write_text("x")
    found = examine(open_storage(str(stand.directory)))
    assert found.whole
    assert {each.severity for each in found.findings} == {"note"}
    told = "\n".join(each.what for each in found.findings)
    for part in ("staging-checkpoint_000003", "checkpoint_000004 has no manifest", "mine.txt", "1 files in trials'"):
        assert part in told


def damaged_snapshot(stand: Stand, change: Callable[[Snapshot], None]) -> list[Finding]:
    state = msgspec.msgpack.decode(stand.host.engine.snapshot(), type=Snapshot)
    change(state)
    snapshot = EngineSnapshot(engine=msgspec.Raw(msgspec.msgpack.encode(state)))
    return check_records(History([], snapshot, 12), recording_engine()).findings.errors


def _change(name: str, value: int) -> Callable[[Snapshot], None]:
    return lambda state: setattr(state.trials[0], name, value)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (_change("disruptions", 5), "the trial records 5 disruptions, the journal has 1"),
        (_change("failures", 2), "the trial records 2 failures, the journal has 0"),
        (_change("results", 9), "results of all trials are 4, but the trials have 10"),
        (lambda state: setattr(state.trials[0], "status", "PENDING"), "it is PENDING, but in no queue"),
    ],
)
def test_wrong_counters_in_a_snapshot_are_found(stand: Stand, change: Callable[[Snapshot], None], told: str) -> None:
    assert damaged_snapshot(stand, lambda _: None) == []
    assert any(told in each.what for each in damaged_snapshot(stand, change))


def test_failures_behind_dropped_decisions_are_no_finding(stand: Stand) -> None:
    """The first decision is kept, and the latest ones: what lies between may have counted."""

    def change(state: Snapshot) -> None:
        trial = next(each for each in state.trials if each.trial_id == stand.bad)
        first = Decision(1.0, "retry", 1, 1, {"source": "failure", "failures": 1})
        latest = Decision(2.0, "disruption", 3, 1, {})
        log: tuple[bytes, ...] = ()
        for decision in (first, *[latest] * MAX_DECISIONS):
            log = append_decision(log, decision)
        trial.decision_log, trial.decision_count, trial.failures = log, MAX_DECISIONS + 2, 2

    assert [each.what for each in damaged_snapshot(stand, change) if "failures are" in each.what] == []


def test_a_pause_before_a_stop_and_a_snapshot_is_obeyed(tmp_path: Path) -> None:
    """The scheduler paused the trial, and then its user stopped it."""
    stand = Stand(tmp_path)
    stand.report(stand.good, 1, 1, 1, 5.0)
    stand.host.engine.state.trials[stand.good].decide(1000.0, "pause", {"source": "scheduler"})
    stand.apply(events.StopRequested(trial_id=stand.good))
    snapshot = EngineSnapshot(engine=msgspec.Raw(stand.host.engine.snapshot()))
    stand.end(stand.good, 1, cause="paused")
    history = History(stand.records[-1:], snapshot, len(stand.records))
    assert check_records(history, recording_engine()).findings.errors == []


def test_failed_export_of_a_model_is_no_finding(tmp_path: Path) -> None:
    stand = Stand(tmp_path)
    raw = msgspec.Raw(msgspec.msgpack.encode({"training_iteration": 1, "score": 5.0, "done": True}))
    stand.apply(events.ResultsReceived(trial_id=stand.good, attempt=1, first=1, results=[raw]))
    assert stand.host.engine.state.trials[stand.good].completion_reported
    stand.end(stand.good, 1, cause="failed", error="RuntimeError: no model", after_completion=True)
    assert stand.findings() == []
    assert damaged_snapshot(stand, lambda _: None) == []


def test_a_snapshot_is_said_to_limit_the_check(stand: Stand) -> None:
    stand.host.write_snapshot()
    found = examine(open_storage(str(stand.directory)))
    (note,) = found.findings
    assert (note.severity, note.check) == ("note", "snapshot")
    assert f"the first {len(stand.records)} records" in note.what
    path = stand.results(stand.good)
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:2]))
    assert [what for _, trial, what in stand.found() if trial == stand.good]


def test_retried_trial_keeps_results_across_restarts(stand: Stand) -> None:
    stand.apply(events.RetryRequested())
    stand.report(stand.other, 3, 1, 1, 9.0)
    stand.end(stand.other, 3, cause="failed", error="again", retry=False)
    stand.apply(events.RetryRequested())
    stand.report(stand.other, 4, 1, 2, 9.5)
    stand.host.flush()
    assert len(stand.results(stand.other).read_text().splitlines()) == 2
    stand.host.write_snapshot()
    stand.end(stand.other, 4, cause="failed", error="again", retry=False)
    stand.host.write_snapshot()
    stand.host.close()
    again = JournaledEngine(make_plan(), stand.directory, lambda: 1001.0, lambda action: None)
    again.apply(events.RetryRequested())
    raw = msgspec.Raw(msgspec.msgpack.encode({"training_iteration": 3, "score": 9.9}))
    again.apply(events.ResultsReceived(trial_id=stand.other, attempt=5, first=1, results=[raw]))
    again.flush()
    assert len(stand.results(stand.other).read_text().splitlines()) == 3
    assert stand.found() == []


def test_retry_of_trials_that_fail_fast_stopped_is_no_finding(tmp_path: Path) -> None:
    """One of them starts with the retry, the others when there is room."""
    stand = Stand(tmp_path, fail_fast=True)
    stand.end(stand.bad, 1, cause="failed", error="no")
    stand.end(stand.good, 1, cause="failed", error="no", retry=False)
    for trial_id, attempt in ((stand.bad, 2), (stand.other, 1)):
        stand.end(trial_id, attempt, cause="stopped")
    assert stand.host.engine.finished
    stand.apply(events.SettingsObserved(settings=msgspec.structs.replace(stand.plan.settings, max_concurrent=1)))
    stand.apply(events.RetryRequested(cut_short=True))
    for trial_id, attempt in ((stand.good, 2), (stand.bad, 3), (stand.other, 2)):
        stand.report(trial_id, attempt, 1, 3, 1.0)
        stand.end(trial_id, attempt, cause="completed")
    assert stand.host.engine.finished
    assert stand.findings() == []


def test_fsck_prints_findings_and_a_summary(stand: Stand, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fsck", str(stand.directory)]) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[-1].endswith(": OK: 11 records, 3 trials, 4 results, 1 checkpoint; no findings")
    _remove(stand.kept)
    assert main(["fsck", str(stand.directory)]) == 1
    out = capsys.readouterr().out
    assert out.startswith(f"error: trial {stand.good}: checkpoint_000000 (iteration 1) is missing -> restore it")
    assert ": CORRUPT: " in out
    assert main(["fsck", str(stand.directory), "--json"]) == 1
    document = msgspec.json.decode(capsys.readouterr().out)
    assert (document["whole"], document["findings"][0]["check"]) == (False, "checkpoint")


def test_fsck_of_no_experiment_is_bad_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fsck", str(tmp_path)]) == 2
    assert "there is no experiment at" in capsys.readouterr().err


def test_a_damaged_journal_is_an_error_that_says_where(stand: Stand) -> None:
    stand.host.close()
    (path,) = stand.directory.glob(".trialpod/journal/*.log")
    data = bytearray(path.read_bytes())
    data[200] ^= 255
    path.write_bytes(data)
    ((check, _, what),) = stand.found()
    assert check == "journal"
    assert "is damaged at byte" in what


def test_code_in_a_config_map_needs_no_file_here(stand: Stand) -> None:
    """Records are checked with the plan's algorithms wherever they are examined."""
    file = stand.directory / ".trialpod" / "experiment.json"
    document = json.loads(file.read_text())
    reference = {"name": "code", "key": "train.py", "entrypoint": "train:train"}
    spec = {"trainable": {"configMapRef": reference}, "searchSpace": {"x": {"uniform": [0, 1]}}, "seed": 1}
    kind = {"apiVersion": "trialpod.dev/v1alpha1", "kind": "TuneExperiment", "metadata": {"name": "digits"}}
    document["manifest"] = {**kind, "spec": spec}
    file.write_text(json.dumps(document))
    assert "cannot be made here" not in str(examine(open_storage(str(stand.directory))).findings)


def made_by_another_search(stand: Stand, **spec: Any) -> None:
    """Have the experiment come from a manifest, and its snapshot from a search that is not the manifest's."""
    file = stand.directory / ".trialpod" / "experiment.json"
    kind = {"apiVersion": "trialpod.dev/v1alpha1", "kind": "TuneExperiment", "metadata": {"name": "e"}}
    plain = {"trainable": {"entrypoint": "train:train"}, "searchSpace": {"x": {"uniform": [0, 1]}}, "seed": 1}
    file.write_text(json.dumps({**json.loads(file.read_text()), "manifest": {**kind, "spec": {**plain, **spec}}}))
    state = msgspec.msgpack.decode(stand.host.engine.snapshot(), type=Snapshot)
    state.search = {"count": 3}
    stand.host.close()
    with closing(Journal.open(stand.directory / ".trialpod" / "journal")) as journal:
        journal.write_snapshot(encode(EngineSnapshot(engine=msgspec.Raw(msgspec.msgpack.encode(state)))))


def test_a_snapshot_of_a_users_own_search_is_checked(stand: Stand) -> None:
    """Its state says nothing to the algorithms of the manifest, which have not suggested anything."""
    made_by_another_search(stand, decider={"searchAlgorithm": {"entrypoint": "mine:Own"}})
    found = examine(open_storage(str(stand.directory)))
    assert [each for each in found.findings if each.check == "snapshot" and each.severity == "error"] == []
    assert (found.records, found.trials) == (len(stand.records), 3)


def test_a_snapshot_of_other_algorithms_is_an_error(stand: Stand) -> None:
    made_by_another_search(stand)
    (found,) = examine(open_storage(str(stand.directory))).findings
    assert (found.severity, found.check) == ("error", "snapshot")
    assert "does not fit BasicVariantGenerator" in found.what
