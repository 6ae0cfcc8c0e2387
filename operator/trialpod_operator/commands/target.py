"""What an experiment's name, or a trial's, stands for in a command: on this machine or in a cluster.

One rule for all commands. With -n, --context or --kubeconfig it is a name in a cluster. Else what has a "/" in it, or
exists here, is a folder or a URI; so is what exists in ./trialpod-results. Everything else is a name.

Invariants: what is neither is refused with both readings; a cluster is never asked about a folder or URI.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trialpod import variables
from trialpod.errors import InvalidInputError, nearest
from trialpod_operator.api.document import allow_deep_json
from trialpod_operator.cluster import names

if TYPE_CHECKING:
    from trialpod.storage.base import Storage
    from trialpod_operator.kube_client.client import Experiments

Json = dict[str, Any]

LOCAL_FOLDER = "trialpod-results"
MAX_SHOWN_NAMES = 6

RULE = (
    "The experiment: with -n, --context or --kubeconfig its name in a cluster; else what has a / in it, "
    f"or exists here or in ./{LOCAL_FOLDER}, is a folder or a URI, and everything else is a name in a cluster."
)

# -- options --


def add_cluster_options(parser: argparse.ArgumentParser, *, rule: bool = False) -> None:
    """Declare which cluster and which namespace, as kubectl does; with `rule`, explain how a name is read."""
    group = parser.add_argument_group("the cluster")
    group.add_argument("-n", "--namespace", help="namespace (default: TRIALPOD_NAMESPACE, or the kubeconfig's)")
    group.add_argument("--context", help="context of the kubeconfig (default: its current one)")
    group.add_argument("--kubeconfig", metavar="FILE", help="kubeconfig (default: KUBECONFIG, or ~/.kube/config)")
    if rule:
        parser.epilog = RULE


def add_directory_argument(parser: argparse.ArgumentParser) -> None:
    """Declare the experiment whose results are read."""
    parser.add_argument(
        "directory",
        metavar="DIR|URI|NAME",
        help="the experiment's directory, where it is kept (s3://...), or its name in a cluster",
    )


def add_experiment_options(parser: argparse.ArgumentParser) -> None:
    """Declare an experiment, where it is, and --json."""
    parser.add_argument("name", metavar="DIR|URI|NAME", help="the experiment, on this machine or in a cluster")
    add_cluster_options(parser, rule=True)
    parser.add_argument("--json", action="store_true", help="one JSON document")


def add_trial_option(parser: argparse.ArgumentParser) -> None:
    """Declare the trial of an experiment in a cluster."""
    parser.add_argument(
        "--trial", metavar="TRIAL", dest="only_trial", default="",
        help="in a cluster: only this trial of the experiment, by its id, its number or its TuneTrial",
    )  # fmt: skip


def cluster_flags(options: argparse.Namespace, namespace: str) -> str:
    """Return the options that another command needs to find the same namespace of the same cluster."""
    found = ["-n", namespace]
    for name in ("context", "kubeconfig"):
        if value := getattr(options, name):
            found += [f"--{name}", value]
    return shlex.join(found)


def another_name(name: str) -> str:
    """Return a name for another experiment like one that is there."""
    return f"{name[: names.MAX_EXPERIMENT_NAME - 2]}-2"


def is_in_cluster(options: argparse.Namespace) -> bool:
    """Return whether the options say that it is a name in a cluster."""
    return any((options.namespace, options.context, options.kubeconfig))


# -- an experiment on this machine, or at a URI --


def location(text: str, options: argparse.Namespace) -> str | None:
    """Return the selected folder or URI; None: it is a name in a cluster.

    Raises:
        InvalidInputError: it cannot be a name, and the options say that it is one.
    """
    if is_in_cluster(options):
        if "/" in text:
            raise InvalidInputError(
                f"{text} is a folder or a URI; -n, --context and --kubeconfig are for the name of an experiment in a "
                "cluster: leave them out, or give the name"
            )
        return None
    if "/" in text or os.sep in text or text in (".", "..") or Path(text).exists():
        return text
    local = Path(LOCAL_FOLDER, text)
    return str(local) if local.is_dir() else None


def experiment_location(text: str, options: argparse.Namespace) -> str | None:
    """As `location`, but a folder with the name that is not an experiment is skipped."""
    from trialpod_operator.view.reading import is_experiment

    found = location(text, options)
    if found is None or "/" in text or is_experiment(Path(found)):
        return found
    local = Path(LOCAL_FOLDER, text)
    return str(local) if is_experiment(local) else None


# -- an experiment in a cluster --


def connect(options: argparse.Namespace) -> Experiments:
    """Return the experiments of the namespace that the options mean."""
    from trialpod_operator.kube_client.client import Experiments

    allow_deep_json()
    namespace = options.namespace or os.environ.get(variables.NAMESPACE) or None
    return Experiments.connect(namespace, context=options.context, kubeconfig=options.kubeconfig)


def connect_for(text: str, options: argparse.Namespace) -> Experiments:
    """As `connect`, for a name that `experiment_location` has found nowhere on this machine.

    Raises:
        InvalidInputError: no cluster is configured; the message has both readings.
    """
    try:
        return connect(options)
    except InvalidInputError as error:
        if is_in_cluster(options):
            raise
        nowhere = f"there is no experiment {text} here or in ./{LOCAL_FOLDER}"
        raise InvalidInputError(f"{nowhere}; if it is the name of one in a cluster: {error}") from error


@contextlib.contextmanager
def experiment(text: str, options: argparse.Namespace) -> Iterator[tuple[Experiments, Json]]:
    """Yield the namespace and the TuneExperiment of that name, where `location` has found no folder.

    Raises:
        InvalidInputError: there is none; the message has both readings.
        ClusterUnreachableError: the cluster cannot be reached.
    """
    from trialpod_operator.kube_client.client import ExperimentNotFoundError

    nowhere = "" if is_in_cluster(options) else f"{text} does not exist, here or in ./{LOCAL_FOLDER}; "
    try:
        api = connect(options)
    except InvalidInputError as error:
        if not nowhere:
            raise
        raise InvalidInputError(f"{nowhere}if it is the name of an experiment in a cluster: {error}") from error
    with api:
        try:
            item = api.get(text)
        except ExperimentNotFoundError as error:
            raise ExperimentNotFoundError(f"{nowhere}{'and ' if nowhere else ''}{error}") from error
        yield api, item


@contextlib.contextmanager
def stored_experiment(text: str, options: argparse.Namespace) -> Iterator[tuple[Experiments, Json, str, Storage]]:
    """As `experiment`, and open its storage, with the user's keys or those of its Secret: its URI and the storage."""
    from trialpod_operator.kube_client.storage import opened

    with experiment(text, options) as (api, item), opened(api, item) as (uri, storage):
        yield api, item, uri, storage


