"""The history of exploits in Ray's file format."""

from __future__ import annotations

import json

from trialpod.tune.schedulers.pbt_policy import PolicyLog, plain


def line(target: str, source: str, step: int) -> list[object]:
    return [target, source, step, step, {"lr": step}, {"lr": step + 1}]


def test_a_trial_has_its_sources_lines_before_its_own() -> None:
    log = PolicyLog()
    log.add("b", "a", line("b", "a", 1))
    log.add("c", "b", line("c", "b", 2))
    log.add("b", "d", line("b", "d", 3))
    files = log.files()
    assert [json.loads(row)[2] for row in files["pbt_global.txt"]] == [1, 2, 3]
    assert [json.loads(row)[2] for row in files["pbt_policy_c.txt"]] == [1, 2]
    assert [json.loads(row)[2] for row in files["pbt_policy_b.txt"]] == [3]  # what it had before was given up


def test_only_files_that_changed_are_returned() -> None:
    log = PolicyLog()
    log.add("b", "a", line("b", "a", 1))
    log.add("c", "a", line("c", "a", 2))
    assert set(log.files(1)) == {"pbt_global.txt", "pbt_policy_c.txt"}
    assert log.files(2) == {}


def test_the_log_survives_json() -> None:
    log, restored = PolicyLog(), PolicyLog()
    log.add("b", "a", line("b", "a", 1))
    log.add("c", "b", line("c", "b", 2))
    restored.set_state(json.loads(json.dumps(log.get_state())))
    assert restored.files() == log.files()


def test_values_without_a_json_form_become_text() -> None:
    assert plain({"x": {1}, "y": object}) == {"x": [1], "y": "object"}
