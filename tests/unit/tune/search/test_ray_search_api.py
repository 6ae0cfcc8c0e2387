"""What scripts for Ray do with search algorithms by hand: drive them, save them, convert spaces, share a study."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from trialpod import tune
from trialpod.errors import InvalidInputError
from trialpod.tune.search import (
    BasicVariantGenerator,
    BayesOptSearch,
    ConcurrencyLimiter,
    HyperOptSearch,
    OptunaSearch,
    Repeater,
    Searcher,
    SearchGenerator,
    ZOOptSearch,
    prepare,
)

SPACE = {
    "a": tune.uniform(0, 1),
    "b": {"c": tune.choice(["x", "y"])},
    "d": tune.loguniform(1e-4, 1),
    "e": tune.randint(0, 5),
    "f": tune.qrandint(0, 10, 2),
    "g": tune.quniform(0, 1, 0.25),
    "h": 3,
}
GOAL: dict[str, Any] = {"metric": "loss", "mode": "min"}


class Numbers(Searcher):
    """Suggests 1, 2, 3, ...; as Ray's documentation writes a searcher."""

    def __init__(self, **goal: Any) -> None:
        self.last = 0
        self.ended: dict[str, Any] = {}
        super().__init__(**goal)

    def suggest(self, trial_id: str) -> dict[str, Any]:
        self.last += 1
        return {"x": self.last}

    def on_trial_complete(self, trial_id: str, result: Any = None, **kwargs: Any) -> None:
        self.ended[trial_id] = (result, kwargs["error"])


def train(config: dict[str, Any]) -> None:
    tune.report({"loss": 0.0})


@pytest.fixture(autouse=True)
def _registered() -> None:
    tune.register_trainable("train_by_name", train)


class TestByHand:
    def test_variants(self) -> None:
        search = BasicVariantGenerator(max_concurrent=1)
        space = {"c": tune.grid_search([1, 2])}
        search.add_configurations({"e": {"run": "train_by_name", "config": space, "num_samples": 2}})
        first = search.next_trial()
        assert first is not None
        assert (first.config, first.experiment_tag, search.total_samples) == ({"c": 1}, "0_c=1", 4)
        assert search.next_trial() is None
        search.on_trial_complete(first.trial_id)
        second = search.next_trial()
        assert second is not None
        assert second.config == {"c": 2}
        assert not search.is_finished()

    def test_searcher(self) -> None:
        search = SearchGenerator(Numbers(**GOAL))
        search.add_configurations(tune.Experiment("e", train, config={"c": 1}, num_samples=2))
        found = []
        while not search.is_finished():
            trial = search.next_trial()
            assert trial is not None
            found.append(trial.config)
        assert found == [{"c": 1, "x": 1}, {"c": 1, "x": 2}]
        assert (search.metric, search.total_samples) == ("loss", 2)

    def test_only_one_experiment(self) -> None:
        search = BasicVariantGenerator()
        with pytest.raises(InvalidInputError, match="add_configurations"):
            search.next_trial()
        search.add_configurations(tune.Experiment("e", train))
        with pytest.raises(InvalidInputError, match="one experiment"):
            search.add_configurations(tune.Experiment("f", train))


