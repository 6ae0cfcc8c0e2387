"""`trialpod submit`: starts the experiments of a manifest, or of a script with a `Tuner` in it, in a cluster.

A manifest is checked here, completely, and applied by the server (field manager `trialpod`); so submitting it again
is harmless, and changes what may change. Of a script the Trainable goes into the bucket and a manifest is made, as
`Tuner.fit()` with the kubernetes backend does.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trialpod import variables
from trialpod.cli.command import Command
from trialpod.errors import InvalidInputError
from trialpod_operator.cluster import names
from trialpod_operator.commands import target

if TYPE_CHECKING:
    from trialpod_operator.api.document import Document
    from trialpod_operator.kube_client.client import Experiments

Json = dict[str, Any]

_COMPANIONS = {"ConfigMap": "configmaps", "Secret": "secrets"}
"""Kinds that the file may have beside experiments; they are applied first."""

MAX_CODE = 256 * 1024
"""Maximum size of a file that goes into a manifest; the API server takes objects of about 1.5 MiB."""

_SCRIPT_ONLY = ("image", "secret", "storage", "endpoint")


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("file", help="a manifest with TuneExperiments (- for standard input), or a script (.py)")
    parser.add_argument("args", nargs="*", help="arguments of a script, after --")
    parser.add_argument("--name", help="name of the experiment")
    parser.add_argument("--set", dest="sets", action="append", default=[], metavar="PATH=VALUE",
                        help="change a field of the manifest, e.g. spec.numSamples=10")  # fmt: skip
    parser.add_argument("--dry-run", action="store_true", help="print the manifest; nothing is sent anywhere")
    parser.add_argument("-o", "--output", choices=("yaml", "json"), default="yaml", help="form of --dry-run's output")
    parser.add_argument(
        "-w", "--wait", action="store_true",
        help="show it until it has ended; exit status 1 when it, or a trial of it, has failed",
    )  # fmt: skip
    parser.add_argument("--with-code", action="store_true",
                        help="send the module of trainable.entrypoint, a file beside the manifest")  # fmt: skip
    parser.add_argument("--force-conflicts", action="store_true", help="take over fields that others have set")
    group = parser.add_argument_group("of a script")
    group.add_argument("--storage", metavar="URI", help="s3://bucket/prefix (default: TRIALPOD_STORAGE)")
    group.add_argument("--image", help="image of the trials (default: TRIALPOD_IMAGE, or the operator's)")
    group.add_argument("--secret", metavar="NAME", help="Secret with the storage's keys for the trials "
                       "(default: TRIALPOD_CREDENTIALS_SECRET)")  # fmt: skip
    group.add_argument("--endpoint", metavar="URL", help="the S3 server as pods reach it (default: as you do)")
    target.add_cluster_options(parser)


def run(options: argparse.Namespace) -> int:
    """Submit it."""
    if options.file.endswith(".py"):
        return _submit_script(options)
    given = [f"--{name}" for name in _SCRIPT_ONLY if getattr(options, name) is not None]
    if given:
        raise InvalidInputError(f"{', '.join(given)}: for scripts; fields of a manifest change by --set spec....=...")
    if options.args:
        raise InvalidInputError(f"unexpected arguments: {' '.join(options.args)}; a manifest takes none")
    return _submit_manifests(options)


# -- a manifest --


def _submit_manifests(options: argparse.Namespace) -> int:
    from trialpod_operator.kube_client import pod_dry_run

    experiments, others = read_manifests(options.file, _overrides(options))
    for manifest in experiments:
        take_code(manifest, options.file, wanted=options.with_code)
    if options.dry_run:
        print(printed([*others, *experiments], options.output))
        return 0
    if options.wait and len(experiments) > 1:
        raise InvalidInputError(f"--wait: {options.file} has {len(experiments)} experiments; wait for one at a time")
    status = 0
    for manifest in experiments:
        connection = argparse.Namespace(**vars(options))
        connection.namespace = options.namespace or manifest["metadata"].get("namespace")
        with target.connect(connection) as api:
            _warn_of_skew(api)
            if manifest["metadata"].setdefault("namespace", api.namespace) != api.namespace:
                raise InvalidInputError(
                    f"the manifest's metadata.namespace is {manifest['metadata']['namespace']}, -n is "
                    f"{api.namespace}; leave one of them out"
                )
            pod_dry_run.check(api, manifest, _warn)
            for other in others:
                apply_companion(api, other, force=options.force_conflicts)
            others = []
            before = api.find(manifest["metadata"]["name"])
            item = api.apply(manifest, force=options.force_conflicts)
            print(
                receipt(before, item, api.namespace, target.cluster_flags(options, api.namespace), options.file),
                flush=True,
            )
            if options.wait:
                from trialpod_operator.commands.status import watch

                status = watch(api, item, target.cluster_flags(options, api.namespace), verbose=options.verbose)
    return status


def _overrides(options: argparse.Namespace) -> list[str]:
    return [*options.sets, *([f"metadata.name={json.dumps(options.name)}"] if options.name else [])]


def read_manifests(file: str, overrides: list[str]) -> tuple[list[Json], list[Json]]:
    """Return the experiments of a file as they are to be applied, and the objects that go before them.

    Raises:
        InvalidInputError: something is wrong with the file, or it has objects that are not submitted.
    """
    from trialpod.tune.plugins.file_parameters import scheduler_with_lines
    from trialpod_operator.api.loader import check_text, display_name, read_text
    from trialpod_operator.api.problems import InvalidManifestError

    source = display_name(file)
    report = check_text(read_text(file), source, overrides)
    if report.problems:
        raise InvalidManifestError(source, report.problems)
    others = [_plain(each) for each in report.others]
    strange = [each["kind"] for each in others if each["kind"] not in _COMPANIONS]
    if strange:
        raise InvalidInputError(
            f"{source}: a {strange[0]} is not submitted with an experiment; apply the whole file: "
            f"kubectl apply -f {file}"
        )
    for warning in report.warnings:
        print(f"trialpod: warning: {source}: {warning}", file=sys.stderr)
    found = []
    for checked in report.experiments:
        manifest = _plain(checked.document)
        manifest.pop("status", None)
        for field in ("managedFields", "resourceVersion", "uid", "creationTimestamp", "generation"):
            manifest["metadata"].pop(field, None)
        if isinstance(scheduler := manifest["spec"].get("scheduler"), dict):
            manifest["spec"]["scheduler"] = scheduler_with_lines(scheduler)
        found.append(manifest)
    return found, others


def take_code(manifest: Json, file: str, *, wanted: bool) -> None:
    """Put the module of an entrypoint into the manifest, if it lies beside it; or say that it is not sent.

    Args:
        manifest: is changed.
        file: of the manifest.
        wanted: put it in.

    Raises:
        InvalidInputError: it is wanted, and not there, too large or not UTF-8.
    """
    from trialpod_operator.api.loader import read_text

    trainable = manifest["spec"].get("trainable") or {}
    module, _, attribute = str(trainable.get("entrypoint") or "").partition(":")
    path = (Path.cwd() if file == "-" else Path(file).resolve().parent) / f"{module.replace('.', '/')}.py"
    if not module or not path.is_file():
        if wanted:
            raise InvalidInputError(f"--with-code: {path.name if module else 'an entrypoint'} is not beside {file}")
        return
    if not wanted:
        print(
            f"trialpod: warning: {path.name} beside {file} is not sent; the image has to have a module {module}, or "
            "--with-code puts the file into the manifest",
            file=sys.stderr,
        )
        return
    text = read_text(str(path))
    if len(text) > MAX_CODE:
        raise InvalidInputError(f"--with-code: {path} has more than {MAX_CODE} characters; build it into the image")
    kept = {name: value for name, value in trainable.items() if name != "entrypoint"}
    manifest["spec"]["trainable"] = {**kept, "source": text, "attribute": attribute}


def _plain(document: Document) -> Json:
    value: Json = copy.deepcopy(document.value)
    return value


def printed(manifests: list[Json], form: str) -> str:
    """Return manifests as YAML documents, or as JSON: one object, or a List."""
    if form == "json":
        whole = manifests[0] if len(manifests) == 1 else {"apiVersion": "v1", "kind": "List", "items": manifests}
        return json.dumps(whole, indent=2)
    from trialpod_operator.api.crds import dump

    return "---\n".join(dump(manifest) for manifest in manifests).rstrip("\n")


def apply_companion(api: Experiments, manifest: Json, *, force: bool) -> None:
    """Apply a ConfigMap or a Secret."""
    from urllib.parse import quote

    from trialpod_operator.api.api_errors import ApiError, ForbiddenError
    from trialpod_operator.kube_client.api import APPLY_PATCH

    resource = _COMPANIONS[manifest["kind"]]
    space = manifest["metadata"].get("namespace") or api.namespace
    name = manifest["metadata"]["name"]
    query = {"fieldManager": names.MANAGER, **({"force": "true"} if force else {})}
    path = f"/api/v1/namespaces/{quote(space)}/{resource}/{quote(name)}"
    try:
        api.client.request("PATCH", path, manifest, query=query, content_type=APPLY_PATCH)
    except ForbiddenError as error:
        raise InvalidInputError(
            f"you may not write the {manifest['kind']} {name} in the namespace {space}: {error.detail}; "
            f"`kubectl auth can-i patch {resource} -n {space}` tests it"
        ) from error
    except ApiError as error:
        raise InvalidInputError(f"the {manifest['kind']} {name} cannot be applied: {error.detail}") from error
    print(f"{manifest['kind']} {name} applied")


def receipt(
    before: Mapping[str, Any] | None, item: Mapping[str, Any], namespace: str, connection: str, file: str
) -> str:
    """Return what happened, and what to type next.

    Args:
        before: the experiment before, None when it was not there.
        item: the experiment now.
        namespace: its namespace.
        connection: the options with which other commands find it.
        file: that was submitted.
    """
    from trialpod_operator.kube_client.view import finished, state_of

    name = item["metadata"]["name"]
    changed = before is not None and before["metadata"].get("generation") != item["metadata"].get("generation")
    same = "was there already, and is as the manifest says"
    what = "submitted" if before is None else "changed" if changed else same
    lines = [f"experiment {name} {what} (namespace {namespace})"]
    if before is not None and not changed:
        lines[0] += f": {state_of(item)}"
        if finished(item):
            another = target.another_name(name)
            lines.append(f"  to run it again: trialpod submit {shlex.quote(file)} --name {another} {connection}")
    return "\n".join([
        *lines,
        f"  to watch:    trialpod status {name} {connection} --watch",
        f"  if it waits: trialpod why {name} {connection}",
        f"  its results: trialpod results {name} {connection}",
    ])  # fmt: skip


def _warn_of_skew(api: Experiments) -> None:
    from trialpod_operator.kube_client.version_skew import skew

    if problem := skew(api.operator_facts()):
        _warn(str(problem))


def _warn(text: str) -> None:
    print(f"trialpod: warning: {text}", file=sys.stderr)


# -- a script --


def _submit_script(options: argparse.Namespace) -> int:
    from trialpod.cli.scripts import run_file
    from trialpod_operator.kube_client import backend

    if not Path(options.file).is_file():
        from trialpod_operator.api.loader import hint_of_file

        raise InvalidInputError(f"{options.file} does not exist{hint_of_file(options.file)}")
    if options.sets:
        raise InvalidInputError("--set changes fields of a manifest; a script is changed by its own arguments")
    given = {
        variables.BACKEND: "kubernetes",
        variables.NAMESPACE: options.namespace,
        "KUBECONFIG": options.kubeconfig,
        variables.CONTEXT: options.context,
        variables.IMAGE: options.image,
        variables.CREDENTIALS_SECRET: options.secret,
        variables.CLUSTER_ENDPOINT: options.endpoint,
        variables.STORAGE: options.storage,
        variables.RUN_NAME: options.name,
    }
    os.environ.update({key: value for key, value in given.items() if value is not None})
    submission = backend.Submission(dry_run=options.dry_run, wait=options.wait)
    backend.submission = submission
    try:
        failed = run_file(options.file, options.args)
    except backend.Submitted:
        failed = False
    finally:
        backend.submission = None
    if failed:
        return 1
    if not submission.items:
        print(f"{options.file} ended without running an experiment: does it call Tuner(...).fit()?", file=sys.stderr)
        return 0
    if options.dry_run:
        print(printed(submission.items, options.output))
    elif not options.wait:
        item = submission.items[0]
        space = item["metadata"]["namespace"]
        print(receipt(submission.before, item, space, target.cluster_flags(options, space), options.file))
    return submission.status


command = Command("submit", "start an experiment in a cluster: a manifest, or a script", configure, run, cluster=True)
