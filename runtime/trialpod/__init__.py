"""trialpod: hyperparameter tuning with trials as pods, or as processes on one machine.

Users write ``from trialpod import tune``. Importing this package imports next to nothing, so that a trial process
pays only for what it uses. In an image without the packages that it needs, it finds those that the pod brings.
"""

import os
import sys

from trialpod.variables import PACKAGES

sys.path += [folder for folder in os.environ.get(PACKAGES, "").split(os.pathsep) if folder and folder not in sys.path]
del os, sys

__version__ = "0.1.0"