class TestSavedState:
    def test_folder_of_search_algorithm(self, tmp_path: Path) -> None:
        experiment = {"e": {"run": "train_by_name", "config": {"c": tune.grid_search([1, 2, 3])}}}
        one, other = BasicVariantGenerator(), BasicVariantGenerator()
        one.add_configurations(experiment)
        one.next_trial()
        assert not one.has_checkpoint(tmp_path)
        one.save_to_dir(tmp_path, "session")
        other.add_configurations(experiment)
        assert other.has_checkpoint(tmp_path)
        other.restore_from_dir(tmp_path)
        trial = other.next_trial()
        assert trial is not None
        assert trial.config == {"c": 2}

    @pytest.mark.parametrize("searcher", [Numbers, lambda: OptunaSearch({"x": tune.uniform(0, 1)}, **GOAL, seed=1)])
    def test_folder_of_searcher(self, tmp_path: Path, searcher: Any) -> None:
        """Also of a class that defines neither get_state nor save."""
        one, other = searcher(), searcher()
        one.suggest("a")
        with pytest.raises(InvalidInputError, match="no searcher was saved there"):
            other.restore_from_dir(tmp_path)
        one.save_to_dir(tmp_path, "session")
        other.restore_from_dir(tmp_path)
        assert [path.name for path in tmp_path.iterdir()] == ["searcher-state-session.pkl"]
        assert one.suggest("b") == other.suggest("b")

    def test_seed_travels_with_it(self, tmp_path: Path) -> None:
        """Ray's way of drawing begins with the seed that was given; the searcher that continues has none."""
        pytest.importorskip("hyperopt")
        for number, (kind, seed) in enumerate(((HyperOptSearch, "random_state_seed"), (OptunaSearch, "seed"))):
            one, other = (
                kind({"x": tune.uniform(0, 1)}, **GOAL, compatible=True, **seeds)  # type: ignore[operator]
                for seeds in ({seed: 1}, {})
            )
            one.suggest("a")
            one.on_trial_complete("a", {"loss": 1.0})
            one.save(tmp_path / str(number))
            other.restore(tmp_path / str(number))
            assert one.suggest("b") == other.suggest("b")

    @pytest.mark.parametrize("wrapped", [False, True])
    def test_folder_of_an_experiment_teaches(self, tmp_path: Path, wrapped: bool) -> None:
        (tmp_path / ".trialpod").mkdir()
        (tmp_path / ".trialpod" / "journal").touch()
        for number in range(3):
            (tmp_path / f"t{number}").mkdir()
            row = {"loss": float(number), "config": {"x": 0.1 * number}}
            (tmp_path / f"t{number}" / "result.json").write_text(json.dumps(row) + "\n")
        search: Searcher = OptunaSearch({"x": tune.uniform(0, 1)}, **GOAL)
        limited = ConcurrencyLimiter(search, 2) if wrapped else search
        limited.restore_from_dir(tmp_path)
        limited.suggest("first")
        values = [trial.value for trial in search._study.trials]  # type: ignore[attr-defined]
        assert values == [0.0, 1.0, 2.0, None]
        with pytest.raises(InvalidInputError, match="no searcher was saved there"):
            Numbers(**GOAL).restore_from_dir(tmp_path)

    def test_file_of_scheduler(self, tmp_path: Path) -> None:
        class Own(tune.schedulers.FIFOScheduler):
            seen = 0

        for make in (Own, lambda: tune.schedulers.ASHAScheduler(**GOAL)):
            one, other = make(), make()
            if isinstance(one, Own):
                one.seen = 3
            one.save(tmp_path / "s")
            other.restore(tmp_path / "s")
            assert vars(other).get("seen") == vars(one).get("seen")
            assert other.debug_string()
            (tmp_path / "s").write_text("no state")
            with pytest.raises(InvalidInputError, match="holds no"):
                other.restore(tmp_path / "s")


class TestWrappers:
    def test_batch_ends_when_nobody_runs(self) -> None:
        """As in Ray: also when there are fewer trials than the batch may have."""
        inner = Numbers()
        search = ConcurrencyLimiter(inner, 3, batch=True)
        search.suggest("a"), search.suggest("b")
        search.on_trial_complete("a", {"loss": 1})
        assert inner.ended == {}
        search.on_trial_complete("b", {"loss": 2})
        assert inner.ended == {"a": ({"loss": 1}, False), "b": ({"loss": 2}, False)}

    def test_limiter_ignores_unknown_trials(self) -> None:
        inner = Numbers()
        search = ConcurrencyLimiter(inner, 1)
        search.suggest("a")
        search.on_trial_complete("other", {"loss": 1})
        search.on_trial_complete("a", error=True)
        search.on_trial_complete("a", {"loss": 2})  # it was retried
        search.on_trial_complete("a", {"loss": 3})
        assert inner.ended == {"a": ({"loss": 2}, False)}

    @pytest.mark.parametrize("wrap", [lambda s: s, lambda s: ConcurrencyLimiter(s, 1), lambda s: Repeater(s, 2)])
    def test_equal_goal_and_space_are_one(self, wrap: Any) -> None:
        space = {"x": tune.uniform(0, 1), "n": {"m": tune.choice([1, 2])}}
        same = {"x": tune.uniform(0, 1), "n": {"m": tune.choice([1, 2])}}
        search = prepare(wrap(OptunaSearch(space, **GOAL)), space=same, num_samples=2, seed=1, **GOAL)
        suggestion = search.next_suggestion()
        assert suggestion is not None
        assert suggestion.config.keys() >= {"x", "n"}
        with pytest.raises(InvalidInputError, match=r"OptunaSearch\(mode='min'\) contradicts .*'max'"):
            prepare(wrap(OptunaSearch(space, **GOAL)), space={}, num_samples=2, metric="loss", mode="max")
        with pytest.raises(InvalidInputError, match=r"OptunaSearch takes no search space .* for x"):
            prepare(wrap(OptunaSearch(space, **GOAL)), space={"x": tune.uniform(0, 2)}, num_samples=2)

    def test_constants_complete_a_searchers_space(self) -> None:
        search = prepare(
            OptunaSearch({"x": tune.uniform(0, 1)}, metric="loss"), space={"c": 1}, num_samples=1, mode="min"
        )
        suggestion = search.next_suggestion()
        assert suggestion is not None
        assert suggestion.config.keys() == {"c", "x"}


