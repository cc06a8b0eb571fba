"""fsdpctl doctor: what it says of a machine that lacks something, and of the way between nodes."""

import contextlib
import json
import os
import resource
import signal
import socket
import subprocess
import time
import unittest

from job_case import BIN, JobCase, free_port, wait_until_listening
from network import Network, reason_to_skip
from unittest_main import main

SKIP = reason_to_skip()
TOKEN = "0123456789abcdef" * 4


class DoctorCase(JobCase):
    def setUp(self):
        super().setUp()
        self.runtime = self.dir / "run"
        self.runtime.mkdir()
        self.env = {**os.environ, "XDG_RUNTIME_DIR": str(self.runtime), "TMPDIR": str(self.dir), "FSDPRUN_TOKEN": TOKEN}

    def doctor(self, *words, **env):
        return subprocess.run([BIN / "fsdpctl", "doctor", *map(str, words)], env={**self.env, **env}, text=True,
                              capture_output=True, timeout=120)

    def start_doctor(self, *words, command=(), **env):
        started = subprocess.Popen([*command, BIN / "fsdpctl", "doctor", *map(str, words)], env={**self.env, **env}, text=True,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.addCleanup(started.stdout.close)
        self.addCleanup(started.stderr.close)
        self.addCleanup(started.kill)
        return started

    def end_of(self, started):
        out, err = started.communicate(timeout=120)
        return started.returncode, out, err

    def report(self, *words, **env):
        done = self.doctor("--json", *words, **env)
        self.assertEqual(done.stdout.count("\n"), 1, done.stderr)
        report = json.loads(done.stdout)
        self.assertEqual(done.returncode, 1 if report["worst"] == "problem" else 0)
        return report

    def finding(self, findings, check, group=None):
        (found,) = [f for f in findings if f["check"] == check and group in (None, f["group"])]
        return found

    def severity(self, report, check):
        return self.finding(report["findings"], check)["severity"]


class MachineTest(DoctorCase):
    def test_every_group_says_something(self):
        report = self.report()
        self.assertEqual(report["v"], 1)
        self.assertEqual({f["group"] for f in report["findings"]},
                         {"limits", "memory", "cpus", "shared-memory", "folders", "processes", "network", "clock", "gpus", "nccl",
                          "python", "fsdprun"})
        self.assertEqual(self.severity(report, "programs"), "ok")
        for finding in report["findings"]:
            self.assertIn(finding["severity"], ("ok", "note", "warning", "problem"))
            if finding["severity"] in ("warning", "problem"):
                self.assertTrue(finding["why"] or finding["what_to_do"], finding)
        self.assertEqual(list(self.runtime.iterdir()), [])  # Nothing was made.

    def test_texts(self):
        short = self.doctor().stdout
        every = self.doctor("--all").stdout
        self.assertRegex(short, r"(?m)^limits +")
        self.assertIn("--all shows everything", short)
        self.assertRegex(every, r"(?m)^  ok +open files: |^  note +open files: |^  warning +open files: ")
        self.assertGreater(every.count("\n"), short.count("\n"))
        self.assertTrue(every.isascii())
        self.assertIn("Between nodes", self.doctor("--help").stdout)

    def test_wrong_usage(self):
        for words, code in ((("--listen", "--with=a"), 2), (("node0",), 2), (("--port=x",), 2), (("--port=70000",), 1)):
            done = self.doctor(*words)
            self.assertEqual((done.returncode, done.stdout, done.stderr.count("\n")), (code, "", 1), done.stderr)

    def test_port_that_is_taken(self):
        with socket.socket() as holder:
            holder.bind(("", 0))
            holder.listen()
            port = holder.getsockname()[1]
            found = self.finding(self.report("--port", port)["findings"], "port")
            self.assertEqual(found["severity"], "problem")
            self.assertIn(f"process {os.getpid()} ", found["found"])
        self.assertEqual(self.severity(self.report("--port", free_port()), "port"), "ok")

    def test_few_descriptors(self):
        done = subprocess.run([BIN / "fsdpctl", "doctor", "--json"], env=self.env, text=True, capture_output=True, timeout=120,
                              preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128)))
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertEqual(self.severity(json.loads(done.stdout), "open_files"), "problem")
        self.assertIn("ulimit -n 65536", done.stdout)

    def test_folders_that_are_not_there(self):
        report = self.report("--log-dir", self.dir / "none", TMPDIR=str(self.dir / "gone"), XDG_RUNTIME_DIR=str(self.dir / "away"))
        self.assertEqual(self.severity(report, "temporary"), "problem")
        self.assertEqual(self.severity(report, "logs"), "ok")  # fsdprun will make it.
        self.assertIn(f"to be made in {self.dir},", self.finding(report["findings"], "logs")["found"])
        self.assertFalse((self.dir / "none").exists())
        self.assertEqual(self.severity(report, "runtime"), "warning")
        self.assertEqual(self.severity(self.report("--log-dir", "/proc/none"), "logs"), "problem")

    def test_interface_that_is_not_there(self):
        report = self.report(NCCL_SOCKET_IFNAME="nonet")
        self.assertEqual(self.finding(report["findings"], "interface")["severity"], "problem")

    def test_python_that_hangs_is_not_waited_for(self):
        python = self.dir / "python"
        python.write_text("#!/bin/sh\nexec sleep 1000\n")
        python.chmod(0o755)
        begin = time.monotonic()
        found = self.finding(self.report(PYTHON_EXEC=str(python))["findings"], "interpreter")
        self.assertIn("no answer", found["found"])
        self.assertLess(time.monotonic() - begin, 60)

    def test_secret_that_others_can_read(self):
        folder = self.dir / ".config/fsdprun"
        folder.mkdir(parents=True)
        (folder / "secret").write_text("a" * 64)
        (folder / "secret").chmod(0o644)
        self.env.pop("FSDPRUN_TOKEN")
        found = self.finding(self.report(HOME=str(self.dir), XDG_CONFIG_HOME="")["findings"], "token")
        self.assertEqual(found["severity"], "problem")
        self.assertNotIn("a" * 64, json.dumps(found))


