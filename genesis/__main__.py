"""``python -m genesis``: the `genesis` command."""

import sys

from genesis.cli import main

if __name__ == "__main__":  # which it is not for those who read all modules
    sys.exit(main())
