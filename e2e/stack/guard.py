"""The process that outlives a killed parent and leaves nothing behind.

Runs as `python guard.py FOLDER...` with a pipe from its parent as standard input. Lines `+PGID` and `-PGID` say
which process groups live. The kernel closes the pipe however the parent ends, even by SIGKILL; then every group
still listed is killed and the folders are removed.

Why not PR_SET_PDEATHSIG: it fires when the *thread* that forked ends, it needs code between fork and exec in a
process with threads, and it does not reach grandchildren.
"""

import os
import shutil
import signal
import sys


def kill_groups(groups: set[int]) -> None:
    """Kills what is left; a group that went by itself is fine."""
    for group in groups:
        try:
            os.killpg(group, signal.SIGKILL)
        except ProcessLookupError:
            continue


def main() -> None:
    """Follows the parent's notes until the pipe ends."""
    # The parent decides when we end: a Ctrl-C on the terminal or a polite TERM to the whole tree must not stop
    # the one process that cleans up.
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    groups: set[int] = set()
    for line in sys.stdin:
        note, group = line[0], int(line[1:])
        if note == "+":
            groups.add(group)
        else:
            groups.discard(group)
    kill_groups(groups)
    for folder in sys.argv[1:]:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
