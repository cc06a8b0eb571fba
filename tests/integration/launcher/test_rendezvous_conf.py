"""Keys of --rdzv-conf that say who hosts the coordinator, and how."""

import os
import socket
import time

from job_case import JobCase, free_port
from unittest_main import main


class HostTest(JobCase):
    def setUp(self):
        super().setUp()
        self.port = free_port()
        self.args = ["--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint= localhost:{self.port} "]
        self.worker = self.script("note('rank')")

    def node(self, conf, **kwargs):
        return self.start(*self.args, f"--rdzv-conf={conf}", self.worker, **kwargs)

    def test_is_host_decides_who_hosts(self):
        waits = self.node("is_host=false,join_timeout=60")
        self.wait_for_run_directory()
        host = self.node("is_host=True")
        self.assertEqual([self.finish(node)[0] for node in (host, waits)], [0, 0])

    def test_who_must_host_names_the_holder_of_the_port(self):
        first = self.node("is_host=1,join_timeout=60")
        self.wait_for_run_directory()
        result = self.finish(self.node("is_host=yes"))
        self.assert_one_line_error(result, 1, self.port, f"process {first.pid}", "is_host=true")
        self.assertEqual(self.finish(self.node("is_host=0"))[0], 0)
        self.assertEqual(self.finish(first)[0], 0)

    def test_who_must_not_host_waits(self):
        result = self.finish(self.node("is_host=f,join_timeout=1"))
        self.assertEqual(result[0], 1)
        self.assertIn("could not join", result[2])

    def test_read_timeout_bounds_an_attempt(self):
        with socket.socket() as silent:
            silent.bind(("127.0.0.1", self.port))
            silent.listen()
            rc, _, err = self.run_job("--nnodes=2", "--node-rank=1", f"--master-port={self.port}", self.worker, binary="fsdprun",
                                      env={"PET_RDZV_CONF": "read_timeout=0.5,join_timeout=1"})
        self.assertEqual(rc, 1)
        self.assertIn("no coordinator", err)


if __name__ == "__main__":
    main()
