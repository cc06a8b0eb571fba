"""Nodes come, go, wait in reserve and ask for ranks; worlds are formed, grow, shrink and pause."""

import os
import pathlib
import signal
import subprocess

from events import PATIENCE_S, wait_for_ends
from job_case import JobCase, free_port
from unittest_main import main

# Generations before the last one wait to be ended; the last one ends well.
PATIENT = """
    note("place", os.environ["GROUP_RANK"] + " of " + os.environ["GROUP_WORLD_SIZE"] + " restart " + str(RESTART))
    print(f"generation {GENERATION} rank {RANK}", flush=True)
    note("pid")
    if GENERATION < int(os.environ.get("LAST", "2")):
        live_on()
"""

# The wall clock is ten minutes slow as soon as the file is there.
SLOW_CLOCK = r"""
    #define _GNU_SOURCE
    #include <dlfcn.h>
    #include <stdlib.h>
    #include <sys/time.h>
    #include <time.h>
    #include <unistd.h>
    static long offset(void) { const char* f = getenv("SLOW_CLOCK"); return f && access(f, F_OK) == 0 ? 600 : 0; }
    int clock_gettime(clockid_t id, struct timespec* t) {
      static int (*real)(clockid_t, struct timespec*);
      if (!real) real = (int (*)(clockid_t, struct timespec*))dlsym(RTLD_NEXT, "clock_gettime");
      int result = real(id, t);
      if (result == 0 && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) t->tv_sec -= offset();
      return result;
    }
    time_t time(time_t* out) { struct timespec t; clock_gettime(CLOCK_REALTIME, &t); if (out) *out = t.tv_sec; return t.tv_sec; }
    int gettimeofday(struct timeval* t, void* zone) {
      struct timespec now; clock_gettime(CLOCK_REALTIME, &now); t->tv_sec = now.tv_sec; t->tv_usec = now.tv_nsec / 1000; return 0;
    }
"""


