"""``python -m simcoll``: the command line."""

import sys

from simcoll.cli import main

if __name__ == "__main__":
    sys.exit(main())