class TestConvertedSpaces:
    def test_optuna(self) -> None:
        optuna = pytest.importorskip("optuna")
        made = optuna.distributions
        space = OptunaSearch.convert_search_space(SPACE)
        assert space == {
            "a": made.FloatDistribution(0, 1),
            "b/c": made.CategoricalDistribution(["x", "y"]),
            "d": made.FloatDistribution(1e-4, 1, log=True),
            "e": made.IntDistribution(0, 4),
            "f": made.IntDistribution(0, 10, step=2),
            "g": made.FloatDistribution(0, 1, step=0.25),
        }
        for given in (space, dict(space)):
            config = OptunaSearch(given, **GOAL).suggest("a")
            assert isinstance(config, dict)
            assert config["b"]["c"] in ("x", "y")
        with pytest.raises(InvalidInputError, match="no grids"):
            OptunaSearch.convert_search_space({"a": tune.grid_search([1])})

    def test_others(self) -> None:
        pytest.importorskip("hyperopt")
        converted = HyperOptSearch.convert_search_space(SPACE)
        assert set(converted) == set(SPACE)
        assert set(converted["b"]) == set(SPACE["b"])
        assert BayesOptSearch.convert_search_space({"a": tune.uniform(0, 2)}) == {"a": (0, 2)}
        search = BayesOptSearch(BayesOptSearch.convert_search_space({"a": tune.uniform(0, 2)}), **GOAL)
        config = search.suggest("a")
        assert isinstance(config, dict)
        assert 0 <= config["a"] <= 2
        with pytest.raises(InvalidInputError, match="no counterpart"):
            ZOOptSearch.convert_search_space({"a": tune.randn()})


