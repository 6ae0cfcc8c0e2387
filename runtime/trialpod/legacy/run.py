"""`tune.run` and `tune.run_experiments`: one call for what a `Tuner` does in several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from trialpod.compat.activation import under_ray
from trialpod.errors import InvalidInputError, NotSupportedError, TrialpodError, nearest
from trialpod.legacy.experiment import Experiment
from trialpod.legacy.experiment_analysis import ExperimentAnalysis
from trialpod.legacy.run_arguments import OF_A_RUN, OF_AN_EXPERIMENT, RunArguments, translated
from trialpod.tune.arguments import UnknownArgumentError
from trialpod.tune.tuner_arguments import resume_flags

if TYPE_CHECKING:
    from trialpod.tune.outcomes import ExperimentOutcome
    from trialpod.tune.sync_config import SyncConfig
    from trialpod.tune.trial import Trial
    from trialpod.tune.trial_config import CheckpointConfig, ResumeConfig

_WHERE = "tune.run"
_SHOWN_FAILURES = 5


class TrialsFailedError(TrialpodError):
    """Trials failed, and ``raise_on_failed_trial`` is set.

    Attributes:
        analysis: what `tune.run` would have returned.
    """

    def __init__(self, message: str, analysis: ExperimentAnalysis) -> None:
        super().__init__(message)
        self.analysis = analysis


def run(
    run_or_experiment: Any,
    *,
    name: str | None = None,
    metric: str | None = None,
    mode: str | None = None,
    stop: Any = None,
    time_budget_s: Any = None,
    config: Mapping[str, Any] | None = None,
    resources_per_trial: Any = None,
    num_samples: int = 1,
    storage_path: Any = None,
    storage_filesystem: Any = None,
    search_alg: Any = None,
    scheduler: Any = None,
    checkpoint_config: CheckpointConfig | None = None,
    verbose: int | None = None,
    progress_reporter: Any = None,
    log_to_file: Any = False,
    trial_name_creator: Any = None,
    trial_dirname_creator: Any = None,
    sync_config: SyncConfig | None = None,
    export_formats: Any = None,
    max_failures: int = 0,
    fail_fast: Any = False,
    restore: str | None = None,
    resume: bool | str | None = None,
    resume_config: ResumeConfig | None = None,
    reuse_actors: bool = False,
    raise_on_failed_trial: bool = True,
    callbacks: Any = None,
    max_concurrent_trials: int | None = None,
    **older: Any,
) -> ExperimentAnalysis:
    """Run an experiment to its end and return what is known of its trials.

    Args:
        run_or_experiment: the Trainable, the name that it is registered by, or a `tune.Experiment`, which then says
            what to run and how; only what an Experiment does not have is taken from the other arguments. Or a list of
            them, which are run one after another.
        name: the experiment's name; None makes one.
        metric: the metric that is tuned.
        mode: "max" or "min".
        stop: as for `RunConfig`.
        time_budget_s: seconds (or a timedelta) after which it is stopped.
        config: the search space.
        resources_per_trial: as for `tune.with_resources`.
        num_samples: how often the search space is sampled.
        storage_path: where it is stored.
        storage_filesystem: as for RunConfig.
        search_alg: proposes the trials.
        scheduler: stops and pauses trials by their results.
        checkpoint_config: which checkpoints are made and kept.
        verbose: 0 to 3.
        progress_reporter: as for `RunConfig`.
        log_to_file: as for `RunConfig`.
        trial_name_creator: as for `TuneConfig`.
        trial_dirname_creator: as for `TuneConfig`.
        sync_config: as for `RunConfig`.
        export_formats: formats that a class Trainable's `export_model` is called with when a trial has ended.
        max_failures: how often one trial may fail and be retried.
        fail_fast: as for `FailureConfig`.
        restore: a checkpoint (its path or URI) that trials start from which have none of their own.
        resume: True or "LOCAL" continues with the experiment of that `name`; "AUTO" does so if there is one, as does
            True under the name ``ray``.
            "+ERRORED" after it resumes failed trials, "+RESTART_ERRORED" lets them start again; "+ERRORED_ONLY" and
            "+RESTART_ERRORED_ONLY" (or "ERRORED_ONLY" alone) leave the unfinished ones as they are.
        resume_config: the same in another form, with `resume`.
        reuse_actors: as for `TuneConfig`.
        raise_on_failed_trial: raise an error when a trial failed.
        callbacks: as for `RunConfig`.
        max_concurrent_trials: the most trials that run at once.
        older: arguments of older versions, such as ``local_dir`` and ``checkpoint_freq``.

    Raises:
        InvalidInputError: something cannot work; nothing has been started.
        NotSupportedError: trialpod has no counterpart for an argument.
        TrialsFailedError: a trial failed and `raise_on_failed_trial` is set.
        TrialpodError: as of `Tuner.fit`.
    """
    several = list(run_or_experiment) if isinstance(run_or_experiment, (list, tuple)) else [run_or_experiment]
    if not several:
        raise InvalidInputError(f"{_WHERE}([]): give at least one Trainable or Experiment")
    given = {
        "name": name,
        "stop": stop,
        "time_budget_s": time_budget_s,
        "config": config,
        "resources_per_trial": resources_per_trial,
        "num_samples": num_samples,
        "storage_path": storage_path,
        "storage_filesystem": storage_filesystem,
        "checkpoint_config": checkpoint_config,
        "log_to_file": log_to_file,
        "trial_name_creator": trial_name_creator,
        "trial_dirname_creator": trial_dirname_creator,
        "sync_config": sync_config,
        "export_formats": export_formats,
        "max_failures": max_failures,
        "restore": restore,
    }
    run_wide: dict[str, Any] = {
        "metric": metric,
        "mode": mode,
        "search_alg": search_alg,
        "scheduler": scheduler,
        "verbose": verbose,
        "progress_reporter": progress_reporter,
        "fail_fast": fail_fast,
        "reuse_actors": reuse_actors,
        "callbacks": callbacks,
        "max_concurrent_trials": max_concurrent_trials,
    }
    known = {**given, **run_wide, "resume": None, "resume_config": None, "raise_on_failed_trial": None}
    everything = translated(_WHERE, known, older)
    run_wide |= {key: everything[key] for key in OF_A_RUN if key in everything}
    common = {key: value for key, value in everything.items() if key not in _NOT_OF_A_TUNER}
    calls = [
        RunArguments(where=_WHERE, trainable=each.trainable, **{**run_wide, **each.arguments})
        if isinstance(each, Experiment)
        else RunArguments(where=_WHERE, trainable=each, **{**common, "name": _numbered(name, place)})
        for place, each in enumerate(several)
    ]
    for call in calls if len(calls) > 1 else ():
        call.tuner()  # all of them are checked before the first one starts
    outcomes = [_outcome(call, resume, resume_config) for call in calls]
    return _analysis(outcomes, raise_on_failed_trial)


def _numbered(name: str | None, place: int) -> str | None:
    return f"{name}_{place + 1}" if name and place else name


def run_experiments(
    experiments: Experiment | Mapping[str, Any] | Sequence[Experiment | Mapping[str, Any]],
    scheduler: Any = None,
    server_port: int | None = None,
    verbose: int | None = None,
    progress_reporter: Any = None,
    resume: bool | str | None = None,
    *,
    resume_config: ResumeConfig | None = None,
    reuse_actors: bool = False,
    raise_on_failed_trial: bool = True,
    concurrent: bool = True,
    callbacks: Any = None,
    **older: Any,
) -> list[Trial]:
    """Run several experiments, one after another, and return all their trials.

    Args:
        experiments: `Experiment` objects, or dicts of names to what `Experiment.from_json` takes; one or a list.
        scheduler: for each of them, which starts without what it learned from the others.
        server_port: for scripts that give it.
        verbose: 0 to 3.
        progress_reporter: as for `RunConfig`.
        resume: as for `run`.
        resume_config: as for `run`.
        reuse_actors: as for `TuneConfig`.
        raise_on_failed_trial: raise an error when a trial failed, before the next experiment.
        concurrent: for scripts that give it; each experiment has the whole machine while it runs.
        callbacks: as for `RunConfig`.
        older: arguments of older versions: ``loggers`` and ``chdir_to_trial_dir``, for experiments without their own.

    Raises:
        UnknownArgumentError: an argument of older versions is one of an `Experiment`, such as ``local_dir``.
        TrialpodError: as of `run`.
    """
    taken = translated("tune.run_experiments", {"scheduler": scheduler, "concurrent": concurrent}, older)
    translated("tune.run_experiments", {"server_port": server_port}, {})
    if belong := [name for name, value in older.items() if name in OF_AN_EXPERIMENT and value is not None]:
        raise UnknownArgumentError(
            f"tune.run_experiments({', '.join(f'{name}=...' for name in belong)}): give it to the experiment: "
            f"tune.Experiment(name, trainable, {belong[0]}=...)"
        )
    run_wide = {
        "scheduler": scheduler,
        "verbose": verbose,
        "progress_reporter": progress_reporter,
        "reuse_actors": reuse_actors,
        "callbacks": callbacks,
        **{key: taken[key] for key in OF_A_RUN if key in taken},
    }
    trials: list[Trial] = []
    for experiment in _experiments(experiments):
        arguments = RunArguments(
            where="tune.run_experiments",
            trainable=experiment.trainable,
            **{**run_wide, **experiment.arguments},
        )
        trials += _analysis([_outcome(arguments, resume, resume_config)], raise_on_failed_trial).trials
    return trials


_NOT_OF_A_TUNER = frozenset({"resume", "resume_config", "raise_on_failed_trial"})
_BASES = ("LOCAL", "REMOTE", "AUTO")
_MODIFIERS = {
    "": (True, False, False),
    "ERRORED": (True, True, False),
    "ERRORED_ONLY": (False, True, False),
    "RESTART_ERRORED": (True, False, True),
    "RESTART_ERRORED_ONLY": (False, False, True),
}


def _outcome(
    arguments: RunArguments, resume: bool | str | None, resume_config: ResumeConfig | None
) -> ExperimentOutcome:
    tuner = arguments.tuner()
    base, flags = _resume(arguments.where, resume)
    if resume_config is not None:
        flags = resume_flags(resume_config, defaults=flags == _MODIFIERS[""])
        base = base or "AUTO"
    if base:
        if not arguments.name:
            raise InvalidInputError(
                f"{arguments.where}(resume={resume!r}): pass name=... of the experiment to continue with"
            )
        unfinished, errored, restart = flags
        tuner._resume_by_name(  # noqa: SLF001 - what `tune.run` has and a Tuner has not
            unfinished=unfinished,
            errored=errored,
            restart=restart,
            must=base != "AUTO" and not (resume is True and under_ray()),
        )
    outcome = tuner.fit().outcome
    for trial in outcome.trials:
        trial.resources = trial.resources or tuner.resources_for(trial.config)
    return outcome


def _analysis(outcomes: Sequence[ExperimentOutcome], raise_on_failed_trial: bool) -> ExperimentAnalysis:
    """Return the analysis of one experiment, or of several as one."""
    trials_of_all = [trial for outcome in outcomes for trial in outcome.trials]
    analysis = ExperimentAnalysis(replace(outcomes[0], trials=trials_of_all))
    failed = [trial for trial in analysis.trials if trial.status != "TERMINATED"]
    if failed and raise_on_failed_trial:
        names = ", ".join(map(str, failed[:_SHOWN_FAILURES]))
        more = f" and {len(failed) - _SHOWN_FAILURES} more" if len(failed) > _SHOWN_FAILURES else ""
        error = failed[0].error
        raise TrialsFailedError(
            f"{len(failed)} of {len(analysis.trials)} trials in {analysis.experiment_path} did not complete: "
            f"{names}{more}. The first: {error or failed[0].status}\nThe results are in the error's .analysis; "
            "raise_on_failed_trial=False returns them",
            analysis,
        )
    return analysis


def resume_choice(where: str, resume: bool | str | None) -> tuple[bool, bool, bool]:
    """Return whether unfinished trials, failed ones, and failed ones from the beginning run again, for a `resume`."""
    return _resume(where, resume)[1]


def _resume(where: str, resume: bool | str | None) -> tuple[str, tuple[bool, bool, bool]]:
    """Return "LOCAL", "AUTO" or "", and what becomes of unfinished and failed trials."""
    if resume is None or resume is False:
        return "", _MODIFIERS[""]
    if resume is True:
        return "LOCAL", _MODIFIERS[""]
    text = resume.upper() if isinstance(resume, str) else ""
    if text.startswith("PROMPT"):
        raise NotSupportedError(f"{where}(resume={resume!r}): there is no prompt; give True, or 'AUTO'")
    base, _, modifier = text.partition("+")
    if base in ("ERRORED_ONLY", "RESTART_ERRORED_ONLY") and not modifier:
        base, modifier = "LOCAL", base
    if base not in _BASES or modifier not in _MODIFIERS:
        allowed = [*_BASES, *(f"{known}+{name}" for known in _BASES for name in _MODIFIERS if name)]
        guess = nearest(str(resume), allowed)
        raise InvalidInputError(
            f"{where}(resume={resume!r}): must be True, False, or one of {', '.join(_BASES)}, each with +ERRORED, "
            "+ERRORED_ONLY, +RESTART_ERRORED or +RESTART_ERRORED_ONLY after it or without"
            + (f" (did you mean {guess!r}?)" if guess else "")
        )
    return base, _MODIFIERS[modifier]


def _experiments(given: Any) -> list[Experiment]:
    if isinstance(given, Experiment):
        return [given]
    if isinstance(given, Mapping) and given:
        return [Experiment.from_json(name, spec) for name, spec in given.items()]
    if isinstance(given, (list, tuple)) and given:
        return [experiment for entry in given for experiment in _experiments(entry)]
    raise InvalidInputError(
        f"tune.run_experiments({given!r}): must be a tune.Experiment, a dict of names to dicts, or a list of them"
    )
