from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from trialpod.tune import DurableTrainable, Trainable
from trialpod.tune.trainable.checks import inspect_trainable


class Old(Trainable):
    """The first generation of the class API."""

    def _setup(self, config: dict[str, Any]) -> None:
        self.n, self.logged, self.stopped = config.get("start", 0), 0, False

    def _train(self) -> dict[str, Any]:
        self.n += 1
        return {"n": self.n, "done": self.n >= 5}

    def _save(self, checkpoint_dir: str) -> str:
        path = os.path.join(checkpoint_dir, "my/check/point")
        os.makedirs(os.path.dirname(path))
        Path(path).write_text(str(self.n))
        return path

    def _restore(self, checkpoint: str) -> None:
        self.restored_from = checkpoint
        self.n = int(Path(checkpoint).read_text())

    def _log_result(self, result: dict[str, Any]) -> None:
        self.logged += 1

    def _stop(self) -> None:
        self.stopped = True


class Child(Old):
    def _setup(self, config: dict[str, Any]) -> None:
        super()._setup(config)
        self.n += 100


def test_a_class_of_the_first_generation_runs() -> None:
    old = Old({"start": 1})
    assert old.train()["n"] == 2
    assert old.logged == 1
    old.stop()
    assert old.stopped
    facts = inspect_trainable(Old)
    assert (facts.saves, facts.resets) == (True, False)


def test_path_below_the_folder_is_found_again(tmp_path: Path) -> None:
    first = Old()
    first.train()
    path = first.save(str(tmp_path / "c"))
    assert path == str(tmp_path / "c" / "my/check/point")
    (tmp_path / "c").rename(tmp_path / "moved")
    for given in (str(tmp_path / "moved"), str(tmp_path / "moved/my/check/point")):
        second = Old()
        second.restore(given)
        assert second.restored_from == str(tmp_path / "moved/my/check/point")
        assert second.train()["training_iteration"] == 2


def test_objects_travel_as_bytes_with_another_prefix() -> None:
    first, second = Old(), Old()
    first.train()
    second.restore_from_object(first.save_to_object())
    assert second.n == 1
    assert "restore_from_object" in second.restored_from


def test_a_child_overrides_the_old_names() -> None:
    assert Child({"start": 1}).train()["n"] == 102


def test_a_class_of_today_may_have_helpers_of_the_old_names() -> None:
    class Today(Trainable):
        def step(self) -> dict[str, Any]:
            return self._train()

        def _train(self) -> dict[str, Any]:
            return {"n": 1}

        def _save(self) -> None:
            raise AssertionError("not ours to call")

    assert Today().train()["n"] == 1
    assert not inspect_trainable(Today).saves


def test_durable_trainable_copies_and_restores(tmp_path: Path) -> None:
    class Durable(DurableTrainable):
        _setup, _train, _save, _restore = Old._setup, Old._train, Old._save, Old._restore

    first = Durable(f"file://{tmp_path}/remote", {"start": 3})
    first.train()
    assert Durable({"start": 7}).storage_client is None
    path = str(tmp_path / "local" / "checkpoint_1")
    first.save(path)
    assert (tmp_path / "remote/checkpoint_1/my/check/point").read_text() == "4"
    assert first.storage_client is not None
    assert first.storage_client.read("checkpoint_1/my/check/point") == b"4"
    (tmp_path / "local").rename(tmp_path / "lost")
    second = Durable(f"file://{tmp_path}/remote")
    second.restore(path)
    assert second.n == 4
    first.delete_checkpoint(path)
    assert not (tmp_path / "remote/checkpoint_1").exists()
    assert Durable({"start": 7}).n == 7


class TestOnlyCheckpointMethods:
    """The first documentation's own example: a class with ``_save`` and ``_restore`` and nothing else."""

    def test_save_and_restore_as_objects(self) -> None:
        seen: list[str] = []

        class Example(Trainable):
            def _save(self, checkpoint_path: str) -> str:
                seen.append(checkpoint_path)
                return os.path.join(checkpoint_path, "my/check/point")

            def _restore(self, checkpoint: str) -> None:
                seen.append(checkpoint)

        trainer = Example()
        trainer.restore_from_object(trainer.save_to_object())
        saved, restored = seen
        assert saved.endswith("checkpoint_0")
        assert restored.endswith("checkpoint_0/my/check/point")

    def test_helpers_of_a_class_of_today_stay_helpers(self) -> None:
        class Base(Trainable):
            def _save(self, name: str) -> str:
                return f"helper {name}"

        class Today(Base):
            def step(self) -> dict[str, Any]:
                return {"said": self._save("x")}

        assert Today().train()["said"] == "helper x"
        assert not inspect_trainable(Today).saves
