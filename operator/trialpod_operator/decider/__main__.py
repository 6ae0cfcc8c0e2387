"""``python -m trialpod_operator.decider``."""

import sys

from trialpod_operator.decider.process import main

sys.exit(main())
