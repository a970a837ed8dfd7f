"""The Python API of the device: module names, class names and signatures of pyverbs (rdma-core 65).

What goes beyond pyverbs says "Extension" in its docstring. Importing this package imports nothing else.
"""
