"""``python -m genesis``: the `genesis` command."""

import sys

from genesis.cli import main

sys.exit(main())
