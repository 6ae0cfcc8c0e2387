from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from trialpod.errors import InvalidInputError
from trialpod_operator.api.loader import MAX_BYTES, check_text, hint_of_file, load_file, load_manifests, read_text
from trialpod_operator.api.problems import InvalidManifestError

HEAD = "apiVersion: trialpod.dev/v1alpha1\nkind: TuneExperiment\n"
GOOD = HEAD + 'metadata: {name: a}\nspec: {trainable: {entrypoint: "a:b"}}\n'


def test_a_file_with_two_experiments_gives_both_in_order() -> None:
    text = GOOD + "---\n" + GOOD.replace("name: a", "name: b")
    assert [each.name for each in load_manifests(text, "m.yaml")] == ["a", "b"]


def test_the_problems_of_all_documents_come_together() -> None:
    bad = GOOD.replace("spec:", "sepc:")
    with pytest.raises(InvalidManifestError) as caught:
        load_manifests(f"{bad}---\n{bad}", "m.yaml")
    assert [problem.line for problem in caught.value.problems] == [1, 4, 6, 9]
    assert str(caught.value).startswith("m.yaml: 4 problems\n  line 1: ")


def test_documents_of_other_kinds_are_kept_aside() -> None:
    report = check_text(GOOD + "---\napiVersion: v1\nkind: Secret\n", "m.yaml")
    assert report.problems == []
    assert [document.value["kind"] for document in report.others] == ["Secret"]


@pytest.mark.parametrize("text", ["", "# nothing\n", "---\n---\n"])
def test_an_empty_file_is_a_problem(text: str) -> None:
    (problem,) = check_text(text, "m.yaml").problems
    assert "it is empty" in problem.message


def test_what_the_api_server_would_not_take_is_not_read() -> None:
    (problem,) = check_text("#" * (MAX_BYTES + 1), "m.yaml").problems
    assert "larger than" in problem.message


def test_a_file_is_read_from_its_path_or_the_standard_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "m.yaml"
    file.write_bytes(b"\xef\xbb\xbf" + GOOD.encode())
    assert load_file(str(file))[0].name == "a"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(GOOD.encode())))
    assert load_file("-")[0].name == "a"


def test_an_unreadable_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="No such file"):
        load_file(str(tmp_path / "none.yaml"))
    with pytest.raises(InvalidInputError, match="directory"):
        load_file(str(tmp_path))
    (tmp_path / "latin.yaml").write_bytes(b"a: 1\nb: \xe9\n")
    with pytest.raises(InvalidInputError, match="line 2 is not UTF-8"):
        read_text(str(tmp_path / "latin.yaml"))
    with pytest.raises(InvalidInputError, match="cannot be read"):
        read_text("a\0b")


@pytest.mark.parametrize(
    ("given", "guess"),
    [
        ("expriment.yaml", "experiment.yaml"),
        ("experiment.yml", "experiment.yaml"),
        ("experiment", "experiment.yaml"),
        ("trian.py", "train.py"),
        ("nothing/experiment.yaml", ""),
        ("zzz", ""),
    ],
)
def test_a_misspelt_file_comes_with_the_nearest_one(tmp_path: Path, given: str, guess: str) -> None:
    for name in ("experiment.yaml", "train.py", "data.csv"):
        (tmp_path / name).write_text("")
    hint = f"; did you mean {tmp_path / guess}?" if guess else ""
    assert hint_of_file(str(tmp_path / given)) == hint
    with pytest.raises(InvalidInputError) as error:
        read_text(str(tmp_path / given))
    assert str(error.value).endswith(f"No such file or directory{hint}")
