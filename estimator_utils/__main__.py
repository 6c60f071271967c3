"""``python -m estimator_utils COMMAND``: the same as the command ``estimator``."""

import sys

from estimator_utils.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
