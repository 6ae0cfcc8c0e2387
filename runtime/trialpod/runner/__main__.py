"""``python -m trialpod.runner``: one attempt process."""

from __future__ import annotations

import argparse
import sys

from trialpod.runner.main import run


def main() -> int:
    """Parse the command line and run attempts."""
    parser = argparse.ArgumentParser(prog="python -m trialpod.runner", description="Run the attempts of trials.")
    parser.add_argument("--address", required=True, help="of the report service: unix:/path or http(s)://host:port")
    parser.add_argument("--experiment", required=True, help="name of the experiment")
    parser.add_argument("--runner", required=True, help="identity of this process")
    options = parser.parse_args()
    return run(runner=options.runner, address=options.address, experiment=options.experiment)


if __name__ == "__main__":
    sys.exit(main())
