# SPDX-License-Identifier: MIT
"""The simulator: devices on links in one process, in virtual time, from a seed. Core and device, nothing above them."""
