# SPDX-License-Identifier: MIT
"""``python -m bench``, from the repository's root: the same as ``python bench/run.py``."""

import sys

from bench.run import main

sys.exit(main())
