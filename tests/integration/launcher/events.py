"""Waiting for what happens to files and processes without asking again and again. Also used by the tests' workers."""

import ctypes
import os
import select
import time

# How long a test waits for an event that must come. It says nothing about how soon it should: who compares two
# outcomes gives the one that must not happen longer than this.
PATIENCE_S = 120.0

IN_MODIFY, IN_MOVED_TO, IN_CREATE = 0x2, 0x80, 0x100

_libc = ctypes.CDLL(None, use_errno=True)


class FolderChanges:
    """Tells of files that are made in folders or moved there; with `writes` also of what is written into them."""

    def __init__(self, *folders, writes=False):
        self.mask = IN_CREATE | IN_MOVED_TO | (IN_MODIFY if writes else 0)
        self.fd = _libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
        if self.fd < 0:
            raise OSError(ctypes.get_errno(), "inotify_init1")
        for folder in folders:
            if _libc.inotify_add_watch(self.fd, os.fsencode(folder), self.mask) < 0:
                os.close(self.fd)
                raise OSError(ctypes.get_errno(), f"inotify_add_watch {folder}")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        os.close(self.fd)

    def wait(self, timeout_s):
        """True once something has changed since the last call or the beginning; False if nothing does in time."""
        if not select.select([self.fd], [], [], max(0.0, timeout_s))[0]:
            return False
        while select.select([self.fd], [], [], 0)[0]:
            os.read(self.fd, 65536)
        return True


def wait_for_files(condition, folder, what, writes=False):
    """The first true value of condition(), which looks at files in the folder and is asked after each change there."""
    end = time.monotonic() + PATIENCE_S
    with FolderChanges(folder, writes=writes) as changes:
        while not (value := condition()):
            if not changes.wait(end - time.monotonic()):
                raise AssertionError(f"waited {PATIENCE_S:.0f} s for {what}")
        return value


def wait_for_ends(pids, what="processes to end"):
    """Returns once none of the processes runs any more; zombies do not."""
    end = time.monotonic() + PATIENCE_S
    for pid in pids:
        try:
            pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            if not select.select([pidfd], [], [], max(0.0, end - time.monotonic()))[0]:
                raise AssertionError(f"waited {PATIENCE_S:.0f} s for {what}; process {pid} is still there")
        finally:
            os.close(pidfd)
