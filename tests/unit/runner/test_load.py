from __future__ import annotations

import pickle
import sys
import tempfile
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from trialpod.errors import TrainableError
from trialpod.protocol.messages import TrainableRef
from trialpod.protocol.packed import pack
from trialpod.runner.load import load_trainable, preload
from trialpod.tune.trainable.trainable import Trainable


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "path", sys.path[:])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    return tmp_path


def test_an_entry_point_is_found_below_the_given_folders(folder: Path) -> None:
    (folder / "load_case_a.py").write_text(
        "def train(config): return config\nclass Box:\n    train = staticmethod(train)\n"
    )
    ref = TrainableRef(entrypoint="load_case_a:train", path=[str(folder)])
    function: Any = load_trainable(ref)
    assert function({"x": 1}) == {"x": 1}
    nested: Any = load_trainable(TrainableRef(entrypoint="load_case_a:Box.train", path=[str(folder)]))
    assert nested is function


def test_the_same_reference_is_loaded_once_per_process(folder: Path) -> None:
    (folder / "load_case_b.py").write_text("def train(config): ...\n")
    ref = TrainableRef(entrypoint="load_case_b:train", path=[str(folder)])
    assert preload(ref) == ""
    (folder / "load_case_b.py").write_text("1 / 0\n")
    assert callable(load_trainable(ref))


def test_a_failed_preload_says_why_and_raises_nothing() -> None:
    assert "no module 'surely_not_there'" in preload(TrainableRef(entrypoint="surely_not_there:x"))


def test_an_import_that_fails_names_the_users_line(folder: Path) -> None:
    (folder / "load_case_c.py").write_text("x = 1\ny = {}['lr']\n")
    with pytest.raises(TrainableError, match=r"KeyError: 'lr' \(load_case_c.py:2, in <module>\)"):
        load_trainable(TrainableRef(entrypoint="load_case_c:f", path=[str(folder)]))


def test_a_misspelt_attribute_is_answered_with_the_nearest(folder: Path) -> None:
    (folder / "load_case_d.py").write_text("def train_digits(config): ...\n")
    with pytest.raises(TrainableError, match="has no attribute 'train_digit'; did you mean 'train_digits'"):
        load_trainable(TrainableRef(entrypoint="load_case_d:train_digit", path=[str(folder)]))


def test_inline_source_prefers_its_only_trainable_class() -> None:
    source = """
from trialpod.tune.trainable.trainable import Trainable
def helper(x): ...
class Base(Trainable): ...
class Mine(Base):
    def step(self): return {}
"""
    found = load_trainable(TrainableRef(source=source))
    assert isinstance(found, type)
    assert issubclass(found, Trainable)
    assert found.__name__ == "Mine"


def test_classes_of_inline_source_can_be_pickled() -> None:
    found: Any = load_trainable(TrainableRef(source="class State: ...\ndef f(c): return State()\n", attribute="f"))
    assert type(pickle.loads(pickle.dumps(found({})))).__name__ == "State"


def test_a_missing_package_has_the_name_that_pip_knows(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn", None)
    (folder / "needs_sklearn.py").write_text("import sklearn.svm\ndef train(config): ...\n")
    with pytest.raises(TrainableError, match=r"install 'scikit-learn' \(in a cluster: in the image\)"):
        load_trainable(TrainableRef(entrypoint="needs_sklearn:train", path=[str(folder)]))


def test_inline_source_ignores_imported_functions() -> None:
    found: Any = load_trainable(TrainableRef(source="from os.path import join\ndef mine(config): ...\n"))
    assert found.__name__ == "mine"


def test_an_unknown_attribute_of_inline_source_is_named() -> None:
    with pytest.raises(TrainableError, match="did you mean 'mine'"):
        load_trainable(TrainableRef(source="def mine(c): ...", attribute="mien"))


def test_a_packed_function_is_loaded(tmp_path: Path) -> None:
    file = tmp_path / "f.pkl"
    file.write_bytes(pack(cloudpickle.dumps(lambda config: 7), name="f", cloudpickle="3"))
    found: Any = load_trainable(TrainableRef(pickle=str(file)))
    assert found({}) == 7


def test_pickle_of_another_python_is_refused_unopened(tmp_path: Path) -> None:
    file = tmp_path / "f.pkl"
    file.write_bytes(b'{"format":1,"python":"3.9.1","cloudpickle":"3","name":"f"}\nnot even a pickle')
    with pytest.raises(TrainableError, match=r"packed by Python 3.9.1"):
        load_trainable(TrainableRef(pickle=str(file)))


def test_missing_local_module_error_lists_the_folder(folder: Path) -> None:
    (folder / "train_digits.py").touch()  # as the key of a ConfigMap
    (folder / "notes.txt").touch()
    with pytest.raises(
        TrainableError, match=r"which has train_digits.py; did you mean 'train_digits'\?; put its folder"
    ):
        load_trainable(TrainableRef(entrypoint="train_digts:train", path=[str(folder)]))
    with pytest.raises(TrainableError, match=rf"no module 'surely_not_there' \({folder}/none cannot be read\)"):
        load_trainable(TrainableRef(entrypoint="surely_not_there:train", path=[f"{folder}/none"]))


def test_changed_pickle_is_refused_unopened(tmp_path: Path) -> None:
    file = tmp_path / "f.pkl"
    file.write_bytes(b"not even a pickle")
    with pytest.raises(TrainableError, match="was changed after it had been submitted"):
        load_trainable(TrainableRef(pickle=f"file://{file}", sha256="0" * 64))


def test_files_that_travel_go_before_folders(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setattr(sys, "path", list(sys.path))
    (folder / "pinned.py").write_text("def train(config):\n    return 1\n")
    modules = {
        "pinned_pkg/pinned.py": "def train(config):\n    return 2\n",
        "pinned.py": "def train(config): return 3\n",
    }
    path = [str(folder)]
    nested = load_trainable(TrainableRef(entrypoint="pinned_pkg.pinned:train", path=path, modules=modules))
    assert nested({}) == 2
    assert load_trainable(TrainableRef(entrypoint="pinned:train", path=path, modules=modules))({}) == 3
