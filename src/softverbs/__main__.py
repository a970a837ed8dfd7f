# SPDX-License-Identifier: MIT
"""``python -m softverbs``: the command line."""

from softverbs.cli import main

if __name__ == "__main__":
    main()