@contextlib.contextmanager
def stored(text: str, options: argparse.Namespace) -> Iterator[tuple[str, Storage]]:
    """Yield the URI and the storage of an experiment in a cluster, or of the one trial that --trial names."""
    with stored_experiment(text, options) as (api, item, uri, storage):
        if not options.only_trial:
            yield uri, storage
            return
        name = str(item["metadata"]["name"])
        trial = select_trial(api.trials(name), options.only_trial, name)
        trial_uri = str((trial.get("status") or {}).get("storageUri") or "")
        if not trial_uri:
            raise InvalidInputError(f"{trial['metadata']['name']} has nothing in the storage yet")
        yield trial_uri, storage.sub(trial_uri.removeprefix(uri).strip("/"))


def stored_location(text: str, options: argparse.Namespace) -> str | None:
    """As `location`, for a command with --trial, which is only for experiments in a cluster."""
    found = location(text, options)
    if found is not None and options.only_trial:
        raise InvalidInputError(
            f"--trial {options.only_trial}: {found} is a folder or a URI; give that of the trial, or of one "
            "checkpoint in it"
        )
    return found


# -- a trial in a cluster --


def find_trial(api: Experiments, name: str, trial: str = "") -> tuple[Json, Json]:
    """Return the TuneExperiment and the TuneTrial.

    Args:
        api: the namespace.
        name: of the experiment; without `trial` that of a TuneTrial, or "experiment/number", will do.
        trial: the trial's id, its number, or the name of its TuneTrial.

    Raises:
        InvalidInputError: there is none, or it is not clear which.
    """
    if not trial and "/" in name:
        name, _, trial = name.partition("/")
    if not trial:
        return _trial_alone(api, name)
    item = api.get(name)
    return item, select_trial(api.trials(name), trial, name)


def select_trial(trials: list[Json], wanted: str, experiment_name: str) -> Json:
    """Return the selected trial of an experiment.

    Raises:
        InvalidInputError: none is.
    """
    for each in trials:
        if wanted in (each["metadata"]["name"], each["spec"].get("trialId")):
            return each
    digits = wanted.lstrip("0") or "0"
    if wanted.isdecimal():
        for each in trials:
            number = str(each["spec"].get("trialId", "")).rpartition("_")[2]
            if (number.lstrip("0") or "0") == digits:
                return each
    known = [str(each["spec"].get("trialId")) for each in trials]
    guess = nearest(wanted, [*known, *(str(each["metadata"]["name"]) for each in trials)])
    shown = ", ".join(known[:MAX_SHOWN_NAMES]) + (f", ... ({len(known)} in all)" if known[MAX_SHOWN_NAMES:] else "")
    hint = f"did you mean {guess}?" if guess else f"there are: {shown}" if known else "it has none yet"
    raise InvalidInputError(f"the experiment {experiment_name} has no trial {wanted}; {hint}")


def _trial_alone(api: Experiments, name: str) -> tuple[Json, Json]:
    found = api.find(name)
    if found is not None:
        trials = api.trials(name)
        if len(trials) == 1:
            return found, trials[0]
        if not trials:
            raise InvalidInputError(
                f"the experiment {name} has no trials yet; why: trialpod why {name} -n {api.namespace}"
            )
        raise InvalidInputError(
            f"the experiment {name} has {len(trials)} trials; name one by its number or id, such as: "
            f"trialpod logs {name} {trials[0]['spec'].get('trialId')}"
        )
    trial = api.find_trial(name)
    if trial is None:
        known = [item["metadata"]["name"] for item in api.all()]
        guess = nearest(name, known)
        there = f"there are the experiments {', '.join(known[:8])}" if known else "there is nothing"
        hint = f"did you mean {guess}?" if guess else there
        raise InvalidInputError(
            f"there is no TuneTrial and no TuneExperiment {name} in the namespace {api.namespace}; {hint}"
        )
    return api.get(str(trial["spec"]["experiment"])), trial


def trial_state(trial: Json) -> str:
    """Return the state of a TuneTrial."""
    return str((trial.get("status") or {}).get("state") or "PENDING")


def confirmed(question: str) -> bool:
    """Ask a person; anything but yes is no."""
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


@contextlib.contextmanager
def without_collections() -> Iterator[None]:
    """Read and print without the cyclic garbage collector, which takes a third of the time with 100,000 trials.

    It is for commands that end after that; what was made inside stays out of later collections.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
