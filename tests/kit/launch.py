"""Become a server: as another user where one is named, and with a signal for when the process that starts it ends.

Run as a program, with the standard library only, because code between fork and exec is not safe beside threads.
"""

from __future__ import annotations

import ctypes
import os
import sys

PR_SET_PDEATHSIG = 1


def main(parent: str, death_signal: str, user: str, group: str, *command: str) -> None:
    """Change the user (`-` for as it is), tie the life to the parent's, and become the command."""
    if user != "-":
        os.setgroups([])
        os.setgid(int(group))
        os.setuid(int(user))
    if sys.platform == "linux":  # elsewhere a server outlives a killed parent
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(death_signal))  # a change of user would clear it: so after it
        if os.getppid() != int(parent):
            sys.exit("the process that starts this server is gone")
    os.execv(command[0], command)


if __name__ == "__main__":
    main(*sys.argv[1:])
