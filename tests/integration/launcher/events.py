"""Waiting for what happens to files and processes without asking again and again. Also used by the tests' workers."""

import contextlib
import ctypes
import faulthandler
import os
import select
import sys
import threading
import time

# How long a test waits for an event that must come, at most: see patience(). It says nothing about how soon it should:
# who compares two outcomes gives the one that must not happen longer than this.
PATIENCE_S = 120.0

# ctest ends a script without a word after its TIMEOUT, which it passes on here.
_limit_s = float(os.environ.get("FSDPRUN_TEST_TIMEOUT_S", "inf"))
# So long before that limit the processes of a test are killed, and so long before it a script that waits for something else ends.
KILL_BEFORE_S, EXIT_BEFORE_S = 10.0, 3.0
_begin = time.monotonic()
# job: the JobCase whose processes are waited for, if this is a thread that runs a test; over: set when that test is over.
_of_thread = threading.local()

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

    def wait(self, timeout_s, pid=None):
        """True once something has changed since the last call or the beginning, or the process has ended; False if
        nothing does in time."""
        with _end_of(pid) as ended:
            if not select.select([self.fd, *ended], [], [], max(0.0, timeout_s))[0]:
                return False
        while select.select([self.fd], [], [], 0)[0]:
            os.read(self.fd, 65536)
        return True


@contextlib.contextmanager
def _end_of(pid):
    """A list with a descriptor that becomes readable when the process ends; an empty one if there is no process."""
    try:
        pidfd = os.pidfd_open(pid) if pid else None
    except ProcessLookupError:
        pidfd = os.open("/dev/null", os.O_RDONLY)  # Always readable.
    try:
        yield [] if pidfd is None else [pidfd]
    finally:
        if pidfd is not None:
            os.close(pidfd)


def patience():
    """How long to wait for what must come next. Half of what is left of ctest's limit: the script is never ended before
    it has said what it waited for, however many of its cases wait in vain."""
    return min(PATIENCE_S, max(0.0, _begin + _limit_s - time.monotonic()) / 2)


def left_s(share):
    """That share of what is left of ctest's limit, for what takes most of it; without a limit, for ever."""
    return share * max(0.0, _begin + _limit_s - KILL_BEFORE_S - time.monotonic())


def watch(job):
    """From now on waits are for what this JobCase's processes do, in this thread; None: for nobody's any more. Reads of
    their output, which ask no patience(), end in time, too: with the processes."""
    if over := getattr(_of_thread, "over", None):
        over.set()
    _of_thread.job, _of_thread.over = job, threading.Event()
    if job is not None and _limit_s < float("inf"):
        threading.Thread(target=_end_in_time, args=(job, _of_thread.over), daemon=True).start()


def _left_s(before_s):
    return max(0.0, _begin + _limit_s - before_s - time.monotonic())


def _end_in_time(job, over):
    """Kills what the test has started, and what it still starts, once ctest's limit is near; every read of a pipe ends then."""
    if over.wait(_left_s(KILL_BEFORE_S)):
        return
    print(f"{KILL_BEFORE_S:.0f} s before the end of this script's time: all processes of {job.id()} are killed", file=sys.stderr, flush=True)
    faulthandler.dump_traceback_later(max(1.0, _left_s(EXIT_BEFORE_S)), exit=True)  # Of who waits for something else.
    while True:
        job.kill_all()
        if over.wait(1):
            return faulthandler.cancel_dump_traceback_later()


def _watched():
    return getattr(_of_thread, "job", None)


def give_up(text):
    """Ends a wait in vain, with what the launchers have said."""
    raise AssertionError("\n".join([text, *(job.words_of_launchers() if (job := _watched()) else [])]))


def wait_for_files(condition, folder, what, writes=False):
    """The first true value of condition(), which looks at files in the folder and is asked after each change there. In
    a test it fails as soon as no process of the job is left that could make it true."""
    limit_s = patience()
    end = time.monotonic() + limit_s
    with FolderChanges(folder, writes=writes) as changes:
        while not (value := condition()):
            alive = job.alive() if (job := _watched()) else None
            if alive == [] and not (value := condition()):  # What came before the last one ended counts.
                give_up(f"waited for {what}, and all processes of the job have ended")
            if value:
                break
            if not changes.wait(end - time.monotonic(), alive and alive[0]):
                give_up(f"waited {limit_s:.0f} s for {what}")
        return value


def wait_for_ends(pids, what="processes to end"):
    """Returns once none of the processes runs any more; zombies do not."""
    limit_s = patience()
    end = time.monotonic() + limit_s
    for pid in pids:
        with _end_of(pid) as ended:
            if not select.select(ended, [], [], max(0.0, end - time.monotonic()))[0]:
                give_up(f"waited {limit_s:.0f} s for {what}; process {pid} is still there")