class TestStudyOfTheUser:
    def make(self, storage: Any, **more: Any) -> OptunaSearch:
        space = {"x": tune.uniform(0, 1), "k": tune.choice(["p", "q"])}
        return OptunaSearch(space, **GOAL, storage=storage, study_name="mine", seed=3, **more)

    def test_trials_are_copied(self) -> None:
        optuna = pytest.importorskip("optuna")
        storage = optuna.storages.InMemoryStorage()
        search = self.make(storage, points_to_evaluate=[{"x": 0.5, "k": "p"}], evaluated_rewards=[2.0])
        config = search.suggest("a")
        assert isinstance(config, dict)
        search.suggest("b")
        search.suggest("c")
        search.on_trial_result("a", {"loss": 1.5, "training_iteration": 1})
        search.on_trial_complete("a", {"loss": 1.0, "training_iteration": 2})
        search.on_trial_complete("b", error=True)
        study = optuna.load_study(study_name="mine", storage=storage)
        assert [trial.state.name for trial in study.trials] == ["COMPLETE", "COMPLETE", "FAIL", "RUNNING"]
        assert (study.trials[0].params, study.trials[0].value) == ({"x": 0.5, "k": "p"}, 2.0)
        assert (study.trials[1].params, study.trials[1].value) == (config, 1.0)
        assert study.trials[1].intermediate_values[1] == 1.5
        assert search._ot_study.study_name == "mine"

    def test_study_is_learned_from(self) -> None:
        optuna = pytest.importorskip("optuna")
        storage = optuna.storages.InMemoryStorage()
        first = self.make(storage)
        for number in range(3):
            first.suggest(str(number))
            first.on_trial_complete(str(number), {"loss": float(number)})
        second = self.make(storage)
        second.suggest("a")
        assert [trial.value for trial in second.study.trials] == [0.0, 1.0, 2.0, None]
        assert len(optuna.load_study(study_name="mine", storage=storage).trials) == 4

    def test_restart_adds_nothing_twice(self, tmp_path: Path) -> None:
        """Neither when the log is read again, nor when the suggestions are replayed by a pickled copy."""
        optuna = pytest.importorskip("optuna")
        storage = optuna.storages.RDBStorage(f"sqlite:///{tmp_path}/study.db")
        earlier = optuna.create_study(storage=storage, study_name="mine")
        earlier.add_trial(
            optuna.trial.create_trial(
                params={"x": 0.25}, distributions={"x": optuna.distributions.FloatDistribution(0, 1)}, value=7.0
            )
        )
        search = self.make(storage)
        made = pickle.dumps(search)
        configs = [search.suggest(trial_id) for trial_id in ("a", "b")]
        search.on_trial_complete("a", {"loss": 1.0})
        state = search.get_state()
        again = self.make(storage)
        again.set_state(state)
        again.on_trial_complete("b", {"loss": 2.0})
        replayed = pickle.loads(made)  # with a storage of its own
        for trial_id, config in zip(("a", "b"), configs, strict=True):
            replayed.adopt(trial_id, config)
        replayed.on_trial_complete("a", {"loss": 1.0})
        trials = optuna.load_study(study_name="mine", storage=storage).trials
        assert [trial.value for trial in trials] == [7.0, 1.0, 2.0]
        for each in (storage, replayed._user_storage):
            each.remove_session()
            each.engine.dispose()

    def test_replay_from_the_first_state_adds_nothing_twice(self, tmp_path: Path) -> None:
        """After a kill there is the first state, and the journal; others have added to the study meanwhile."""
        optuna = pytest.importorskip("optuna")
        storage = optuna.storages.RDBStorage(f"sqlite:///{tmp_path}/study.db")
        distributions = {
            "x": optuna.distributions.FloatDistribution(0, 1),
            "k": optuna.distributions.CategoricalDistribution(["p", "q"]),
        }
        made = {"params": {"x": 0.25, "k": "q"}, "distributions": distributions}
        study = optuna.create_study(storage=storage, study_name="mine")
        other = study.ask(distributions)
        study.add_trial(optuna.trial.create_trial(**made, value=7.0))
        search = self.make(storage)
        first_state = search.get_state()
        configs = {trial_id: search.suggest(trial_id) for trial_id in "abc"}
        search.on_trial_complete("a", {"loss": 1.0})
        study.tell(other, 5.0)
        study.add_trial(optuna.trial.create_trial(**made, value=6.0))
        replayed = self.make(storage)
        replayed.set_state(first_state)
        for trial_id, config in configs.items():
            replayed.adopt(trial_id, config)
        replayed.on_trial_complete("a", {"loss": 1.0})
        assert [trial.value for trial in study.trials] == [5.0, 7.0, 1.0, None, None, 6.0]
        assert [trial.value for trial in replayed.study.trials] == [7.0, 1.0, None, None]
        assert replayed.suggest("d") == search.suggest("d")
        storage.remove_session()
        storage.engine.dispose()

    def test_other_directions_are_refused(self) -> None:
        optuna = pytest.importorskip("optuna")
        storage = optuna.storages.InMemoryStorage()
        optuna.create_study(storage=storage, study_name="mine", direction="maximize")
        with pytest.raises(InvalidInputError, match="'mine' in the storage is to maximize"):
            self.make(storage).suggest("a")
        with pytest.raises(InvalidInputError, match="storage must be a storage of Optuna"):
            self.make("sqlite:///x.db")
