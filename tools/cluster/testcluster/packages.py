"""The Debian packages that nodes and image builds need; installed by apt-get when they are missing."""

from __future__ import annotations

import shutil
from pathlib import Path

from .system import ClusterError, run, say

# What must be there, and the package that brings it.
NEEDED = {
    "containerd": "containerd",
    "ctr": "containerd",
    "runc": "runc",
    "buildah": "buildah",
    "/usr/lib/cni/bridge": "containernetworking-plugins",
    "iptables": "iptables",
    "ipset": "ipset",
    "conntrack": "conntrack",
    "debootstrap": "debootstrap",
    "socat": "socat",
    "ethtool": "ethtool",
    "curl": "curl",
    "ip": "iproute2",
    "nsenter": "util-linux",
    "gcc": "gcc",
    "/usr/include/stdio.h": "libc6-dev",
    "musl-gcc": "musl-tools",
}
CNI_PLUGINS = Path("/usr/lib/cni")
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def missing() -> list[str]:
    """Return the packages that are not installed."""
    there = {what: Path(what).exists() if "/" in what else shutil.which(what, path=_PATH) for what in NEEDED}
    return sorted({NEEDED[what] for what, found in there.items() if not found})


def ensure() -> None:
    """Install what is missing.

    Raises:
        ClusterError: There is no apt-get, or it fails.
    """
    wanted = missing()
    if not wanted:
        return
    if shutil.which("apt-get") is None:
        raise ClusterError(f"this machine has no apt-get; install what Debian calls: {' '.join(wanted)}")
    say(f"installing Debian packages: {' '.join(wanted)}")
    quiet = {"DEBIAN_FRONTEND": "noninteractive"}
    install = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *wanted]
    try:
        run(["apt-get", "update", "-qq"], timeout=300, environment=quiet)
        # Nothing of it is to run as a service: the cluster starts its own containerd processes.
        policy = Path("/usr/sbin/policy-rc.d")
        ours = not policy.exists()
        if ours:
            policy.write_text("#!/bin/sh\nexit 101\n")
            policy.chmod(0o755)
        try:
            run(install, timeout=900, environment=quiet)
        finally:
            if ours:
                policy.unlink()
    except ClusterError as error:
        raise ClusterError(f"could not install {' '.join(wanted)}; install them by hand\n{error.message}") from error
    still = missing()
    if still:
        raise ClusterError(f"apt-get said that it installed these, but they are not there: {' '.join(still)}")
