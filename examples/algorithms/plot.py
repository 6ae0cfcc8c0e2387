"""Draws what an algorithm decided, from what is stored of its experiment.

    python examples/algorithms/plot.py                  # all of docs/algorithms.md; runs first what is not there yet
    python examples/algorithms/plot.py asha pbt         # some of them
    python examples/algorithms/plot.py --place DIR      # one of yours: its picture is chosen by what it used

Needs matplotlib (``pip install '.[examples,plots]'``).
"""

import argparse
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import run as runs  # noqa: E402
import stored  # noqa: E402


def pictures():
    """Import matplotlib, or say how to get it."""
    try:
        import pictures
    except ImportError as error:
        raise SystemExit(f"plot.py: {error}; pip install 'trialpod[plots]' brings matplotlib") from error
    return pictures


def main(argv=None):
    parser = argparse.ArgumentParser(description="Draw what an algorithm decided.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"which examples; default: all of {runs.names()}")
    parser.add_argument("--place", type=Path, help="draw this experiment's directory instead")
    parser.add_argument("--storage", type=Path, default=Path("trialpod-results/algorithms"), help="where they are")
    parser.add_argument("--out", type=Path, default=Path("docs/images"), help="where the pictures go")
    parser.add_argument("--format", choices=["svg", "png"], default="png")
    parser.add_argument("--kind", choices=["auto", "curves", "lineage", "samples", "resources"], default="auto")
    options = parser.parse_args(argv)
    drawing = pictures()
    options.out.mkdir(parents=True, exist_ok=True)
    if options.place:
        places = {options.place.resolve().name: options.place}
    else:
        places = {name: options.storage / runs.directory(name) for name in options.names or runs.names()}
    for name, place in places.items():
        if not options.place and not (place / ".trialpod").is_dir():
            missing = runs.missing(name)
            if missing:
                print(f"{name} is left out: {missing}")
                continue
            runs.run(name, options.storage)
        target = options.out / f"{name}.{options.format}"
        drawing.draw(stored.read(place), target, options.kind)
        print(f"{target}  {target.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
