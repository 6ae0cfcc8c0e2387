"""Storages of other packages: one registration, and every part of the product takes the scheme."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import msgspec
import pytest

from trialpod import tune
from trialpod.errors import StorageError
from trialpod.storage import registry
from trialpod.storage.directory import DirectoryStorage
from trialpod.storage.registry import UnknownSchemeError, local_folder, open_storage, schemes, storage_class
from trialpod.storage.s3.storage import S3Storage
from trialpod_operator.api.models import TuneExperiment
from trialpod_operator.cluster.storage_access import StorageProblemError, StorageRules, with_storage

PLUG_IN = '''
    """A storage of another package: everything in one folder of this machine, named by a variable."""
    import os
    from trialpod.storage.directory import DirectoryStorage

    class MemStorage(DirectoryStorage):
        is_shared = has_conditional_writes = True
        example = "mem://place"

        @classmethod
        def open(cls, uri, options=None, *, check=True):
            return cls(os.path.join(os.environ["MEM_ROOT"], uri.removeprefix("mem://")))

        @classmethod
        def folder_of(cls, uri):
            return None

        @property
        def uri(self):
            return "mem://" + os.path.relpath(self._root, os.environ["MEM_ROOT"])

        def local_path(self, key):
            return None

        def sub(self, prefix):
            return MemStorage(os.path.join(self._root, prefix))

        def parent(self):
            return MemStorage(os.path.dirname(self._root))
'''


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on the path with the plug-in and the metadata by which its package registers it."""
    folder = tmp_path / "site"
    metadata = folder / "mem_storage-1.dist-info"
    metadata.mkdir(parents=True)
    (folder / "mem_storage.py").write_text(dedent(PLUG_IN))
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: mem-storage\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text("[trialpod.storages]\nmem = mem_storage:MemStorage\n")
    monkeypatch.setenv("MEM_ROOT", str(tmp_path / "root"))
    monkeypatch.setenv("PYTHONPATH", str(folder))  # for the processes of trials
    monkeypatch.syspath_prepend(folder)
    importlib.invalidate_caches()
    monkeypatch.setattr(registry, "_loaded", {})
    yield folder
    sys.modules.pop("mem_storage", None)


class TestBuiltIn:
    def test_folders_and_s3_need_no_registration(self) -> None:
        assert storage_class("a/b") is storage_class("file:///a") is DirectoryStorage
        assert storage_class("S3://bucket") is S3Storage
        assert local_folder("s3://bucket") is None

    def test_unknown_scheme_names_what_is_installed(self) -> None:
        with pytest.raises(UnknownSchemeError, match=r"no storage for mem:// .* file://, s3://.*'trialpod.storages'"):
            open_storage("mem://a")


class TestPlugIn:
    def test_one_registration_opens_and_lists_it(self, site: Path) -> None:
        assert schemes() == ["file", "mem", "s3"]
        open_storage("mem://a").write("b", b"value")
        assert open_storage("mem://a").sub("c").parent().read("b") == b"value"
        assert local_folder("mem://a") is None

    def test_broken_plug_in_is_named(self, site: Path) -> None:
        (site / "mem_storage.py").write_text("import nothing_of_this_name\n")
        with pytest.raises(StorageError, match=r"plug-in for mem:// cannot be imported: .*nothing_of_this_name"):
            open_storage("mem://a")

    def test_tuner_keeps_and_restores_an_experiment_there(
        self, site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("TRIALPOD_WORK_DIR", str(tmp_path / "work"))
        script = tmp_path / "script.py"
        script.write_text(
            dedent(
                """
                import sys, tempfile
                from trialpod import tune

                def train(config):
                    with tempfile.TemporaryDirectory() as folder:
                        open(folder + "/model", "w").write("trained")
                        tune.report({"loss": config["x"]}, checkpoint=tune.Checkpoint.from_directory(folder))

                if __name__ == "__main__":
                    tuner = tune.Tuner(
                        train,
                        param_space={"x": tune.grid_search([1, 2])},
                        tune_config=tune.TuneConfig(metric="loss", mode="min"),
                        run_config=tune.RunConfig(name="exp", storage_path="mem://place"),
                    )
                    print(tuner.fit().get_best_result().metrics["loss"])
                """
            )
        )
        done = subprocess.run([sys.executable, script], stdout=subprocess.PIPE, text=True, timeout=60, check=True)
        assert done.stdout.strip().endswith("1")
        assert open_storage("mem://place/exp").exists(".trialpod/experiment.json")
        results = tune.Tuner.restore("mem://place/exp", trainable=None).get_results()
        best = results.get_best_result("loss", "min")
        assert best.checkpoint is not None
        with best.checkpoint.as_directory() as folder:
            assert Path(folder, "model").read_text() == "trained"


class TestCluster:
    def test_capabilities_decide_what_a_cluster_takes(self, site: Path) -> None:
        taken = with_storage(at("mem://place"), "team", StorageRules()).spec.storage
        assert taken is not None
        assert taken.uri == "mem://place"

    @pytest.mark.parametrize(
        ("old", "new", "reason"),
        [
            ("is_shared = has", "has", "StorageNotShared"),
            ("= has_conditional_writes = True", "= True; has_conditional_writes = False", "StorageUnsupported"),
        ],
    )
    def test_storage_without_a_capability_is_refused(self, site: Path, old: str, new: str, reason: str) -> None:
        text = (site / "mem_storage.py").read_text()
        assert old in text
        (site / "mem_storage.py").write_text(text.replace(old, new))
        with pytest.raises(StorageProblemError) as raised:
            with_storage(at("mem://place"), "team", StorageRules())
        assert raised.value.reason == reason

    def test_scheme_that_is_not_installed_is_refused(self) -> None:
        with pytest.raises(StorageProblemError, match="no storage for mem:// is installed"):
            with_storage(at("mem://place"), "team", StorageRules())


def at(uri: str) -> TuneExperiment:
    spec = {"trainable": {"entrypoint": "a:b"}, "searchSpace": {"x": 1}, "storage": {"uri": uri}}
    return msgspec.convert(
        {
            "apiVersion": "trialpod.dev/v1alpha1",
            "kind": "TuneExperiment",
            "metadata": {"name": "exp"},
            "spec": spec,
        },
        TuneExperiment,
    )
