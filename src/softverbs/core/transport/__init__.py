# SPDX-License-Identifier: MIT
"""Transports: queue pairs and their states, and the requester and responder of each type."""
