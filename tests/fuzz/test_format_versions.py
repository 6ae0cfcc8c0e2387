"""The current version of each format is read, and any other is refused, with the remedy.

tests/data/formats/make_formats.py writes the samples in tests/data/formats/v1.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import struct
import sys
import zlib
from pathlib import Path
from typing import Any

import msgspec
import pytest

from trialpod.cli.main import main
from trialpod.errors import CheckpointError, InvalidInputError, JournalError, TrainableError, format_mismatch
from trialpod.protocol.messages import AssignmentRequest, ReportRequest
from trialpod.protocol.packed import read_packed
from trialpod.protocol.values import opaque_decoder, params_decoder
from trialpod.storage.checkpoints import manifest, open_checkpoints
from trialpod.storage.journal.format import encode_segment_header, encode_snapshot
from trialpod.storage.journal.journal import Journal
from trialpod.storage.registry import open_storage
from trialpod.tune.shipping import stored_objects
from trialpod_operator.engine.snapshot import Snapshot
from trialpod_operator.experiment.journaled_engine import JournaledEngine
from trialpod_operator.experiment.records import EngineSnapshot, decode_record, decode_snapshot, encode
from trialpod_operator.experiment.stored import read_stored

FORMATS = Path(__file__).parents[1] / "data" / "formats"
V1 = FORMATS / "v1"
sys.path.append(str(FORMATS))

import make_formats  # noqa: E402 - beside the files that it wrote


@pytest.fixture
def golden(tmp_path: Path) -> Path:
    """A copy of the stored experiment, which tests may change."""
    return Path(shutil.copytree(V1 / "experiment", tmp_path / "experiment"))


def host_of(directory: Path) -> JournaledEngine:
    return JournaledEngine(make_formats.make_plan(), directory, lambda: make_formats.BEGAN + 99, lambda action: None)


def opened(directory: Path) -> JournaledEngine:
    read_stored(directory)
    return host_of(directory)


def facts(host: JournaledEngine) -> list[tuple[str, int, int, float | None]]:
    trials = host.engine.state.trials.values()
    return [(trial.status, trial.results, trial.iteration, trial.value) for trial in trials]


EXPECTED = [("RUNNING", 4, 4, 0.4), ("TERMINATED", 4, 4, 1.4), ("TERMINATED", 4, 4, 2.4), ("TERMINATED", 4, 4, 3.4)]


def test_a_stored_experiment_of_version_1_continues(golden: Path) -> None:
    assert read_stored(golden) == {
        "version": 1,
        "name": "golden",
        "storage": "",
        "journal": "0123456789abcdef",
        "seed": 1,
        "total": 4,
    }
    host = host_of(golden)
    try:
        assert facts(host) == EXPECTED
        last = host.engine.state.get_trials()[3]
        assert [(info.name, info.iteration) for info in last.checkpoints] == [("checkpoint_000000", 2)]
        assert last.checkpoints[0].metrics == {"score": 3.2, "loss": float("inf")}
        assert opaque_decoder.decode(last.params) == {"x": pytest.approx(0.6253, abs=1e-4)}
        host.write_snapshot()
    finally:
        host.close()
    again = host_of(golden)
    assert facts(again) == EXPECTED
    again.close()


def test_a_checkpoint_of_version_1_is_fetched_and_verified(golden: Path) -> None:
    (trial,) = golden.glob("train_931bf_00003*")
    store = open_checkpoints(open_storage(str(trial)))
    (info,) = store.committed()
    folder = store.fetch(info)
    assert (folder / "model.txt").read_text() == "weights\n"
    assert (folder / "sub" / "more.bin").read_bytes() == bytes(range(64))
    store.close()


@pytest.mark.parametrize("place", [V1 / "experiment"])
def test_commands_read_a_stored_experiment_of_version_1(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {file: file.read_bytes() for file in place.rglob("*") if file.is_file()}
    assert main(["results", str(place), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert [trial["last_result"]["score"] for trial in sorted(shown["trials"], key=lambda t: t["trial_id"])] == [
        0.4,
        1.4,
        2.4,
        3.4,
    ]
    assert main(["fsck", str(place), "--verify"]) == 0, capsys.readouterr().out
    assert before == {file: file.read_bytes() for file in place.rglob("*") if file.is_file()}


@pytest.mark.parametrize("name", make_formats.SCHEDULERS)
def test_version_1_state_of_every_algorithm_is_restored(name: str) -> None:
    data = (V1 / f"engine-{name}.msgpack").read_bytes()
    engine = make_formats.make_engine(name)
    engine.restore(data)
    assert [trial.results for trial in engine.state.get_trials()] == [3, 3, 3, 3] or name in (
        "async_hyperband",
        "hyperband",
    )
    # What is written now has all that was written then; fields may have been added.
    then, now = (msgspec.msgpack.decode(each) for each in (data, engine.snapshot()))
    for part in ("search", "scheduler", "stopper"):
        assert _holds(now[part], then[part]), part


def _holds(now: Any, then: Any) -> bool:
    if isinstance(then, dict):
        return isinstance(now, dict) and all(key in now and _holds(now[key], value) for key, value in then.items())
    if isinstance(then, list):
        return isinstance(now, list) and len(now) == len(then) and all(map(_holds, now, then))
    return bool(now == then or (now != now and then != then))


@pytest.mark.parametrize("name", make_formats.SCHEDULERS)
@pytest.mark.parametrize("part", ["search", "scheduler", "stopper"])
def test_newer_algorithm_state_is_refused_before_any_change(name: str, part: str) -> None:
    snapshot = msgspec.msgpack.decode((V1 / f"engine-{name}.msgpack").read_bytes())
    if not snapshot[part]:
        return  # a policy without a state
    assert snapshot[part]["version"] == 1
    snapshot[part]["version"] = 2
    engine = make_formats.make_engine(name)
    with pytest.raises(InvalidInputError, match=r"version 2.*reads up to 1.*Nothing was changed; upgrade"):
        engine.restore(msgspec.msgpack.encode(snapshot))
    assert not engine.state.trials


def test_newer_state_of_a_wrapped_algorithm_is_refused() -> None:
    snapshot = msgspec.msgpack.decode((V1 / "engine-fifo.msgpack").read_bytes())
    snapshot["stopper"]["stoppers"][1]["version"] = 7
    with pytest.raises(InvalidInputError, match=r"TrialPlateauStopper has version 7"):
        make_formats.make_engine("fifo").restore(msgspec.msgpack.encode(snapshot))


def test_every_policy_of_trialpods_own_says_its_version() -> None:
    for name in make_formats.SCHEDULERS:
        snapshot = msgspec.msgpack.decode((V1 / f"engine-{name}.msgpack").read_bytes(), type=Snapshot)
        states = [snapshot.search, snapshot.scheduler, snapshot.stopper, *snapshot.stopper["stoppers"]]
        assert all(state.get("version") == 1 for state in states if state), name


def test_a_manifest_is_read() -> None:
    found = manifest.decode((V1 / "manifest.json").read_bytes(), "m")
    assert isinstance(found, manifest.Manifest)
    assert (found.format, found.checkpoint.iteration, found.folders) == (1, 7, ["empty"])
    assert [file.path for file in found.files] == ["a.txt", "b.txt", "c.bin"]
    assert found.files[1].key == "checkpoint_000000/.trialpod-pack-0000"
    assert [piece.size for piece in found.files[2].pieces] == [6, 4]


def test_what_travels_with_a_trainable_is_read(tmp_path: Path) -> None:
    header, pickled = read_packed((V1 / "trainable.pkl").read_bytes())
    assert (header["format"], header["name"], header["objects"]) == (1, "train", ["ab" * 32])
    assert pickled == b"\x80\x05K\x07."
    (stored,) = V1.glob("object-*")
    own = Path(shutil.copy(stored, tmp_path / stored.name.removeprefix("object-")))
    assert stored_objects.read_object(own, own.name) == 7


def test_parameters_and_messages_are_read() -> None:
    params = (V1 / "params.msgpack").read_bytes()
    assert params_decoder.decode(params) == {"lr": 0.1, "big": 2**70, "name": "ü", "list": [1, None]}
    asked = msgspec.msgpack.decode((V1 / "request-assignment.msgpack").read_bytes(), type=AssignmentRequest)
    assert (asked.runner, asked.version, asked.release) == ("t/1", 1, "0.1.0")
    told = msgspec.msgpack.decode((V1 / "request-report.msgpack").read_bytes(), type=ReportRequest)
    assert told.end is not None
    assert (told.end.cause, told.end.retry, told.checkpoints[0].index) == ("failed", False, 1)


# -- newer ones --


def listing(directory: Path) -> dict[str, bytes]:
    return {str(file.relative_to(directory)): file.read_bytes() for file in directory.rglob("*") if file.is_file()}


def newer_segment(golden: Path) -> None:
    (file,) = golden.rglob("*.log")
    _make_newer(file, len(encode_segment_header(1)))


def newer_snapshot_file(golden: Path) -> None:
    (file,) = golden.rglob("*.snapshot")
    _make_newer(file, len(encode_snapshot(b"", 0)))


def _with_snapshot(golden: Path, change: Any) -> None:
    folder = golden / ".trialpod" / "journal"
    journal = Journal.open(folder, read_only=True)
    assert journal.snapshot is not None
    records = list(journal.records())
    stored = msgspec.msgpack.decode(change(journal.snapshot), type=dict[str, Any])
    (file,) = folder.glob("*.snapshot")
    file.write_bytes(encode_snapshot(msgspec.msgpack.encode(stored), journal.position - len(records)))
    journal.close()


def newer_host_snapshot(golden: Path) -> None:
    _with_snapshot(
        golden, lambda data: msgspec.msgpack.encode({**msgspec.msgpack.decode(data), "version": 2, "engine": 5})
    )


def newer_engine_snapshot(golden: Path) -> None:
    def change(data: bytes) -> bytes:
        stored = msgspec.msgpack.decode(data)
        return msgspec.msgpack.encode({**stored, "engine": {"version": 2, "all": "new"}})

    _with_snapshot(golden, change)


def newer_experiment_file(golden: Path) -> None:
    file = golden / ".trialpod" / "experiment.json"
    file.write_text(json.dumps({"version": 2, "name": ["of", "another", "type"]}))


def newer_snapshot_beside_an_older_one(golden: Path) -> None:
    folder = golden / ".trialpod" / "journal"
    older = {file: file.read_bytes() for file in folder.iterdir()}
    host = host_of(golden)
    host.write_snapshot()
    host.close()
    (newest,) = folder.glob("*.snapshot")
    for file, data in older.items():  # its process died before it removed them
        file.write_bytes(data)
    _make_newer(newest, len(encode_snapshot(b"", 0)))


def newer_snapshot_behind_all_records(golden: Path) -> None:
    folder = golden / ".trialpod" / "journal"
    records = list(Journal.open(folder, read_only=True).records())
    for file in folder.iterdir():
        file.unlink()
    journal = Journal.open(folder)
    for record in records:
        journal.append(record)
    older = {file: file.read_bytes() for file in folder.iterdir()}
    journal.write_snapshot(b"")
    journal.close()
    for file, data in older.items():  # its process died before it removed them
        file.write_bytes(data)
    newest = folder / "00000002.snapshot"
    _make_newer(newest, len(encode_snapshot(b"", 0)))


def newer_last_segment(golden: Path) -> None:
    journal = Journal.open(golden / ".trialpod" / "journal")
    journal.write_snapshot(b"")
    journal.close()
    *_, newest = sorted((golden / ".trialpod" / "journal").glob("*.log"))
    _make_newer(newest, len(encode_segment_header(1)))


def newer_segment_before_a_damaged_snapshot(golden: Path) -> None:
    folder = golden / ".trialpod" / "journal"
    newer_snapshot_beside_an_older_one(golden)
    *_, newest = sorted(folder.glob("*.snapshot"))
    newest.write_bytes(newest.read_bytes()[:-1])
    _make_newer(newest, len(encode_snapshot(b"", 0)), version=1)
    segment, *_ = sorted(folder.glob("*.log"))
    _make_newer(segment, len(encode_segment_header(1)))


def _make_newer(file: Path, header_bytes: int, version: int = 2) -> None:
    data = bytearray(file.read_bytes())
    struct.pack_into("<I", data, 8, version)
    struct.pack_into("<I", data, header_bytes - 4, zlib.crc32(data[: header_bytes - 4]))
    file.write_bytes(data)


@pytest.mark.parametrize(
    "make",
    [
        newer_segment,
        newer_snapshot_file,
        newer_snapshot_beside_an_older_one,
        newer_snapshot_behind_all_records,
        newer_last_segment,
        newer_segment_before_a_damaged_snapshot,
        newer_host_snapshot,
        newer_engine_snapshot,
        newer_experiment_file,
    ],
    ids=lambda make: make.__name__,
)
def test_what_a_newer_trialpod_stored_is_refused_and_left_alone(
    golden: Path, make: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    make(golden)
    before = listing(golden)
    with pytest.raises((JournalError, InvalidInputError), match=r"(?i)version 2.*nothing was changed; upgrade"):
        opened(golden)
    for command in ("results", "fsck"):
        assert main([command, str(golden)]) in (1, 2)
        captured = capsys.readouterr()
        said = (captured.out + captured.err).lower()
        assert "nothing was changed" in said
        assert "grade trialpod" in said or "update trialpod" in said
        assert "Traceback" not in captured.err
    assert listing(golden) == before


def test_newer_manifest_trainable_or_parameter_is_refused(tmp_path: Path) -> None:
    body = json.loads((V1 / "manifest.json").read_bytes())["manifest"] | {"format": 4}
    text = msgspec.json.encode(body)
    with pytest.raises(CheckpointError, match=r"format version 4.*reads version 1.*upgrade trialpod"):
        manifest.decode(b'{"manifest":%s,"crc32":%d}' % (text, zlib.crc32(text)), "m")
    with pytest.raises(TrainableError, match=r"version 2.*reads version 1.*upgrade"):
        read_packed(b'{"format":2}\nxx')
    newer = b'{"format":2,"lengths":"unknown"}\nxx'
    file = tmp_path / hashlib.sha256(newer).hexdigest()
    file.write_bytes(newer)
    with pytest.raises(TrainableError, match="newer version of trialpod: format 2"):
        stored_objects.read_object(file, file.name)
    with pytest.raises(InvalidInputError, match=r"form 9.*use the same version"):
        params_decoder.decode(msgspec.msgpack.encode({"x": msgspec.msgpack.Ext(9, b"")}))


def test_a_record_that_is_not_known_is_refused_with_the_remedy() -> None:
    with pytest.raises(JournalError, match="upgrade trialpod"):
        decode_record(msgspec.msgpack.encode([1.0, {"type": "Teleported", "trial_id": "t"}, None]))


def test_fields_that_are_not_known_are_left_alone() -> None:
    event = {"type": "StopRequested", "trial_id": "t", "why": "a newer field"}
    assert decode_record(msgspec.msgpack.encode([1.0, event, {"speed": 3}, {}, "more"])).now == 1.0
    snapshot = encode(EngineSnapshot(engine=msgspec.Raw(b"\x80")))
    added = msgspec.msgpack.encode({**msgspec.msgpack.decode(snapshot), "added": 1})
    assert decode_snapshot(added).version == 1
    assert encode_segment_header(1)  # whose form is fixed, so that every version can read the number of the format


def test_older_and_newer_formats_have_different_remedies() -> None:
    assert format_mismatch("the file", 3, 3) is None
    older, newer = format_mismatch("the file", 2, 3), format_mismatch("the file", 4, 3)
    assert older is not None
    assert newer is not None
    assert "version 2, and this trialpod reads version 3. Nothing was changed; read it with the release" in older
    assert "Nothing was changed; upgrade trialpod" in newer
