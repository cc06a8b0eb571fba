"""Wrong input: one line that says what and where, without waiting for anybody (which would last longer than a test may
take), and nothing started."""

import ctypes
import os
import shutil
import signal
import socket
import threading

from job_case import BIN, JobCase, free_port
from unittest_main import main

PR_CAPBSET_DROP, CAP_DAC_OVERRIDE = 24, 1


def heed_file_modes():
    """Before an exec: takes root's privilege to write where a mode forbids it from the program to be."""
    if os.geteuid() == 0 and ctypes.CDLL(None, use_errno=True).prctl(PR_CAPBSET_DROP, CAP_DAC_OVERRIDE, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_CAPBSET_DROP)")


class BadInputTest(JobCase):
    def setUp(self):
        super().setUp()
        self.touch = self.script("note('started')")

    def tearDown(self):
        self.assertEqual(self.notes("started"), {})
        super().tearDown()

    def test_unknown_option(self):
        self.assert_one_line_error(self.run_job("--nproc-pre-node=2", self.touch), 2, "--nproc-pre-node",
                                   "did you mean --nproc-per-node")

    def test_wrong_values(self):
        for option in ("--nnodes=1:2:3", "--nnodes=0", "--nproc-per-node=foo", "--rdzv-backend=zz", "--rdzv-conf=a",
                       "--master-port=99999", "--monitor-interval=0", "--logs-specs=mine"):
            with self.subTest(option):
                name, value = option.split("=")
                self.assert_one_line_error(self.run_job(option, self.touch), 1, name, f"'{value}'")

    def test_what_is_no_number_is_a_usage_error(self):
        for option in ("--max-restarts=x", "--master-port=y", "--monitor-interval=soon", "--start-method=thread"):
            with self.subTest(option):
                name, value = option.split("=")
                self.assert_one_line_error(self.run_job("--nnodes=0", option, self.touch), 2, name, f"'{value}'")

    def test_wrong_environment_twin(self):
        self.assert_one_line_error(self.run_job(self.touch, env={"PET_NNODES": "x"}), 1, "PET_NNODES", "'x'")
        self.assert_one_line_error(self.run_job(self.touch, env={"PET_MODULE": "yes"}), 1, "PET_MODULE", "'yes'")
        self.assert_one_line_error(self.run_job(self.touch, env={"PET_MAX_RESTARTS": "x"}), 2, "PET_MAX_RESTARTS", "'x'")

    def test_no_program(self):
        self.assert_one_line_error(self.run_job("--standalone"), 2, "no program")

    def test_missing_script(self):
        self.assert_one_line_error(self.run_job("--standalone", "/nowhere/train.py"), 1, "/nowhere/train.py", "No such file")

    def test_missing_executable(self):
        self.assert_one_line_error(self.run_job("--standalone", "--no-python", "./nope"), 1, "./nope")
        self.assert_one_line_error(self.run_job("--standalone", "--no-python", "no-such-command"), 1, "no-such-command", "PATH")

    def test_not_executable(self):
        self.assert_one_line_error(self.run_job("--standalone", "--no-python", self.touch), 1, self.touch, "chmod +x")

    def test_missing_python(self):
        self.assert_one_line_error(self.run_job("--standalone", self.touch, env={"PYTHON_EXEC": "/no/python"}), 1, "/no/python")

    def test_unusable_log_directory(self):
        self.assert_one_line_error(self.run_job("--standalone", "--log-dir", self.touch, self.touch), 1, self.touch, "--log-dir")
        self.assert_one_line_error(self.run_job("--standalone", "--log-dir", "/proc/nope", self.touch), 1, "/proc/nope")

    def test_unusable_temporary_directory(self):
        self.assert_one_line_error(self.run_job("--standalone", self.touch, env={"TMPDIR": "/proc/nope"}), 1, "/proc/nope",
                                   "--log-dir")

    def test_no_arguments(self):
        self.assert_one_line_error(self.run_job(), 2, "no program", "usage", "--help")

    def test_unwritable_log_directory(self):
        (self.dir / "closed").mkdir(mode=0o500)
        self.assert_one_line_error(self.run_job("--standalone", "--log-dir", self.dir / "closed", self.touch,
                                                preexec_fn=heed_file_modes), 1, "closed", "Permission denied")

    def test_port_in_use(self):
        with socket.socket() as other:
            other.bind(("127.0.0.1", 0))
            other.listen()
            port = other.getsockname()[1]
            holder = f"process {os.getpid()}"
            self.assert_one_line_error(self.run_job(f"--master-port={port}", self.touch), 1, port, holder)
            self.assert_one_line_error(self.run_job("--nnodes=2", f"--master-port={port}", self.touch), 1, port, holder)

    def test_port_in_use_by_no_coordinator(self):
        with socket.socket() as other:
            other.bind(("127.0.0.1", 0))
            other.listen()
            port = other.getsockname()[1]
            def answer():
                with other.accept()[0] as caller:
                    caller.recv(64)
                    caller.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            threading.Thread(target=answer, daemon=True).start()
            self.assert_one_line_error(
                self.run_job("--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", self.touch), 1, port,
                f"process {os.getpid()}", "no coordinator")

    def test_port_in_use_by_somebody_silent(self):
        with socket.socket() as other:
            other.bind(("127.0.0.1", 0))
            other.listen()
            port = other.getsockname()[1]
            self.assert_one_line_error(
                self.run_job("--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", self.touch), 1, port,
                f"process {os.getpid()}", "no coordinator")

    def test_address_of_another_machine_for_one_node(self):
        self.assert_one_line_error(self.run_job("--master-addr=192.0.2.1", self.touch), 1, "192.0.2.1",
                                   "not an address of this machine", "--nnodes")

    def test_unknown_host(self):
        self.assert_one_line_error(
            self.run_job("--nnodes=2", "--master-addr=no-such-host.invalid", "--rdzv-conf=join_timeout=1", self.touch), 1,
            "no-such-host.invalid", "within 1 s")

    def test_what_is_no_name_is_not_waited_for(self):
        for name in ("node 0", "10.0.0.256"):
            self.assert_one_line_error(self.run_job("--nnodes=2", f"--master-addr={name}", self.touch), 1, name)

    def test_a_local_address_of_several_words(self):
        self.assert_one_line_error(self.run_job("--local-addr=node 9", self.touch), 1, "--local-addr", "'node 9'", "blanks")

    def test_address_of_another_machine(self):
        self.assert_one_line_error(self.run_job("--nnodes=2", "--master-addr=192.0.2.1", self.touch,
                                                env={"FSDPRUN_TOKEN": "t"}), 1, "192.0.2.1", "not an address of this machine")

    def test_agent_without_endpoint(self):
        self.assert_one_line_error(self.run_job(self.touch, binary="fsdp-agent"), 2, "--rdzv-endpoint")
        self.assert_one_line_error(self.run_job("--rdzv-endpoint=h:1", "--nproc-per-node=foo", self.touch, binary="fsdp-agent"), 2,
                                   "'foo'")

    def test_help_and_version(self):
        for binary in ("fsdprun", "fsdp-agent"):
            rc, out, err = self.run_job("--help", binary=binary)
            self.assertEqual((rc, err), (0, ""))
            for word in ("usage:", "--nproc-per-node", "PET_NPROC_PER_NODE", "Signals:", "Exit codes:"):
                self.assertIn(word, out)
        self.assertEqual(self.run_job("--version")[0], 0)

    def test_man_page(self):
        for binary in ("fsdprun", "fsdp-agent"):
            rc, out, err = self.run_job("--man", binary=binary)
            self.assertEqual((rc, err), (0, ""))
            self.assertTrue(out.startswith(".TH "), out[:80])
            self.assertIn(r"\fB\-\-nproc\-per\-node\fR", out)

    def test_dry_run_prints_the_plan(self):
        rc, out, _ = self.run_job("--dry-run", "--nnodes=2:3", "--rdzv-backend=c10d", f"--rdzv-endpoint=h:{free_port()}", "x.py")
        self.assertEqual(rc, 0)
        self.assertIn("nodes: 2:3", out)


