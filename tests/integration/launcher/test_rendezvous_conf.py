"""Keys of --rdzv-conf that say who hosts the coordinator, and how."""

import contextlib
import signal
import socket

from events import wait_for_files
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
        with self.assertRaises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", self.port))
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
            # An agent, which does not look at who holds the port.
            rc, _, err = self.run_job(f"--rdzv-endpoint=127.0.0.1:{self.port}", self.worker, binary="fsdp-agent",
                                      env={"PET_RDZV_CONF": "read_timeout=0.3,join_timeout=4"})
            silent.setblocking(False)
            attempts = 0
            with contextlib.suppress(BlockingIOError):
                while True:
                    silent.accept()[0].close()
                    attempts += 1
        self.assertGreater(attempts, 4, err)  # By default an attempt takes longer than all of this.
        self.assertEqual(rc, 1)
        self.assertIn("could not join", err)


class OneEndpointTest(JobCase):
    """Jobs with different run ids, all with one endpoint."""

    def setUp(self):
        super().setUp()
        self.port = free_port()
        self.worker = self.script("note('of-' + os.environ['TORCHELASTIC_RUN_ID'], WORLD)\nwait_for('go-' + os.environ['TORCHELASTIC_RUN_ID'])")

    def node(self, run_id):
        return self.start("--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint=localhost:{self.port}", f"--rdzv-id={run_id}",
                          self.worker)

    def pair(self, run_id):
        nodes = [self.node(run_id) for _ in range(2)]
        self.wait_for_notes(f"of-{run_id}", 1, range(2))
        return nodes

    def finish_all(self, nodes):
        return [self.finish(node)[0] for node in nodes]

    def finish_job(self, run_id, nodes):
        (self.dir / f"go-{run_id}").touch()
        self.assertEqual(self.finish_all(nodes), [0, 0])
        for path in self.dir.glob(f"*-{run_id}*"):
            path.unlink()

    def test_row_62_two_jobs_on_one_endpoint(self):
        nodes = [(run_id, self.node(run_id)) for run_id in "abcabc"]
        for run_id in "abc":
            self.assertEqual(set(self.wait_for_notes(f"of-{run_id}", 1, range(2)).values()), {"2"})
            (self.dir / f"go-{run_id}").touch()
        self.assertEqual([self.finish(node)[0] for _, node in nodes], [0] * 6)

    def test_row_62_a_closed_run_id_refuses_a_late_joiner(self):
        holder = self.pair("one")
        self.finish_job("two", self.pair("two"))
        self.assert_one_line_error(self.finish(self.node("two")), 1, "'two' is over")
        self.finish_job("one", holder)

    def test_row_62_a_signal_or_a_kill_leaves_the_run_id_open(self):
        holder = self.pair("one")
        for end in (signal.SIGTERM, signal.SIGKILL):
            nodes = self.pair("two")
            for node in nodes:
                node.send_signal(end)
            self.assertNotIn(0, self.finish_all(nodes))
            for path in self.dir.glob("of-two*"):
                path.unlink()
        self.finish_job("two", self.pair("two"))
        self.finish_job("one", holder)


class FileTest(JobCase):
    def setUp(self):
        super().setUp()
        self.path = self.dir / "shared" / "rendezvous"
        self.path.parent.mkdir()
        self.worker = self.script("note('rank')\nwait_for('go')")

    def node(self, *args, run_id="run7", nodes=2, **kwargs):
        return self.start(f"--nnodes={nodes}", "--rdzv-backend=c10d", "--rdzv-conf=store_type=file,last_call_timeout=0",
                          f"--rdzv-endpoint={self.path}", f"--rdzv-id={run_id}", *args, self.worker, **kwargs)

    def left(self):
        return sorted(path.name for path in self.path.parent.iterdir())

    def wait_for_claim(self):
        wait_for_files(self.left, self.path.parent, "the rendezvous file")

    def test_two_launchers_find_each_other_through_a_file(self):
        for _ in range(2):  # A run id that nobody chose is free again afterwards.
            nodes = [self.node(run_id="none") for _ in range(2)]
            self.wait_for_notes("rank", 1, range(2))
            (self.dir / "go").touch()
            self.assertEqual([self.finish(node)[0] for node in nodes], [0, 0])
            self.assertEqual(self.left(), [])

    def test_row_62_a_closed_run_id_refuses_a_late_joiner(self):
        (self.dir / "go").touch()
        self.assertEqual([self.finish(node)[0] for node in [self.node() for _ in range(2)]], [0, 0])
        self.assert_one_line_error(self.finish(self.node()), 1, "'run7' is over", self.path)
        self.assertEqual(self.left(), ["rendezvous.run7"])

    def test_row_62_a_signal_leaves_the_run_id_open(self):
        nodes = [self.node() for _ in range(2)]
        self.wait_for_notes("rank", 1, range(2))
        for node in nodes:
            node.send_signal(signal.SIGTERM)
        self.assertEqual([self.finish(node)[0] for node in nodes], [1, 1])
        self.assertEqual(self.left(), [])

    def test_a_holder_that_was_killed_is_replaced(self):
        first = self.node()
        self.wait_for_claim()
        first.kill()
        first.wait()
        (self.dir / "go").touch()
        self.assertEqual([self.finish(node)[0] for node in [self.node() for _ in range(2)]], [0, 0])

    def test_two_run_ids_in_one_file_are_two_jobs(self):
        self.worker = self.script("note('of-' + os.environ['TORCHELASTIC_RUN_ID'], WORLD)\nwait_for('go')")
        nodes = [self.node(run_id=run_id) for run_id in "abab"]
        for run_id in "ab":
            self.assertEqual(set(self.wait_for_notes(f"of-{run_id}", 1, range(2)).values()), {"2"})
        (self.dir / "go").touch()
        self.assertEqual([self.finish(node)[0] for node in nodes], [0] * 4)

    def test_a_path_is_needed_and_must_be_writable(self):
        self.path = ""
        self.assert_one_line_error(self.finish(self.node()), 1, "store_type=file", "--rdzv-endpoint")
        self.path = "/proc/nowhere/file"
        self.assert_one_line_error(self.finish(self.node()), 1, "/proc/nowhere/file")


if __name__ == "__main__":
    main()