class ElasticTest(JobCase):
    def setUp(self):
        super().setUp()
        self.endpoint = f"127.0.0.1:{free_port()}"

    def node(self, nodes, *args, conf="last_call_timeout=0", **env):
        """A launcher of a c10d job; the first one hosts the coordinator."""
        return self.start(f"--nnodes={nodes}", "--rdzv-backend=c10d", f"--rdzv-endpoint={self.endpoint}", "--rdzv-id=job",
                          f"--rdzv-conf={conf}", *args, env=env)

    def pids(self, generation, ranks):
        notes = self.wait_for_notes("pid", generation, ranks)
        return [int(notes[generation, r]) for r in ranks]

    def assert_all_end(self, launchers, code=0):
        for launcher in launchers:
            rc, _, err = self.finish(launcher)
            self.assertEqual(rc, code, err)

    def test_row_09_program_missing_on_one_node_ends_all_and_names_node_and_file(self):
        script = self.dir / "bad.sh"
        script.write_text("#!/nowhere/python\n")
        script.chmod(0o755)
        for broken, program, why in ((0, "./nope", "'./nope'"), (1, "./nope", "'./nope'"), (1, script, "'/nowhere/python'")):
            with self.subTest(broken=broken, program=program):
                port = free_port()
                # The join timeout is longer than the test's patience.
                args = ["--nnodes=2", f"--master-port={port}", "--max-restarts=5", "--no-python",
                        f"--rdzv-conf=timeout={10 * PATIENCE_S:.0f}"]
                nodes = [self.start(*args, f"--node-rank={n}", program if n == broken else "true") for n in range(2)]
                for n, node in enumerate(nodes):
                    rc, _, err = self.finish(node)
                    self.assertEqual(rc, 1, err)
                    self.assertIn("cannot run the program: cannot run ", err)
                    self.assertIn(why, err)
                    self.assertIn(os.uname().nodename, err)

    def test_row_30_and_53_scale_up_keeps_the_logs_and_charges_nothing(self):
        script, logs = self.script(PATIENT), self.dir / "logs"
        host = self.node("1:2", "--max-restarts=0", f"--log-dir={logs}", script)
        self.pids(1, [0])
        joiner = self.node("1:2", "--max-restarts=0", script)
        self.pids(2, range(2))
        self.assert_all_end([host, joiner])
        self.assertEqual({self.notes("place")[2, r] for r in range(2)}, {"0 of 2 restart 0", "1 of 2 restart 0"})
        said = {path.parent.parent.name: path.read_text() for path in logs.rglob("stdout.log")}
        self.assertEqual(said["attempt_0"], "generation 1 rank 0\n")
        self.assertRegex(said["attempt_0.1"], r"^generation 2 rank [01]\n$")

    def test_row_53_who_waits_for_workers_that_go_on_when_a_node_joins_is_told_so(self):
        script = self.script("""
            signal.signal(signal.SIGTERM, lambda number, frame: None)
            note("pid")
            wait_for("go")
        """)
        options = ("1:2", f"--shutdown-timeout={PATIENCE_S:.0f}")
        first = self.node(*options, script)
        self.pids(1, [0])
        second = self.node(*options, script)
        line = next((line for line in first.stderr if "still running" in line), "")  # No line once the grace is over.
        self.assertRegex(line, r"joins a world of 1: 1 worker is still running; to be killed in \d+ s \(--shutdown-timeout\)$")
        (self.dir / "go").touch()
        self.assert_all_end([first, second])
        self.pids(2, range(2))

    def test_row_42_failures_are_spaced_when_asked(self):
        worker = """
            note("start", time.monotonic())
            note("end", time.monotonic())
            sys.exit(3 if RESTART < 3 else 0)
        """
        rc, _, err = self.run_job("--standalone", "--max-restarts=3", "--restart-backoff=0.2:0.4", self.script(worker))
        self.assertEqual(rc, 0, err)
        pauses = [float(self.notes("start")[g + 1, 0]) - float(self.notes("end")[g, 0]) for g in (1, 2, 3)]
        for pause, asked in zip(pauses, (0.2, 0.4, 0.4)):
            # A pause counts from when the launcher's loop woke up; on a busy machine the worker may have ended a little later.
            self.assertGreaterEqual(pause, asked / 2, pauses)

    def test_row_42_the_pause_is_told_of_and_an_operator_ends_it(self):
        launcher = self.start("--standalone", "--max-restarts=3", f"--restart-backoff={10 * PATIENCE_S}",
                              self.script("note('pid'); sys.exit(3)"))
        self.assertRegex(launcher.stderr.readline(), r"fsdprun: pausing for \d+\.0 s before restart 1 of 3 \(--restart-backoff\)$")
        launcher.send_signal(signal.SIGTERM)
        rc, _, err = self.finish(launcher)
        self.assertEqual(rc, 1, err)
        self.assertEqual(set(self.notes("pid")), {(1, 0)})

    def test_row_51_one_of_two_starts_after_the_last_call_and_all_of_them_at_once(self):
        self.assert_all_end([self.node("1:2", self.script(PATIENT), conf="last_call_timeout=0.3", LAST="1")])
        # Nobody waits for the last call, which is longer than the test's patience, when all are there.
        late = f"last_call_timeout={10 * PATIENCE_S:.0f}"
        nodes = [self.node("1:2", self.script(PATIENT), conf=late, LAST="1") for _ in range(2)]
        self.assert_all_end(nodes)
        self.assertIn((1, 1), self.notes("place"))

    def test_row_55_survivors_of_a_lost_node_go_on_with_a_smaller_world(self):
        script = self.script(PATIENT)
        host = self.node("1:2", "--node-rank=0", "--max-restarts=1", script, conf="last_call_timeout=600", LAST="2")
        self.wait_for_run_directory()
        other = self.node("1:2", "--node-rank=1", "--max-restarts=1", script, conf="last_call_timeout=600", LAST="2")
        first = self.pids(1, range(2))
        other.kill()
        wait_for_ends(first, "both workers of generation 1 to end")
        self.assert_all_end([host])
        self.assertEqual(self.notes("place")[2, 0], "0 of 1 restart 1")

    def test_row_55_too_few_survivors_stop_and_say_so(self):
        script = self.script(PATIENT)
        host = self.node("2", "--max-restarts=1", script, conf="join_timeout=3", LAST="9")
        self.wait_for_run_directory()
        other = self.node("2", "--max-restarts=1", script, conf="join_timeout=3", LAST="9")
        first = self.pids(1, range(2))
        other.kill()
        wait_for_ends(first, "both workers to end")
        rc, _, err = self.finish(host)
        self.assertEqual(rc, 1, err)
        self.assertIn("1 of 2 joined", err)
        self.assertIn("gone: ", err)

    def test_row_56_the_node_of_rank_0_is_replaced_although_another_one_hosts(self):
        script = self.script(PATIENT)
        host = self.node("2", "--node-rank=1", "--max-restarts=1", script)
        self.wait_for_run_directory()
        first = self.node("2", "--node-rank=0", "--max-restarts=1", script)
        workers = self.pids(1, range(2))
        first.kill()
        wait_for_ends(workers, "both workers of generation 1 to end")
        second = self.node("2", "--node-rank=0", "--max-restarts=1", script)
        self.assert_all_end([host, second])
        self.assertEqual(set(self.notes("place")), {(1, 0), (1, 1), (2, 0), (2, 1)})

    def test_row_58_spare_takes_over_or_ends_with_0(self):
        script = self.script(PATIENT)
        host = self.node("2", "--max-restarts=1", script, conf="join_timeout=3")
        self.wait_for_run_directory()
        other = self.node("2", "--max-restarts=1", script, conf="join_timeout=3")
        workers = self.pids(1, range(2))
        spares = [self.node("2", "--max-restarts=1", script, conf="join_timeout=3") for _ in range(2)]
        # Who waits as long as the spares, alone on another endpoint, has given up: a spare has no such limit.
        alone = self.run_job("--nnodes=2", f"--master-port={free_port()}", "--rdzv-conf=join_timeout=3", script)
        self.assertIn("RendezvousTimeoutError", alone[2])
        self.assertEqual([spare.poll() for spare in spares], [None, None])
        other.kill()
        wait_for_ends(workers, "both workers of generation 1 to end")
        self.assert_all_end([host, *spares])  # Whichever of them was taken.
        self.assertEqual({r for g, r in self.notes("place") if g == 2}, {0, 1})

    def test_row_60_nodes_may_end_one_long_after_the_other(self):
        worker = """
            import socket
            note("pid")
            if RANK == int(os.environ["FIRST"]):
                sys.exit(0)
            wait_for("first_has_ended")
            socket.create_connection((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))).close()
        """
        for first in range(2):
            with self.subTest(first=first):
                port = free_port()
                nodes = [self.start("--nnodes=2", f"--node-rank={n}", f"--master-port={port}", self.script(worker),
                                    env={"FIRST": str(first)}) for n in range(2)]
                wait_for_ends(self.pids(1, [first]), "the first worker to end")
                (self.dir / "first_has_ended").touch()
                self.assert_all_end(nodes)
                for path in (self.dir / "first_has_ended", *self.dir.glob("pid.*")):
                    path.unlink()

    def test_row_64_clocks_that_differ_or_are_set_evict_nobody(self):
        shim = self.dir / "slow_clock.so"
        subprocess.run(["cc", "-shared", "-fPIC", "-o", shim, "-x", "c", "-", "-ldl"], input=SLOW_CLOCK, text=True, check=True)
        (self.dir / "slow").touch()
        script = self.script("note('now', time.time()); note('who', os.environ['SLOW_CLOCK']); note('pid'); wait_for('go')")
        def node(name):
            return self.node("2:3", "--max-restarts=1", script, conf="last_call_timeout=600", LD_PRELOAD=str(shim),
                             SLOW_CLOCK=str(self.dir / name))
        host = node("set")
        self.wait_for_run_directory()
        other, silent = node("slow"), node("silent")
        self.pids(1, range(3))
        times = [float(t) for t in self.notes("now").values()]
        self.assertGreater(max(times) - min(times), 300)
        (self.dir / "set").touch()  # The host's clock is put back ten minutes.
        silent.send_signal(signal.SIGSTOP)  # The lease has passed when this node, and no other, is given up.
        self.pids(2, range(2))
        silent.kill()
        (self.dir / "go").touch()
        self.assert_all_end([host, other])
        self.assertEqual({pathlib.Path(who).name for (g, _), who in self.notes("who").items() if g == 2}, {"slow", "set"})
        self.assertEqual({g for g, _ in self.notes("pid")}, {1, 2})

    def test_row_66_natural_order_of_names(self):
        def node(address):
            return self.node("3", f"--local-addr={address}", self.script("note('host', os.environ['NAME'])"), NAME=address)
        nodes = [node("127.0.0.10")]
        self.wait_for_run_directory()
        nodes += [node("127.0.0.2"), node("127.0.0.1")]
        self.assert_all_end(nodes)
        self.assertEqual([self.notes("host")[1, r] for r in range(3)], ["127.0.0.1", "127.0.0.2", "127.0.0.10"])

    def test_row_66_node_rank_is_honoured_with_c10d(self):
        ranks = [2, 0, 1]
        nodes = [self.node("3", f"--node-rank={r}", self.script("note('asked', os.environ['ASKED'])"), ASKED=str(r))
                 for r in ranks]
        self.assert_all_end(nodes)
        self.assertEqual([self.notes("asked")[1, r] for r in range(3)], ["0", "1", "2"])

    def test_row_66_a_rank_that_all_nodes_ask_for_is_warned_of_once(self):
        nodes = [self.node("3", self.script("note('pid')"), PET_NODE_RANK="0", LOGLEVEL="WARNING", OMP_NUM_THREADS="1")
                 for _ in range(3)]
        said = ""
        for node in nodes:
            rc, _, err = self.finish(node)
            self.assertEqual(rc, 0, err)
            said += err
        self.assertEqual(said.count("asks for node rank 0, which another node has"), 1, said)
        self.assertEqual(set(self.notes("pid")), {(1, 0), (1, 1), (1, 2)})

    def wait_for_a_default_lease(self):
        """Until another job, whose lease is the default one, has given up a node that fell silent now."""
        port, script = free_port(), self.script("note('brief')\nif GENERATION == 1: live_on()", "brief.py")
        first, second = (self.start("--nnodes=1:2", f"--node-rank={n}", f"--master-port={port}", "--rdzv-conf=last_call_timeout=600",
                                    "--max-restarts=1", script) for n in range(2))
        self.wait_for_notes("brief", 1, range(2))
        second.send_signal(signal.SIGSTOP)
        self.assert_all_end([first])
        second.kill()

    def test_a_longer_lease_keeps_a_node_that_is_silent(self):
        script = self.script("note('pid'); wait_for('go')")
        conf = "keep_alive_interval=10,keep_alive_max_attempt=3"
        host = self.node("2", script, conf=conf)
        self.wait_for_run_directory()
        other = self.node("2", script, conf=conf)
        self.pids(1, range(2))
        other.send_signal(signal.SIGSTOP)
        # Longer than the lease is by default: a job that has that one loses its silent node meanwhile.
        self.wait_for_a_default_lease()
        other.send_signal(signal.SIGCONT)
        (self.dir / "go").touch()
        self.assert_all_end([host, other])
        self.assertEqual(set(self.notes("pid")), {(1, 0), (1, 1)})


if __name__ == "__main__":
    main()
