"""Control keys on a terminal: pressing one shows nothing while something is drawn there."""

from __future__ import annotations

import os
from typing import IO


class ControlKeys:
    """Keeps a terminal from showing ``^C`` where the cursor stands, which tears what is drawn.

    Nothing happens where `file` is no terminal, where this process is in its background (it would
    be stopped for changing it), and on systems without termios.

    Args:
        file: what is drawn to.
    """

    def __init__(self, file: IO[str]) -> None:
        self._file = file
        self._was_shown = False

    def hush(self) -> None:
        """Show no control keys from now on."""
        self._was_shown = self._show(False)

    def restore(self) -> None:
        """Show them again, if `hush` hid them."""
        if self._was_shown:
            self._show(True)
            self._was_shown = False

    def _show(self, wanted: bool) -> bool:
        """Set whether they are shown; gives whether that was a change."""
        try:
            import termios
        except ImportError:
            return False
        try:
            terminal = self._file.fileno()
            if os.tcgetpgrp(terminal) != os.getpgrp():
                return False
            attributes = termios.tcgetattr(terminal)
            if bool(attributes[3] & termios.ECHOCTL) is wanted:
                return False
            attributes[3] ^= termios.ECHOCTL
            termios.tcsetattr(terminal, termios.TCSANOW, attributes)
        except (OSError, ValueError, termios.error):  # no terminal, or one that is gone
            return False
        return True
