# SPDX-License-Identifier: MIT
"""The exceptions of the device. pyverbs has the same three; each here also carries its errno and its reason."""

import os


class PyverbsError(Exception):
    """Any refusal. ``str()`` is the reason, then the errno and its text where there is one."""

    def __init__(self, msg: str, error_code: int = -1) -> None:
        """
        :param msg: why, in words
        :param error_code: value of errno; -1 for none
        """
        self.reason = msg
        #: The work request that was refused, where a list of them was posted.
        self.bad_wr: object = None
        self.errno: int | None = None
        if error_code != -1:
            self.errno = error_code
            msg = f"{msg}. Errno: {error_code}, {os.strerror(error_code)}"
        super().__init__(msg)


class PyverbsRDMAError(PyverbsError):
    """The device refused a verb. ``error_code`` is the errno that the verb's manual page names."""

    def __init__(self, msg: str, error_code: int = -1) -> None:
        """
        :param msg: why, in words
        :param error_code: value of errno; -1 for none
        """
        super().__init__(msg, error_code)
        self._error_code = error_code

    @property
    def error_code(self) -> int:
        """The value of errno, or -1."""
        return self._error_code


class PyverbsUserError(PyverbsError):
    """The caller's input was wrong before any verb was reached."""

    def __init__(self, msg: str) -> None:
        """
        :param msg: why, in words
        """
        super().__init__(msg)
