# SPDX-License-Identifier: MIT
"""Flow steering: rules that choose which frames a QP for raw packets gets. This device has neither."""

import errno
from typing import Any

from softverbs.pyverbs import libibverbs_enums as e
from softverbs.pyverbs._fields import Field, fill, instance, refused
from softverbs.pyverbs.base import PyverbsCM, PyverbsObject


class FlowAttr(PyverbsObject):
    """A rule, ``struct ibv_flow_attr`` (ibv_create_flow(3))."""

    type = Field("IBV_FLOW_ATTR_*.")
    priority = Field("Rules of a lower number come first.", 16)
    num_of_specs = Field("How many specifications it has.", 8)
    port = Field("Port of the device.", 8)
    flags = Field("IBV_FLOW_ATTR_FLAGS_* bits.")

    def __init__(
        self,
        num_of_specs: int = 0,
        flow_type: int = e.IBV_FLOW_ATTR_NORMAL,
        priority: int = 0,
        port: int = 1,
        flags: int = 0,
    ) -> None:
        """
        :param num_of_specs: how many specifications it has
        :param flow_type: IBV_FLOW_ATTR_*
        :param priority: rules of a lower number come first
        :param port: port of the device
        :param flags: IBV_FLOW_ATTR_FLAGS_* bits
        """
        fill(self, num_of_specs=num_of_specs, type=flow_type, priority=priority, port=port, flags=flags)
        self._specs: list[Any] = []

    @property
    def specs(self) -> list[Any]:
        """The specifications, to append to."""
        return self._specs


class Flow(PyverbsCM):
    """A rule in force. This device carries RoCE only, which queue pair numbers steer: every creation is refused."""

    def __init__(self, qp: Any, flow_attr: FlowAttr) -> None:
        """
        :param qp: which QP gets the frames
        :param flow_attr: the rule
        :raises PyverbsRDMAError: EOPNOTSUPP
        """
        instance(flow_attr, FlowAttr, "flow_attr")
        raise refused(
            "Flow creation failed: this device has no flow steering; queue pair numbers say where RoCE frames go",
            errno.EOPNOTSUPP,
        )


class FlowAction(PyverbsObject):
    """What a rule does beside steering; a base class only."""
