"""Many launchers that start at once, while the one that they all need is stopped: they are slow, and none is lost."""

import collections
import os
import pathlib
import re
import select
import signal
import sys
import time

from events import patience
from job_case import JobCase, free_port, wait_until, wait_until_listening
from unittest_main import main

NODES = 64
STOPPED_S = 5


def connections(port):
    rows = [line.split() for table in ("tcp", "tcp6") for line in pathlib.Path("/proc/net", table).read_text().splitlines()[1:]]
    return sum(row[1].endswith(f":{port:04X}") and row[3] == "01" for row in rows)


class CrowdTest(JobCase):
    def test_a_host_that_is_stopped_in_the_middle_of_the_joins_loses_nobody(self):
        port = free_port()
        args = [f"--nnodes={NODES}", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=crowd",
                "--no-python", "true"]
        env = {"LOGLEVEL": "WARNING"}
        host = self.start(*args, env=env)
        wait_until_listening(port)
        nodes = [self.start(*args, env=env) for _ in range(NODES - 2)]
        wait_until(lambda: connections(port) >= NODES // 3, "a third of the nodes to connect")
        os.kill(host.pid, signal.SIGSTOP)
        nodes.append(self.start(*args, env=env))  # The last: before, there is no world, however slow this test is.
        time.sleep(STOPPED_S)  # the fault itself
        os.kill(host.pid, signal.SIGCONT)
        for node in self.in_order_of_their_ends([host, *nodes]):
            rc, _, err = self.finish(node)
            self.assertEqual(rc, 0, err)
            for word in ("silent", "lost its stream", "could not reach"):
                self.assertNotIn(word, err)

    def in_order_of_their_ends(self, launchers):
        """Who has failed comes before those who wait for it. If nobody ends, says in few words what all have said."""
        left = {os.pidfd_open(launcher.pid): launcher for launcher in launchers}
        while left:
            limit_s = patience()
            ended = select.select(list(left), [], [], limit_s)[0]
            if not ended:
                self.fail(f"{len(left)} of {len(launchers)} launchers still run, and for {limit_s:.0f} s none has ended:\n"
                          + self.summary(list(left.values())))
            for fd in ended:
                os.close(fd)
                yield left.pop(fd)

    def summary(self, launchers):
        """Lines that differ in numbers alone count as one."""
        lines = collections.Counter()
        for launcher in launchers:
            launcher.kill()
            lines.update({re.sub(r"\d+", "N", line) for line in launcher.communicate()[1].splitlines()})
        return "\n".join(f"{count} launchers: {line}" for line, count in lines.most_common())


if __name__ == "__main__":
    if not sys.platform.startswith("linux"):
        sys.exit(77)
    main()
