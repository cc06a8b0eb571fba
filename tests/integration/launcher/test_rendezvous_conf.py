"""Keys of --rdzv-conf that say who hosts the coordinator, and how."""

import contextlib
import http.client
import os
import pathlib
import selectors
import signal
import socket
import subprocess
import threading
import time

from events import FolderChanges, patience, wait_for_files
from job_case import JobCase, free_port, is_connected, wait_until, wait_until_listening
from unittest_main import main


# Streams end after 3 s of silence.
SILENCE_S = 4

# Opening the file $HANGS does not return; $HUNG is made then.
HANGING_OPEN = r"""
    #define _GNU_SOURCE
    #include <dlfcn.h>
    #include <fcntl.h>
    #include <stdarg.h>
    #include <stdlib.h>
    #include <string.h>
    #include <unistd.h>
    int open(const char* path, int flags, ...) {
      static int (*real)(const char*, int, ...);
      if (!real) real = (int (*)(const char*, int, ...))dlsym(RTLD_NEXT, "open");
      va_list rest;
      va_start(rest, flags);
      int mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, int) : 0;
      va_end(rest);
      const char* hangs = getenv("HANGS");
      if (hangs && strcmp(path, hangs) == 0) {
        close(real(getenv("HUNG"), O_WRONLY | O_CREAT, 0600));
        for (;;) pause();
      }
      return real(path, flags, mode);
    }
"""


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

    def test_a_node_with_other_options_is_told_whose_count(self):
        warns = {"LOGLEVEL": "WARNING", "OMP_NUM_THREADS": "1"}
        host = self.start(*self.args, "--rdzv-conf=is_host=1", self.worker, env=warns)
        other = self.start("--nnodes=2:4", "--max-restarts=3", *self.args[1:], "--rdzv-conf=is_host=0,join_timeout=70",
                           self.worker, env=warns)
        (rc, _, err), (other_rc, _, other_err) = self.finish(host), self.finish(other)
        self.assertEqual((rc, other_rc), (0, 0), err + other_err)
        self.assertNotIn("--nnodes", err)
        told = [line for line in other_err.splitlines() if "--nnodes" in line]
        self.assertEqual(len(told), 1, other_err)
        for text in (f":{self.port}", "--nnodes is 2:4 here, 2 there", "--max-restarts is 3 here, 0 there",
                     "join_timeout is 70 s here, 600 s there"):
            self.assertIn(text, told[0])
        self.assertNotIn("last_call_timeout", told[0])

    def test_nodes_with_equal_options_are_told_nothing(self):
        nodes = [self.node(f"is_host={n == 0}", env={"LOGLEVEL": "WARNING"}) for n in range(2)]
        for node in nodes:
            rc, _, err = self.finish(node)
            self.assertEqual(rc, 0, err)
            self.assertNotIn("other options", err)

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


