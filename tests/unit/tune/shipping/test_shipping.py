from __future__ import annotations

import hashlib
import json
import os
import pickle
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from trialpod.errors import TrainableError
from trialpod.protocol.packed import read_packed
from trialpod.tune.shipping.package import (
    NotPicklableError,
    import_path,
    pack_trainable,
    packed_trainable,
    unpickled,
    write_atomically,
    write_trainable,
)


def test_a_closure_travels_with_what_it_holds(tmp_path: Path) -> None:
    factor = 3

    def train(config: dict[str, Any]) -> int:
        return factor * int(config["x"])

    ref = pack_trainable(train, tmp_path)
    assert ref.pickle == str(tmp_path / "trainable.pkl")
    data = Path(ref.pickle).read_bytes()
    assert ref.sha256 == hashlib.sha256(data).hexdigest()
    header, body = read_packed(data)
    assert header["name"] == "train"
    assert pickle.loads(body)({"x": 2}) == 6


def test_file_follows_the_code(tmp_path: Path) -> None:
    first = packed_trainable(lambda config: 1, name="a")
    second = packed_trainable(lambda config: 2, name="a")
    ref = write_trainable(first, tmp_path)
    assert write_trainable(first, tmp_path) == ref
    other = write_trainable(second, tmp_path)
    assert other.pickle is not None
    assert other.pickle != ref.pickle
    assert Path(other.pickle).read_bytes() == second
    assert Path(str(ref.pickle)).read_bytes() == first
    os.utime(str(ref.pickle), (1.0, 1.0))
    assert write_trainable(first, tmp_path) == ref
    newest = max(tmp_path.glob("trainable*.pkl"), key=lambda file: file.stat().st_mtime_ns)
    assert str(newest) == ref.pickle


def test_unpicklable_is_explained(tmp_path: Path) -> None:
    client = threading.Lock()

    def train(config: dict[str, Any]) -> None:
        print(client)

    with pytest.raises(NotPicklableError) as caught:
        pack_trainable(train, tmp_path)
    assert "the Trainable train cannot be sent to the trials" in str(caught.value)
    assert "\n  - closure variable 'client' of train: _thread.lock\n" in str(caught.value)
    assert "Create it inside the Trainable" in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_unimportable_module_travels_by_value(tmp_path: Path) -> None:
    module = ModuleType("only_in_this_process")
    sys.modules[module.__name__] = module
    try:
        exec("def train(config):\n    return 'here'", module.__dict__)
        data = packed_trainable(module.train)
    finally:
        del sys.modules[module.__name__]
    assert unpickled(data, "it")({}) == "here"


def test_a_script_that_ran_as_main_is_loaded_in_another_process(tmp_path: Path) -> None:
    (tmp_path / "helper.py").write_text("def double(x):\n    return 2 * x\n")
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(
            """
            import json, sys
            from pathlib import Path
            from helper import double
            from trialpod.tune.shipping.package import pack_trainable

            OFFSET = 1

            class Model:
                def value(self, x):
                    return double(x) + OFFSET

            def train(config):
                return Model().value(config["x"])

            if __name__ == "__main__":
                ref = pack_trainable(train, Path(sys.argv[1]))
                print(json.dumps({"pickle": ref.pickle, "path": ref.path}))
            """
        )
    )
    made = subprocess.run([sys.executable, str(script), str(tmp_path)], capture_output=True, text=True, check=True)
    ref = json.loads(made.stdout)
    assert str(tmp_path) in ref["path"]
    loader = (
        "import sys; sys.path[:0] = sys.argv[2:]; from trialpod.tune.shipping.package import unpickled; "
        "print(unpickled(open(sys.argv[1], 'rb').read(), 'it')({'x': 4}))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", loader, ref["pickle"], *ref["path"]],
        capture_output=True,
        text=True,
        check=True,
        cwd="/",
    )
    assert ran.stdout == "9\n"


def test_a_damaged_pickle_says_where_it_is(tmp_path: Path) -> None:
    data = packed_trainable(lambda config: 1, name="a")
    with pytest.raises(TrainableError, match="the file cannot be read"):
        unpickled(data[:-10], "the file")


def test_import_path_has_the_scripts_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    path = import_path()
    assert str(tmp_path) in path
    assert not [entry for entry in path if entry.endswith(("site-packages", "lib-dynload"))]


def test_writing_is_atomic(tmp_path: Path) -> None:
    file = tmp_path / "f"
    write_atomically(file, b"one")
    write_atomically(file, b"two")
    assert file.read_bytes() == b"two"
    assert os.listdir(tmp_path) == ["f"]
