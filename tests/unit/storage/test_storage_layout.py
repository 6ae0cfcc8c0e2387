from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trialpod.storage.layout import checkpoint_index, checkpoint_name, trial_dirname

CREATED = 1700000000.0  # 2023-11-14 22:13:20 UTC


def test_trial_folder_is_named_by_trainable_id_tag_and_time():
    assert trial_dirname("train", "3f2a1_00002", "2_lr=0.0132", CREATED) == (
        "train_3f2a1_00002_2_lr=0.0132_2023-11-14_22-13-20"
    )


def test_the_identity_is_cut_to_130_characters_before_the_date():
    name = trial_dirname("train", "id", "x" * 500, CREATED)
    assert name == ("train_id_" + "x" * 500)[:130] + "_2023-11-14_22-13-20"


def test_reserved_characters_become_underscores():
    assert trial_dirname("t", "i", 'a/b(c)<d>:"e\\f|g?h*\n\0', CREATED).startswith("t_i_a_b_c__d___e_f_g_h____20")


def test_wide_characters_are_cut_to_what_a_file_system_takes():
    name = trial_dirname("t", "i", "\U0001f600" * 200, CREATED)
    assert len(name.encode()) <= 255
    assert name.endswith("\U0001f600_2023-11-14_22-13-20")


@given(st.text(max_size=200), st.text(max_size=200), st.text(), st.floats(min_value=0, max_value=4e9))
def test_a_trial_directory_name_is_one_valid_path_component(trainable, trial_id, tag, created_at):
    name = trial_dirname(trainable, trial_id, tag, created_at)
    assert 0 < len(name.encode("utf-8")) <= 255
    assert not set(name) & set('/()<>:"\\|?*\0\n')
    assert not name.startswith(".")


def test_surrogates_do_not_reach_the_file_system():
    trial_dirname("t\ud800", "i", "x", CREATED).encode()


@given(st.integers(min_value=0, max_value=10**9))
def test_checkpoint_names_and_indices_correspond(index):
    assert checkpoint_index(checkpoint_name(index)) == index


@pytest.mark.parametrize(
    "name",
    [
        "checkpoint_12",
        "checkpoint_0000012",
        "checkpoint_00000x",
        "checkpoint_\u0660\u0660\u0660\u0660\u0660\u0661",
        "x",
    ],
)
def test_other_names_are_not_taken_for_checkpoints(name):
    assert checkpoint_index(name) is None


def test_a_negative_index_is_refused():
    with pytest.raises(ValueError, match="0 or more"):
        checkpoint_name(-1)
