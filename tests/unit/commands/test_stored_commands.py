"""`checkpoints`, `download`, `explain` and `fsck` of an experiment in a cluster, by its name."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import msgspec
import pytest
from api_server import ApiServer, Run, condition_of, experiment_object, trial_object

from trialpod.errors import InvalidInputError
from trialpod.protocol.messages import AttemptEnd, TrainableRef
from trialpod.storage.base import KeyMissingError
from trialpod.storage.checkpoints import open_checkpoints
from trialpod.storage.directory import DirectoryStorage
from trialpod.tune.schedulers.fifo import FIFOScheduler
from trialpod.tune.search.basic_variant import BasicVariantGenerator
from trialpod.tune.search.sample import grid_search
from trialpod_operator.engine import events
from trialpod_operator.engine.settings import Settings
from trialpod_operator.experiment.journaled_engine import JournaledEngine
from trialpod_operator.experiment.plan import ExperimentPlan
from trialpod_operator.experiment.replica.journal_layout import JOURNAL, folder_of
from trialpod_operator.experiment.stored import JOURNAL_ID, read_stored, write_stored
from trialpod_operator.view.reading import reading

CORE = "/api/v1/namespaces/team"


@pytest.fixture
def trials(server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """An experiment `climb` with two trials, each with a checkpoint, in the cluster and in its storage."""
    monkeypatch.chdir(tmp_path)
    search = BasicVariantGenerator(seed=1)
    search.configure({"x": grid_search([1, 2])}, 1)
    plan = ExperimentPlan(
        settings=Settings(name="climb", trainable_name="train", metric="score", max_failures=0),
        search=search,
        scheduler=FIFOScheduler(),
        stopper=None,
        trainable=TrainableRef(entrypoint="m:train"),
    )
    folder = tmp_path / "bucket" / "climb"
    folder.mkdir(parents=True)
    source = tmp_path / "source"
    source.mkdir()
    (source / "weights").write_text("w")
    write_stored(folder, {"name": "climb", "total": 2})
    host = JournaledEngine(plan, folder, lambda: 1000.0, lambda action: None)
    host.apply(events.SettingsObserved(settings=plan.settings))
    where = {"storageUri": str(folder), "conditions": [condition_of("Succeeded", "True", "Succeeded")]}
    server.put("tuneexperiments", experiment_object("climb", {"storage": {"uri": str(folder.parent)}}, **where))
    found = list(host.engine.state.trials)
    for number, trial_id in enumerate(found):
        directory = host.files.path(host.engine.state.trials[trial_id])
        raw = msgspec.Raw(msgspec.msgpack.encode({"training_iteration": 1, "score": number}))
        host.apply(events.ResultsReceived(trial_id=trial_id, attempt=1, first=1, results=[raw]))
        store = open_checkpoints(DirectoryStorage(directory))
        store.snapshot(0, source)
        info = store.commit(0, iteration=1, metrics={"score": number}, attempt=1, time=1000.0)
        host.apply(events.CheckpointsChanged(trial_id=trial_id, attempt=1, committed=[info]))
        end = AttemptEnd(cause="failed", error="ValueError: no") if number else AttemptEnd(cause="completed")
        host.apply(events.AttemptEnded(trial_id=trial_id, attempt=1, end=end))
        made: dict[str, Any] = trial_object("climb", number, "TERMINATED", storageUri=str(directory))
        made["spec"]["trialId"] = trial_id
        made["metadata"]["name"] = f"climb-{trial_id.replace('_', '-')}"
        server.put("tunetrials", made)
    host.write_snapshot()
    host.close()
    return found


def test_checkpoints_are_listed_by_the_name_of_an_experiment(trialpod: Run, trials: list[str]) -> None:
    text = trialpod("checkpoints", "climb", "--verify")
    assert text.count("checkpoint_000000") == 2
    assert text.count(" yes ") == 2
    only = json.loads(trialpod("checkpoints", "climb", "-n", "team", "--trial", "1", "--json"))
    assert [each["metrics"]["score"] for each in only] == [1]


def test_checkpoints_are_copied_by_the_name_of_an_experiment(
    trialpod: Run, trials: list[str], tmp_path: Path
) -> None:
    trialpod("download", "climb", "all")
    assert [path.read_text() for path in Path("all").rglob("weights")] == ["w", "w"]
    trialpod("download", "climb", "one", "--trial", trials[0], "--checkpoint", "checkpoint_000000")
    assert [path.name for path in Path("one").iterdir()] == ["weights"]
    text = trialpod("download", "climb", "two", "--trial", trials[0], "--checkpoint", "checkpoint_000001", status=2)
    assert "has no whole checkpoint_000001; did you mean checkpoint_000000?" in text
    assert "say of which trial" in trialpod("download", "climb", "two", "--checkpoint", "checkpoint_000000", status=2)


def test_a_trial_is_explained_by_the_name_of_its_experiment(trialpod: Run, trials: list[str]) -> None:
    name = f"climb-{trials[1].replace('_', '-')}"
    for trial in (trials[1], "1", name):
        assert "failed after 1 iteration" in trialpod("explain", trial, "climb")
    assert "name the experiment too" in trialpod("explain", "1", "-n", "team", status=2)


def test_what_is_stored_is_examined_by_the_name_of_an_experiment(trialpod: Run, trials: list[str]) -> None:
    assert ": OK: " in trialpod("fsck", "climb", "--verify")


@pytest.mark.parametrize(
    "command", [["checkpoints"], ["explain", "1"], ["fsck"], ["results"], ["best"], ["download"]]
)
def test_all_distinguish_names_from_folders_in_the_same_way(
    server: ApiServer, trialpod: Run, trials: list[str], monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    def asked(place: str, *more: str) -> str:
        return trialpod(*command, place, *(["out"] if command == ["download"] else []), *more, status=2)

    text = asked("clim")
    assert "clim does not exist, here or in ./trialpod-results; and there is no TuneExperiment clim" in text
    assert "did you mean climb?" in text
    text = asked("clim", "-n", "team")
    assert "does not exist" not in text
    assert "did you mean climb?" in text
    assert "runs/climb is a folder or a URI; -n, --context" in asked("runs/climb", "-n", "team")
    before = len(server.requests)
    Path("trialpod-results/clim").mkdir(parents=True)
    assert "clim" in asked("clim")
    assert "runs/climb" in asked("runs/climb")
    assert len(server.requests) == before, "the cluster was asked about a folder"
    monkeypatch.setenv("KUBECONFIG", "/nowhere")
    assert "other does not exist, here or in ./trialpod-results; if it is the name of an exp" in asked("other")
    assert "exists here or in ./trialpod-results" in " ".join(trialpod(*command, "--help").split())


def test_a_trial_of_a_folder_is_named_by_its_own_folder(trialpod: Run, trials: list[str]) -> None:
    assert "give that of the trial" in trialpod("checkpoints", "bucket/climb", "--trial", "1", status=2)


def test_a_trial_with_nothing_in_the_storage_is_reported(server: ApiServer, trialpod: Run, trials: list[str]) -> None:
    server.put("tunetrials", trial_object("climb", 7, "PENDING"))
    text = trialpod("checkpoints", "climb", "--trial", "7", status=2)
    assert "climb-d75de-00007 has nothing in the storage yet" in text


def test_a_journal_that_is_replaced_while_it_is_read(trials: list[str], tmp_path: Path) -> None:
    """Its writer puts a snapshot in the place of segments; a reader that misses one reads again."""

    class Replaced(DirectoryStorage):
        missed = 0

        def read(self, key: str) -> bytes:
            if "/journal/" in key and not Replaced.missed:
                Replaced.missed += 1
                raise KeyMissingError(f"{key} has just been replaced")
            return super().read(key)

        def get_file(self, key: str, local: Path, *, size: int | None = None) -> int:
            if "/journal/" in key and not Replaced.missed:
                Replaced.missed += 1
                raise KeyMissingError(f"{key} has just been replaced")
            return super().get_file(key, local, size=size)

    folder = tmp_path / "bucket" / "climb"
    stored = folder_of((read_stored(folder) or {})[JOURNAL_ID])
    (folder / stored).mkdir()
    for snapshot in (folder / JOURNAL).glob("*.snapshot"):
        snapshot.rename(folder / stored / snapshot.name)
    with reading("s3://tune/climb", Replaced(folder)) as experiment:
        assert list(experiment.engine.state.trials) == trials
    assert Replaced.missed


def test_a_number_goes_before_the_beginning_of_an_id(trialpod: Run, trials: list[str]) -> None:
    """All ids of an experiment begin alike; one that begins with a 1 has a trial 1 all the same."""
    from trialpod_operator.commands.explain import find

    class Experiment:
        place = "here"

        class engine:  # noqa: N801
            class state:  # noqa: N801
                trials: ClassVar[Any] = {
                    f"1df6b_{number:05d}": SimpleNamespace(trial_id=f"1df6b_{number:05d}") for number in range(6)
                }

        def trial_name(self, trial: Any) -> str:
            return f"train_{trial.trial_id}"

    experiment: Any = Experiment()
    for asked, trial_id in (("1", "1df6b_00001"), ("0", "1df6b_00000"), ("00004", "1df6b_00004")):
        assert find(experiment, asked).trial_id == trial_id
    with pytest.raises(InvalidInputError, match="6 trials begin with"):
        find(experiment, "1df6b")


def test_a_trial_that_printed_nothing_is_no_error(server: ApiServer, trialpod: Run, trials: list[str]) -> None:
    assert "is TERMINATED; it printed nothing" in trialpod("logs", "climb", "0")
