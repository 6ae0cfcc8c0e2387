"""What `import ray` finds in a process that a script or a trial starts: it installs the import hook there.

The process may be any Python. One that has no trialpod, or a Ray that is not to be hidden, imports what it would
without this.
"""

import importlib
import os
import sys


def _replace() -> None:
    """Put trialpod's alias, or the real Ray, into the place of this module."""
    try:
        from trialpod import variables
        from trialpod.compat.ray import install
        from trialpod.errors import InvalidInputError
    except ImportError:
        _step_aside()
        return
    try:
        install(replace=os.environ.get(variables.COMPAT, "").endswith("!"))
    except InvalidInputError:
        _step_aside()


def _step_aside() -> None:
    here = os.path.dirname(__file__)
    sys.path[:] = [folder for folder in sys.path if folder != here]
    sys.modules.pop(__name__, None)


_replace()
importlib.import_module(__name__)  # the one that imports this gets what sys.modules has afterwards
