# SPDX-License-Identifier: MIT
"""Words for numbers: GIDs, states, types and flags."""

import sys
from collections.abc import Mapping

from softverbs.pyverbs._fields import flag_names
from softverbs.pyverbs.libibverbs_enums import (
    IBV_REREG_MR_ERR_CMD,
    IBV_REREG_MR_ERR_CMD_AND_DO_FORK_NEW,
    IBV_REREG_MR_ERR_DO_FORK_OLD,
    IBV_REREG_MR_ERR_DONT_FORK_NEW,
    IBV_REREG_MR_ERR_INPUT,
)
from softverbs.pyverbs.pyverbs_error import PyverbsUserError

_QP_TYPES = {2: "RC", 3: "UC", 4: "UD", 8: "Raw Packet", 9: "XRCD_SEND", 10: "XRCD_RECV", 0xFF: "Driver QP"}
_QP_STATES = {0: "Reset", 1: "Init", 2: "RTR", 3: "RTS", 4: "SQD", 5: "SQE", 6: "Error", 7: "Unknown"}
_MIG_STATES = {0: "Migrated", 1: "Re-arm", 2: "Armed"}
_ACCESS = {
    1: "Local write",
    2: "Remote write",
    4: "Remote read",
    8: "Remote atomic",
    16: "MW bind",
    32: "Zero based",
    64: "On demand",
}
_REREG_ERRORS = {
    IBV_REREG_MR_ERR_INPUT: "IBV_REREG_MR_ERR_INPUT",
    IBV_REREG_MR_ERR_DONT_FORK_NEW: "IBV_REREG_MR_ERR_DONT_FORK_NEW",
    IBV_REREG_MR_ERR_DO_FORK_OLD: "IBV_REREG_MR_ERR_DO_FORK_OLD",
    IBV_REREG_MR_ERR_CMD: "IBV_REREG_MR_ERR_CMD",
    IBV_REREG_MR_ERR_CMD_AND_DO_FORK_NEW: "IBV_REREG_MR_ERR_CMD_AND_DO_FORK_NEW",
}


def be64toh(num: int) -> int:
    """A 64-bit integer that was read from network-order bytes as if they were in host order, put right."""
    return int.from_bytes(num.to_bytes(8, sys.byteorder), "big")


def gid_str(subnet_prefix: int, interface_id: int) -> str:
    """A GID's text, eight groups of four hexadecimal digits.

    :param subnet_prefix: first 8 bytes, as C reads them (network-order bytes in a host integer)
    :param interface_id: last 8 bytes, likewise
    """
    digits = f"{be64toh(subnet_prefix):016x}{be64toh(interface_id):016x}"
    return ":".join(digits[i : i + 4] for i in range(0, 32, 4))


def gid_str_to_array(val: str) -> list[str]:
    """The 16 bytes of a GID as pairs of hexadecimal digits.

    :param val: eight groups of four hexadecimal digits, with colons between
    :raises PyverbsUserError: for any other text
    """
    groups = str(val).split(":")
    if len(groups) != 8 or any(len(group) != 4 for group in groups):
        raise PyverbsUserError(f"Invalid GID value ({val}): eight groups of four hexadecimal digits are expected")
    try:
        raw = bytes.fromhex("".join(groups))
    except ValueError:
        raise PyverbsUserError(f"Invalid GID value ({val}): not hexadecimal") from None
    return [f"{byte:02x}" for byte in raw]


def _word(words: Mapping[int, str], number: int) -> str:
    return words.get(number, f"Unknown ({int(number)})")


def qp_type_to_str(qp_type: int) -> str:
    """``RC`` for IBV_QPT_RC, and so on."""
    return _word(_QP_TYPES, qp_type)


def qp_state_to_str(qp_state: int) -> str:
    """``RTS`` for IBV_QPS_RTS, and so on."""
    return _word(_QP_STATES, qp_state)


def mtu_to_str(mtu: int) -> int:
    """Bytes of IBV_MTU_*; 0 for any other number."""
    return 128 << mtu if 1 <= mtu <= 5 else 0


def access_flags_to_str(flags: int) -> str:
    """The names of IBV_ACCESS_* bits, each followed by a space."""
    return flag_names(flags, _ACCESS)


def mig_state_to_str(mig: int) -> str:
    """``Migrated`` for IBV_MIG_MIGRATED, and so on."""
    return _word(_MIG_STATES, mig)


def rereg_error_to_str(error: int) -> str:
    """The name of an IBV_REREG_MR_ERR_* number."""
    return _REREG_ERRORS.get(error, f"Unknown error ({error})")