class DefaultPortTest(JobCase):
    def test_busy_default_port_is_replaced(self):
        with socket.socket() as other:
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                other.bind(("127.0.0.1", 29500))
                other.listen()
            except OSError:
                pass  # Somebody else holds it, which is just as good.
            rc, _, err = self.run_job(self.script("note('port', os.environ['MASTER_PORT'])"), env={"LOGLEVEL": "WARNING", "OMP_NUM_THREADS": "1"})
        self.assertEqual(rc, 0, err)
        port = self.notes("port")[1, 0]
        self.assertNotEqual(port, "29500")
        self.assertEqual(err, f"fsdprun WARNING MASTER_PORT 29500 is busy, using {port}\n")

    def test_waiting_for_the_coordinator_is_told_every_five_seconds(self):
        port = free_port()
        launcher = self.start("--nnodes=2", "--node-rank=1", f"--master-port={port}", self.script("note('started')"))
        line = launcher.stderr.readline()
        for word in ("waiting for the coordinator", f"127.0.0.1:{port}", "5 s of 900 s"):
            self.assertIn(word, line)
        launcher.send_signal(signal.SIGINT)
        rc, _, err = self.finish(launcher)
        self.assertEqual((rc, err), (1, "fsdprun: stopped by signal 2\n"))
        self.assertEqual(list((self.dir / "tmp").glob("fsdprun_*")), [])

    def test_node_rank_of_the_environment_stops_neither_standalone_nor_c10d(self):
        script = self.script("note('rank')")
        for args in (["--standalone"], ["--rdzv-backend=c10d"]):
            rc, _, err = self.run_job(*args, script, env={"PET_NODE_RANK": "1"})
            self.assertEqual(rc, 0, err)
        rc, _, err = self.run_job("--nnodes=1:2", "--rdzv-backend=c10d", f"--rdzv-endpoint=localhost:{free_port()}",
                                  "--rdzv-conf=last_call_timeout=0", "--node-rank=2", script)
        self.assertEqual(rc, 0, err)

    def test_a_job_ends_with_the_agent_of_its_only_node(self):
        keeper = self.dir / "fsdp-keeper"  # A launcher looks for it beside itself.
        keeper.write_text("#!/bin/sh\nexit 1\n")
        keeper.chmod(0o755)
        launcher = shutil.copy(BIN / "fsdprun", self.dir)
        rc, _, err = self.run_job("--standalone", self.script("pass"), binary=launcher)
        self.assertEqual(rc, 1, err)
        self.assertIn("keeper", err)

    def test_row_52_join_timeout_says_how_many_are_missing(self):
        rc, _, err = self.run_job("--nnodes=2", f"--master-port={free_port()}", "--rdzv-conf=join_timeout=1",
                                  self.script("note('started')"))
        self.assertEqual(rc, 1)
        self.assertIn("1 of 2", err)
        self.assertIn("RendezvousTimeoutError", err)
        self.assertEqual(self.notes("started"), {})


if __name__ == "__main__":
    main()
