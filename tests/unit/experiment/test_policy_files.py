from __future__ import annotations

from pathlib import Path

from trialpod.tune.schedulers.fifo import FIFOScheduler
from trialpod_operator.experiment.trial_files import PolicyFiles


class Log(FIFOScheduler):
    """Keeps a history of so many exploits, all of one trial."""

    num_perturbations = 0

    def policy_log(self, since: int = 0) -> dict[str, list[str]]:
        assert since < self.num_perturbations
        lines = [f"line {number}" for number in range(self.num_perturbations)]
        return {"pbt_global.txt": lines, "pbt_policy_t_00001.txt": lines[-1:]}


def read(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir()}


def test_the_files_follow_the_history(tmp_path: Path) -> None:
    scheduler, warnings = Log(), list[str]()
    files = PolicyFiles(tmp_path, scheduler, warnings.append)
    files.flush()
    assert read(tmp_path) == {}
    for count in (1, 3):
        scheduler.num_perturbations = count
        files.flush()
        lines = "".join(f"line {number}\n" for number in range(count))
        assert read(tmp_path) == {"pbt_global.txt": lines, "pbt_policy_t_00001.txt": f"line {count - 1}\n"}
    before = (tmp_path / "pbt_global.txt").stat().st_ino
    files.flush()
    assert (tmp_path / "pbt_global.txt").stat().st_ino == before
    assert warnings == []


def test_what_cannot_be_written_is_reported_once_and_retried(tmp_path: Path) -> None:
    scheduler, warnings = Log(), list[str]()
    folder = tmp_path / "gone"
    files = PolicyFiles(folder, scheduler, warnings.append)
    scheduler.num_perturbations = 1
    files.flush()
    files.flush()
    (warning,) = warnings
    assert "cannot write" in warning
    assert str(folder) in warning
    folder.mkdir()
    files.flush()
    assert read(folder).keys() == {"pbt_global.txt", "pbt_policy_t_00001.txt"}


def test_schedulers_without_a_history_have_no_files(tmp_path: Path) -> None:
    PolicyFiles(tmp_path, FIFOScheduler(), lambda _message: None).flush()
    assert read(tmp_path) == {}
