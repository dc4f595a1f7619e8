"""``python -m npucoll``: the same as the command ``npucoll``."""

from __future__ import annotations

import sys

from npucoll.cli import main

if __name__ == "__main__":
    sys.exit(main())
