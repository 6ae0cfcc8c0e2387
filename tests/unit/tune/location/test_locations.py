from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from trialpod.errors import InvalidInputError
from trialpod.storage.directory import DirectoryStorage
from trialpod.tune import RunConfig, Tuner
from trialpod.tune.location import locations
from trialpod.tune.location.locations import Location, experiment_location, resolve

URI = "s3://bucket/some/prefix"


def train(config: dict[str, Any]) -> None: ...


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in the role of the bucket, and a working directory."""
    monkeypatch.setenv("TRIALPOD_WORK_DIR", str(tmp_path / "work"))
    monkeypatch.setattr(
        locations, "open_storage", lambda uri: DirectoryStorage(tmp_path / uri.replace("s3://", "remote/"))
    )
    return tmp_path / "remote" / "bucket"


def tuner(backend: Any, **run: Any) -> Tuner:
    return Tuner(train, run_config=RunConfig(name="exp", storage_path=URI, **run), backend=backend)


def test_paths_file_uris_and_buckets_are_locations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    assert resolve("~/x") == Location("/home/someone/x")
    assert resolve("file:///data/a%20b") == Location("/data/a b")
    assert resolve(f"{URI}/") == Location("/home/someone/trialpod-results", URI)
    assert experiment_location(f"{URI}/exp") == Location("/home/someone/trialpod-results/exp", f"{URI}/exp")
    monkeypatch.setenv("TRIALPOD_WORK_DIR", str(tmp_path))
    assert resolve(URI).directory == str(tmp_path)


def test_another_scheme_is_refused_with_those_that_are_installed() -> None:
    with pytest.raises(InvalidInputError, match=r"no storage for gs:// is installed; .* file://, s3://\. Install"):
        resolve("gs://bucket/x")
    with pytest.raises(InvalidInputError, match="names no experiment"):
        experiment_location("s3://bucket")


def test_tuner_works_locally_for_a_remote_storage(backend: Any, bucket: Path, tmp_path: Path) -> None:
    tuner(backend).fit()
    (request,) = backend.requests
    assert request.storage_uri == f"{URI}/exp"
    assert request.directory == str(tmp_path / "work" / "exp")
    assert Path(request.directory, "tuner.pkl").is_file()


def test_a_tuner_is_restored_from_what_the_bucket_has(backend: Any, bucket: Path, tmp_path: Path) -> None:
    tuner(backend).fit()
    kept = bucket / "some" / "prefix" / "exp"
    kept.mkdir(parents=True)
    Path(tmp_path, "work", "exp", "tuner.pkl").rename(kept / "tuner.pkl")
    backend.outcomes[f"{URI}/exp"] = backend.outcomes[str(tmp_path / "work" / "exp")]
    assert Tuner.can_restore(f"{URI}/exp", backend=backend)
    assert not Tuner.can_restore(f"{URI}/other", backend=backend)

    restored = Tuner.restore(f"{URI}/exp", train, backend=backend)
    assert len(restored.get_results()) == 1
    restored.fit()
    assert backend.requests[-1].resume
    assert backend.requests[-1].storage_uri == f"{URI}/exp"
    tuner(backend).fit()
    assert backend.requests[-1].resume
    with pytest.raises(InvalidInputError, match=f"{URI}/other.*no tuner.pkl there"):
        Tuner.restore(f"{URI}/other", train, backend=backend)


def test_the_directory_of_another_experiment_is_not_touched(backend: Any, bucket: Path, tmp_path: Path) -> None:
    ours = tmp_path / "work" / "exp" / ".trialpod"
    ours.mkdir(parents=True)
    (ours / "experiment.json").write_text(json.dumps({"version": 1, "name": "exp"}))
    with pytest.raises(InvalidInputError, match=r"kept only there, not in s3://.*TRIALPOD_WORK_DIR"):
        tuner(backend).fit()
    assert not (tmp_path / "work" / "exp" / "tuner.pkl").exists()
    assert backend.requests == []


def test_adding_to_a_bucket_takes_the_next_free_name(backend: Any, bucket: Path, tmp_path: Path) -> None:
    backend.resolve_existing = lambda _request, _if_exists: pytest.fail("nothing can be renamed in a bucket")
    for _ in range(3):
        tuner(backend, if_exists="add").fit()
        request = backend.requests[-1]
        backend.outcomes[request.storage_uri] = backend.outcomes[request.directory]
    assert [request.storage_uri for request in backend.requests] == [f"{URI}/exp", f"{URI}/exp_2", f"{URI}/exp_3"]
    assert [request.resume for request in backend.requests] == [False] * 3
