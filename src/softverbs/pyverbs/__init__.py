# SPDX-License-Identifier: MIT
"""The Python API of the device: module names, class names and signatures of pyverbs (rdma-core 65).

What goes beyond pyverbs says "Extension" in its docstring. Importing this package imports nothing else.
"""

#: The version of rdma-core whose API this is; ``softverbs.__version__`` is this package's own.
__version__ = "65.0"
