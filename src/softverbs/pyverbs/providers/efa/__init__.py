# SPDX-License-Identifier: MIT
"""What EFA has and the verbs have not, as far as this device has it too."""