class Relay:
    """Passes connections on to a coordinator, but none of the questions for its run ids: who asks is not answered."""

    def __init__(self, port):
        self.target, self.asked, self.held = port, threading.Event(), None
        self.others = {}
        self.server = socket.create_server(("127.0.0.1", 0))
        self.port = self.server.getsockname()[1]
        self.wake, self.end = socket.socketpair()
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self):
        others = self.others
        with selectors.DefaultSelector() as selector:
            for end in (self.server, self.end):
                selector.register(end, selectors.EVENT_READ)
            while True:
                for ready in [key.fileobj for key, _ in selector.select()]:
                    if ready is self.end:
                        return
                    if ready is self.server:
                        pair = self.server.accept()[0], socket.create_connection(("127.0.0.1", self.target))
                        for one, other in (pair, pair[::-1]):
                            others[one] = other
                            selector.register(one, selectors.EVENT_READ)
                    elif ready in others:
                        self.pass_on(ready, others, selector)

    def pass_on(self, end, others, selector):
        data = b""
        with contextlib.suppress(ConnectionError):
            data = end.recv(65536)
        if b"RunIds" in data:
            selector.unregister(end)
            self.held = end
            self.asked.set()
        elif data:
            with contextlib.suppress(OSError):
                others[end].sendall(data)
        else:
            for one in {end, others[end]} - {self.held}:
                del others[one]
                selector.unregister(one)
                one.close()

    def is_still_asked(self):
        """By who asked first, and has not given up."""
        with contextlib.suppress(BlockingIOError):
            while self.held.recv(65536, socket.MSG_DONTWAIT):
                pass
            return False
        return True

    def close(self):
        self.wake.close()
        self.thread.join()
        for end in (self.server, self.end, *self.others):
            end.close()


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

    def first_of(self, run_id):
        """A node that hosts elsewhere and waits for another one."""
        before = len(self.run_directories())
        node = self.node(run_id)
        wait_for_files(lambda: len(self.run_directories()) > before, self.dir / "tmp", "the run directory")
        wait_until(lambda: any(self.serves(port) for port in self.listening_ports(node)), "a coordinator at a port of its own")
        return node

    def serves(self, port):
        """A port that a launcher has only bound, to ask whether it may host there, is closed again if it may not yet."""
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=patience()) as caller:
            caller.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))
            return bool(caller.recv(1))
        return False

    def run_directories(self):
        return [path for path in self.temporary_files() if path.parent == self.dir / "tmp"]

    def listening_ports(self, node):
        """Of this process alone."""
        inodes = set()
        for link in pathlib.Path(f"/proc/{node.pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):
                inodes.add(os.readlink(link).removeprefix("socket:[").removesuffix("]"))
        lines = [line.split() for name in ("tcp", "tcp6") for line in pathlib.Path(f"/proc/net/{name}").read_text().splitlines()[1:]]
        return {int(line[1].rsplit(":", 1)[1], 16) for line in lines if line[3] == "0A" and line[9] in inodes}

    def join(self, run_id, waiting):
        nodes = [waiting, self.node(run_id)]
        self.assertEqual(set(self.wait_for_notes(f"of-{run_id}", 1, range(2)).values()), {"2"})
        self.finish_job(run_id, nodes)

    def test_row_62_a_job_is_found_after_that_of_the_endpoint_has_ended(self):
        holder = self.pair("one")
        waiting = {run_id: self.first_of(run_id) for run_id in ("two", "three")}
        self.finish_job("one", holder)
        for run_id, node in waiting.items():
            self.join(run_id, node)

    def test_row_62_who_finds_nobody_at_the_endpoint_any_more_hosts(self):
        holder = self.node("one")
        wait_until_listening(self.port)
        holder.send_signal(signal.SIGSTOP)
        waits = self.node("two")
        self.wait_for_line(waits, "waiting for the coordinator at", str(self.port))
        holder.kill()
        holder.wait()
        wait_until_listening(self.port)
        self.join("two", waits)

    def test_probes_and_signals_are_answered_while_the_endpoint_is_asked(self):
        holder, relay, health_port = self.node("one"), None, free_port()
        wait_until_listening(self.port)
        relay = Relay(self.port)
        self.addCleanup(relay.close)
        asks = self.start("--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{relay.port}", "--rdzv-id=two",
                          "--rdzv-conf=is_host=0", self.worker, env={"TORCHELASTIC_HEALTH_CHECK_PORT": str(health_port)})
        self.assertTrue(relay.asked.wait(patience()))
        probe = http.client.HTTPConnection("127.0.0.1", health_port, timeout=patience())
        probe.request("GET", "/healthz")
        self.assertEqual(probe.getresponse().read().decode().strip(), "rendezvous")
        self.assertTrue(relay.is_still_asked())
        asks.send_signal(signal.SIGTERM)
        rc, _, err = self.finish(asks)
        self.assertEqual(rc, 1, err)
        self.assertIn("stopped by signal 15", err)
        holder.kill()

    def test_who_cannot_give_its_run_id_up_says_so(self):
        holder = self.pair("one")
        host = self.start("--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint=localhost:{self.port}", "--rdzv-id=two",
                          self.worker, env={"LOGLEVEL": "WARNING"})
        wait_until(lambda: any(self.serves(port) for port in self.listening_ports(host)), "a coordinator at a port of its own")
        holder[0].send_signal(signal.SIGSTOP)
        holder[1].send_signal(signal.SIGSTOP)
        host.send_signal(signal.SIGTERM)
        rc, _, err = self.finish(host)
        self.assertEqual(rc, 1, err)
        self.assertIn(f"could not mark run id 'two' as free at localhost:{self.port} within 2 s", err)
        for node in holder:
            node.send_signal(signal.SIGCONT)
        self.finish_job("one", holder)

    def test_row_62_a_stopped_host_keeps_its_run_id(self):
        holder = self.pair("one")
        host = self.first_of("two")
        host.send_signal(signal.SIGSTOP)
        time.sleep(SILENCE_S)  # The fault itself: longer than any stream lives in silence.
        (port,) = self.listening_ports(host)
        late = self.node("two")
        self.wait_for_line(late, "waiting for the coordinator at", f":{port} ")
        time.sleep(SILENCE_S)
        host.send_signal(signal.SIGCONT)
        self.assertEqual(set(self.wait_for_notes("of-two", 1, range(2)).values()), {"2"})
        self.finish_job("two", [host, late])
        self.finish_job("one", holder)

    def test_row_62_who_came_to_the_endpoint_joins_its_own_job(self):
        holder = self.pair("one")
        host = self.first_of("two")
        host.send_signal(signal.SIGSTOP)
        self.finish_job("one", holder)
        late = self.node("two")
        wait_until_listening(self.port)
        host.send_signal(signal.SIGCONT)
        self.assertEqual(set(self.wait_for_notes("of-two", 1, range(2)).values()), {"2"})
        self.finish_job("two", [host, late])


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
        wait_for_files((self.path.parent / "rendezvous.run7").exists, self.path.parent, "the rendezvous file")

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

    def wait_for_dialing(self, node):
        """It has found the claim and waits for the holder."""
        self.wait_for_line(node, "waiting for the coordinator at", str(self.path))

    def test_a_holder_that_dies_silent_is_replaced_by_who_waits_for_it(self):
        first = self.node()
        self.wait_for_claim()
        first.send_signal(signal.SIGSTOP)
        second = self.node()
        self.wait_for_dialing(second)
        first.kill()
        (self.dir / "go").touch()
        self.assertEqual([self.finish(node)[0] for node in (second, self.node())], [0, 0])

    def test_a_claim_that_nobody_renews_is_replaced_although_somebody_listens(self):
        with socket.socket() as stopped:
            stopped.bind(("127.0.0.1", 0))
            stopped.listen()
            (self.path.parent / "rendezvous.run7").write_text(
                f"fsdprun rendezvous, version 1\nlaunch gone\naddress 127.0.0.1:{stopped.getsockname()[1]}\n"
                "token secret\nlease-seconds 2\n")
            (self.dir / "go").touch()
            self.assertEqual([self.finish(node)[0] for node in [self.node() for _ in range(2)]], [0, 0])

    def test_a_holder_that_wakes_up_joins_who_has_taken_its_place(self):
        first = self.node()
        self.wait_for_claim()
        first.send_signal(signal.SIGSTOP)
        (self.path.parent / "rendezvous.run7").unlink()  # As if its lease were over.
        second = self.node()
        self.wait_for_claim()
        first.send_signal(signal.SIGCONT)
        (self.dir / "go").touch()
        self.assertEqual([self.finish(node)[0] for node in (first, second)], [0, 0])
        self.assertEqual(self.left(), ["rendezvous.run7"])

    def test_a_holder_that_wakes_up_after_the_job_is_refused(self):
        first = self.node()
        self.wait_for_claim()
        first.send_signal(signal.SIGSTOP)
        (self.path.parent / "rendezvous.run7").unlink()
        (self.dir / "go").touch()
        self.assertEqual([self.finish(node)[0] for node in [self.node() for _ in range(2)]], [0, 0])
        first.send_signal(signal.SIGCONT)
        rc, _, err = self.finish(first)
        self.assertEqual(rc, 1, err)
        self.assertIn("'run7' is over", err)

    def test_who_was_admitted_outlives_the_host_of_a_job_that_has_not_begun(self):
        host = self.node(nodes=3)
        self.wait_for_claim()
        admitted = self.node(nodes=3)
        self.wait_for_line(host, "2 of 3 joined")
        host.kill()
        host.wait()
        (self.dir / "go").touch()
        nodes = [admitted, self.node(nodes=3), self.node(nodes=3)]
        self.assertEqual([self.finish(node)[0] for node in nodes], [0, 0, 0])

    def test_who_waits_for_a_place_at_a_host_that_was_replaced_joins_the_other(self):
        self.worker = self.script("note(os.environ['KIND'])\nwait_for('go')")
        host = self.node(env={"KIND": "old"})
        self.wait_for_claim()
        claim = self.path.parent / "rendezvous.run7"
        address = next(line for line in claim.read_text().splitlines() if line.startswith("address"))
        member = self.node(env={"KIND": "old"})
        self.wait_for_notes("old", 1, range(2))
        spare = self.node(env={"KIND": "new"})
        wait_until(lambda: is_connected(spare.pid, int(address.rsplit(":", 1)[1])), "the spare to connect")
        host.send_signal(signal.SIGSTOP)
        claim.unlink()  # As if its lease were over.
        other = self.node(env={"KIND": "new"})
        self.wait_for_claim()
        host.send_signal(signal.SIGCONT)
        self.wait_for_notes("new", 1, range(2))
        (self.dir / "go").touch()
        self.assertEqual([self.finish(node)[0] for node in (host, member, spare, other)], [0, 0, 0, 0])

    def take_claim(self):
        claim = self.path.parent / "rendezvous.run7"
        (self.dir / "claim").write_text("fsdprun rendezvous, version 1\nlaunch other\naddress 127.0.0.1:1\nlease-seconds 40\n")
        (self.dir / "claim").rename(claim)
        return claim.read_text()

    def restarting_node(self):
        self.worker = self.script("note('rank')\nwait_for('end' if RESTART else 'go')\nsys.exit(not RESTART)")
        node = self.node("--max-restarts=3", nodes="1:2", env={"LOGLEVEL": "WARNING"})
        self.wait_for_notes("rank", 1, range(1))
        return node

    def assert_gives_way(self, node, taken):
        (self.dir / "end").touch()
        rc, _, err = self.finish(node)
        self.assertEqual(rc, 1, err)
        self.assertIn("another launcher has taken the run id meanwhile", err)
        self.assertEqual((self.path.parent / "rendezvous.run7").read_text(), taken)
        self.assertEqual({generation for generation, _ in self.notes("rank")}, {1})

    def test_a_host_whose_claim_was_taken_starts_no_workers_again(self):
        node = self.restarting_node()
        taken = self.take_claim()
        (self.dir / "go").touch()
        self.assert_gives_way(node, taken)

    def test_a_host_that_was_told_that_its_claim_was_taken_leaves_its_workers_alone(self):
        self.worker = self.script("""
            signal.signal(signal.SIGTERM, lambda number, frame: note("stopped") or sys.exit(1))
            signal.signal(signal.SIGUSR1, lambda number, frame: note("told"))
            note("rank")
            wait_for("go")
            note("went on")
            sys.exit(1)
        """)
        node = self.node("--max-restarts=3", "--forward-signals=SIGUSR1", nodes="1:2", env={"LOGLEVEL": "WARNING"})
        self.wait_for_notes("rank", 1, range(1))
        taken = self.take_claim()
        self.wait_for_line(node, "is another launcher's by now")
        node.send_signal(signal.SIGUSR1)  # Whatever follows from that line has been done before this is passed on.
        self.wait_for_notes("told", 1, range(1))
        (self.dir / "go").touch()
        self.assert_gives_way(node, taken)
        self.assertEqual(set(self.notes("went on")), {(1, 0)})
        self.assertEqual(self.notes("stopped"), {})

    def test_a_host_starts_no_workers_again_before_it_can_read_its_claim(self):
        node = self.restarting_node()
        claim = self.path.parent / "rendezvous.run7"
        own = claim.read_text()
        def put(text):
            (self.dir / "claim").write_text(text)
            (self.dir / "claim").rename(claim)
        put("not a claim\n")
        (self.dir / "go").touch()
        self.wait_for_line(node, "making sure that no other launcher has taken the run id")
        self.assertEqual({generation for generation, _ in self.notes("rank")}, {1})
        put(own)
        self.assert_starts_workers_again(node)

    def assert_starts_workers_again(self, node):
        self.wait_for_notes("rank", 2, range(1))
        self.assertEqual(self.left(), ["rendezvous.run7"])
        (self.dir / "end").touch()
        rc, _, err = self.finish(node)
        self.assertEqual(rc, 0, err)

    def test_a_host_whose_claim_was_removed_puts_it_there_again(self):
        node = self.restarting_node()
        (self.path.parent / "rendezvous.run7").unlink()
        (self.dir / "go").touch()
        self.assert_starts_workers_again(node)

    def test_a_host_waits_for_a_launcher_that_has_the_lock_but_not_for_one_that_has_died_with_it(self):
        node = self.restarting_node()
        (self.path.parent / "rendezvous.run7.lock").write_text("")
        (self.dir / "go").touch()
        self.wait_for_line(node, "making sure that no other launcher has taken the run id")
        self.assertEqual({generation for generation, _ in self.notes("rank")}, {1})
        self.assert_starts_workers_again(node)  # After 5 s.

    def test_a_claim_is_renewed(self):
        node = self.node()
        self.wait_for_claim()
        claim = self.path.parent / "rendezvous.run7"
        before = claim.stat().st_mtime_ns
        wait_until(lambda: claim.stat().st_mtime_ns != before, "the claim to be renewed")
        node.kill()

    def test_a_signal_while_the_claim_cannot_be_taken(self):
        for end in (signal.SIGTERM, signal.SIGINT):
            # Somebody's lock, which is not broken at once, on a claim whose holder is gone.
            (self.path.parent / "rendezvous.run7").write_text(
                "fsdprun rendezvous, version 1\nlaunch gone\naddress 127.0.0.1:1\ntoken secret\n")
            (self.path.parent / "rendezvous.run7.lock").write_text("")
            with FolderChanges(self.path.parent) as changes:
                node = self.node()
                self.assertTrue(changes.wait(patience()))  # It tries to take the lock.
                node.send_signal(end)
                self.assert_one_line_error(self.finish(node), 1, "interrupted while looking for the coordinator")
            self.assertEqual(self.left(), ["rendezvous.run7", "rendezvous.run7.lock"])
            for name in self.left():
                (self.path.parent / name).unlink()

    def test_a_signal_while_the_file_system_hangs(self):
        shim = self.dir / "hanging_open.so"
        subprocess.run(["cc", "-shared", "-fPIC", "-o", shim, "-x", "c", "-", "-ldl"], input=HANGING_OPEN, text=True, check=True)
        hung = self.dir / "hung"
        for end in (signal.SIGTERM, signal.SIGINT):
            node = self.node(env={"LD_PRELOAD": str(shim), "HANGS": f"{self.path}.run7", "HUNG": str(hung)})
            wait_for_files(hung.exists, self.dir, "the launcher to read the rendezvous file")
            node.send_signal(end)
            self.assert_one_line_error(self.finish(node), 1, "interrupted while looking for the coordinator")
            hung.unlink()

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
