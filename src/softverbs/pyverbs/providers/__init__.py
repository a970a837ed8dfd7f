# SPDX-License-Identifier: MIT
"""What pyverbs has for single makers of devices."""
