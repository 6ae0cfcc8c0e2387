"""trialpod: hyperparameter tuning with trials as pods, or as processes on one machine.

Users write ``from trialpod import tune``. Importing this package imports next to nothing, so that a trial process
pays only for what it uses. In an image without the packages that it needs, it finds those that the pod brings.
"""

import os
import sys

if any(name.startswith("TRIALPOD_") for name in os.environ):  # else the import is spared
    from trialpod.variables import PACKAGES

    folders = os.environ.get(PACKAGES, "").split(os.pathsep)
    sys.path += [folder for folder in folders if folder and folder not in sys.path]
    del folders
del os, sys

__version__ = "0.1.0"