class PairTest(DoctorCase):
    def setUp(self):
        super().setUp()
        self.port = free_port()

    def meet(self, nodes):
        """The same line on each; the report of the one that has printed it, and all exit codes."""
        words = ("--json", f"--rdzv-endpoint=127.0.0.1:{self.port}", f"--nnodes={nodes}")
        ends = [self.end_of(each) for each in [self.start_doctor(*words) for _ in range(nodes)]]
        (text,) = [out for _, out, _ in ends if out]
        return json.loads(text), ends

    def test_nodes_meet_at_an_endpoint(self):
        report, _ = self.meet(3)
        self.assertEqual(len(report["pairs"]), 2)
        self.assertEqual(len(report["nodes"]), 2)
        self.assertEqual(self.finding(report["meeting"], "nodes")["severity"], "ok")
        for pair in report["pairs"]:
            self.assertEqual((pair["large_to_bytes"], pair["large_from_bytes"], pair["streams"]), (1 << 20, 1 << 20, 8))
            self.assertGreater(pair["round_trip_median_us"], 0)
            for rate in ("to_bits_per_s", "from_bits_per_s", "to_bits_per_s_streams", "from_bits_per_s_streams"):
                self.assertGreater(pair[rate], 1e6, rate)
            self.assertEqual(pair["back"]["error"], "")
            self.assertLess(abs(pair["clock_offset_us"]), 100_000)  # It is the same clock.
        self.assertTrue(any(f["group"] == "fsdprun" for f in report["nodes"][0]["findings"]))

    def test_one_listens_and_one_goes(self):
        listens = self.start_doctor("--listen", "--nnodes=2", f"--port={self.port}")
        goes = self.start_doctor(f"--with=localhost:{self.port}")
        for end, word in ((self.end_of(goes), "8 STREAMS"), (self.end_of(listens), "1 other node was tested")):
            self.assertIn(word, end[1], end)

    def test_another_token_is_told_to_both(self):
        listens = self.start_doctor("--listen", "--json", "--nnodes=2", f"--port={self.port}")
        wait_until_listening(self.port)
        other = self.doctor("--json", f"--with=127.0.0.1:{self.port}", FSDPRUN_TOKEN="another" * 8)
        self.assertEqual(other.returncode, 1)
        self.assertIn("another token", self.finding(json.loads(other.stdout)["meeting"], "meeting")["found"])
        listens.send_signal(signal.SIGINT)
        rc, out, _ = self.end_of(listens)
        self.assertEqual(rc, 1)
        report = json.loads(out)
        self.assertIn("127.0.0.1", self.finding(report["meeting"], "token")["found"])
        self.assertEqual(report["pairs"], [])
        self.assertNotIn(TOKEN, out + other.stdout + other.stderr)

    def test_a_secret_that_is_made_is_told(self):
        self.env.pop("FSDPRUN_TOKEN")
        self.env.update(HOME=str(self.dir), XDG_CONFIG_HOME="")
        goes = self.doctor(f"--with=127.0.0.1:{self.port}", "--timeout=0.1")
        secret = self.dir / ".config/fsdprun/secret"
        self.assertTrue(secret.is_file())
        self.assertIn(f"made a secret for this user, as a job would: {secret}", goes.stderr)
        again = self.doctor(f"--with=127.0.0.1:{self.port}", "--timeout=0.1")
        self.assertNotIn("secret", again.stderr)

    def test_strangers_are_told_nothing_and_do_not_disturb(self):
        listens = self.start_doctor("--listen", "--json", "--nnodes=2", f"--port={self.port}")
        wait_until_listening(self.port)
        strangers = [socket.create_connection(("127.0.0.1", self.port)) for _ in range(40)]
        for stranger in strangers:
            self.addCleanup(stranger.close)
        for stranger, text in zip(strangers, (b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", b"\0\0\0\1x")):
            stranger.sendall(text)
            with contextlib.suppress(ConnectionResetError):
                self.assertEqual(stranger.recv(1000), b"")
        goes = self.doctor("--json", f"--with=127.0.0.1:{self.port}")
        self.assertEqual(len(json.loads(goes.stdout)["pairs"]), 1, goes.stdout)
        _, out, _ = self.end_of(listens)
        report = json.loads(out)
        self.assertEqual(len(report["pairs"]), 1)
        self.assertEqual(self.finding(report["meeting"], "strangers")["severity"], "note")

    def test_nobody_comes(self):
        done = self.doctor("--json", f"--rdzv-endpoint=127.0.0.1:{self.port}", "--nnodes=3", "--timeout=0.5")
        self.assertEqual(done.returncode, 1)
        self.assertIn("2 of 3 nodes did not come", self.finding(json.loads(done.stdout)["meeting"], "nodes")["found"])

    def test_nobody_listens(self):
        done = self.doctor(f"--with=127.0.0.1:{self.port}", "--timeout=0.5")
        self.assertEqual(done.returncode, 1)
        self.assertIn("Connection refused", done.stdout)
        self.assertIn("fsdpctl doctor --listen", done.stdout)

    def test_another_program_has_the_port(self):
        with socket.socket() as holder:
            holder.bind(("127.0.0.1", self.port))
            holder.listen()
            started = self.start_doctor("--json", f"--with=127.0.0.1:{self.port}")
            connection, _ = holder.accept()
            connection.sendall(b"\0\0\x06\x04\0\0\0\0\0")  # What a gRPC server begins with.
            rc, out, _ = self.end_of(started)
            connection.close()
        self.assertEqual(rc, 1)
        self.assertIn("no fsdpctl doctor", self.finding(json.loads(out)["meeting"], "meeting")["found"])

    def test_ctrl_c_ends_it_in_order(self):
        listens = self.start_doctor("--listen", "--json", f"--port={self.port}")
        wait_until_listening(self.port)
        self.doctor(f"--with=127.0.0.1:{self.port}")
        listens.send_signal(signal.SIGINT)
        rc, out, _ = self.end_of(listens)
        self.assertEqual(len(json.loads(out)["pairs"]), 1)
        self.assertEqual(rc, 0 if json.loads(out)["worst"] != "problem" else 1)

    def test_in_a_step_of_slurm_nothing_has_to_be_named(self):
        def task(rank):
            return self.start_doctor("--json", SLURM_JOB_ID=str(self.port), SLURM_JOB_NODELIST="localhost,other",
                                     SLURM_JOB_NUM_NODES="2", SLURM_STEP_ID="0", SLURM_STEP_NODELIST="localhost,other",
                                     SLURM_STEP_NUM_NODES="2", SLURM_STEP_NUM_TASKS="2", SLURM_STEP_TASKS_PER_NODE="1(x2)",
                                     SLURM_NTASKS="2", SLURM_PROCID=str(rank), SLURM_NODEID=str(rank), SLURM_LOCALID="0",
                                     SLURMD_NODENAME=("localhost", "other")[rank])
        tasks = [task(rank) for rank in range(2)]
        first, second = [self.end_of(each) for each in tasks]
        self.assertEqual(second[1], "", second)
        report = json.loads(first[1])
        self.assertEqual((report["node"], [pair["node"] for pair in report["pairs"]]), ("localhost", ["other"]))


@unittest.skipIf(SKIP, SKIP)
class NetworkTest(DoctorCase):
    def setUp(self):
        super().setUp()
        self.network = Network(2)
        self.addCleanup(self.network.close)

    def run_pair(self):
        words = ("--json", f"--rdzv-endpoint={self.network.address(0)}:29400")
        nodes = [self.start_doctor(*words, command=self.network.command(n)) for n in range(2)]
        (rc, out, err), _ = [self.end_of(node) for node in nodes]
        self.assertTrue(out, err)
        (pair,) = json.loads(out)["pairs"]
        return rc, pair

    def test_a_good_network(self):
        _, pair = self.run_pair()
        self.assertEqual(pair["address"], self.network.address(1))
        self.assertEqual(pair["mtu"], 1500)
        self.assertEqual({f["severity"] for f in pair["findings"]} - {"ok", "note", "warning"}, set())
        self.assertEqual(self.finding(pair["findings"], "large_message")["severity"], "ok")

    def test_large_packets_are_lost_on_the_way(self):
        # Packets that do not fit into the bucket are dropped, and nobody is told.
        subprocess.run(["tc", "-n", self.network.names[1], "qdisc", "add", "dev", "wire", "root", "tbf", "rate", "1gbit", "burst",
                        "1000", "latency", "50ms"], check=True)
        rc, pair = self.run_pair()
        found = self.finding(pair["findings"], "large_message")
        self.assertEqual((rc, found["severity"]), (1, "problem"))
        self.assertIn(f"from {pair['node']} to", found["found"])
        self.assertIn("ip link set", found["what_to_do"])
        self.assertEqual(pair["large_to_bytes"], 1 << 20)  # The other direction is well.

    def test_a_slow_network(self):
        self.network.slow_down(1, "20mbit")
        _, pair = self.run_pair()
        self.assertEqual(self.finding(pair["findings"], "bandwidth")["severity"], "warning")
        self.assertLess(pair["from_bits_per_s"], 40e6)
        self.assertEqual(self.finding(pair["findings"], "large_message")["severity"], "ok")

    def test_nothing_but_the_port_is_open(self):
        # What machine 0 sends from another port than the rendezvous' gets nowhere.
        rule = ("ip", "-n", self.network.names[0], "rule", "add", "ipproto", "tcp")
        subprocess.run([*rule, "pref", "10", "sport", "29400", "lookup", "main"], check=True)
        subprocess.run([*rule, "pref", "20", "to", self.network.address(1), "prohibit"], check=True)
        rc, pair = self.run_pair()
        found = self.finding(pair["findings"], "way_back")
        self.assertEqual((rc, found["severity"]), (1, "problem"))
        self.assertTrue(pair["back"]["error"])
        self.assertGreater(pair["to_bits_per_s"], 1e6)  # The test goes on all the same.


if __name__ == "__main__":
    main()
