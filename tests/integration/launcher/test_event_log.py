"""events.jsonl, as docs/EVENTS.md has it, of real jobs."""

import json
import pathlib
import re
import shutil
import signal
import subprocess
import unittest

from daemon_case import DaemonCase
from job_case import JobCase, free_port
from unittest_main import main

SCHEMA = (pathlib.Path(__file__).resolve().parents[3] / "docs/EVENTS.md").read_text()
COMMON = {"v", "time", "job", "node", "from", "event"}


def documented(name, source):
    """The fields of an event, from its row of the page."""
    row = re.search(rf"^\| `{name}` \| {source} \| (.*?) \|", SCHEMA, re.MULTILINE)
    return row and set(re.findall(r"`(\w+)`", row[1]))


class EventLogCase(JobCase):
    def logged(self, folder="logs", run="*"):
        """The events of a run below a log directory, by who wrote them; each is as documented."""
        (file,) = (self.dir / folder).glob(f"{run}/events.jsonl")
        events = [json.loads(line) for line in file.read_text().splitlines()]
        for event in events:
            self.assertEqual(event["v"], 1)
            self.assertRegex(event["time"], r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$")
            fields = documented(event["event"], event["from"])
            self.assertIsNotNone(fields, f"{event['event']} of {event['from']} is not in docs/EVENTS.md")
            self.assertLessEqual(set(event) - COMMON, fields, event)
        return {source: [event for event in events if event["from"] == source] for source in ("coordinator", "agent")}

    def names(self, events):
        return [event["event"] for event in events]

    def assert_is_told_by_the_coordinator_alone(self):
        events = self.logged(run="told_coordinator_*")
        self.assertEqual(events["agent"], [])
        world = ["world_formed", "world_committed"]
        self.assertEqual(self.names(events["coordinator"]),
                         ["node_joined", *world, "failure", "world_stopping", "world_stopped", *world, "job_finished"])


class EventLogTest(EventLogCase):
    def test_a_restart_is_told_by_coordinator_and_agent(self):
        script = self.script("import os; sys.exit(3 if os.environ['TORCHELASTIC_RESTART_COUNT'] == '0' else 0)")
        job = self.start("--standalone", "--rdzv-id=told", "--max-restarts=1", f"--log-dir={self.dir}/logs", script)
        self.assertEqual(self.finish(job)[0], 0)
        events = self.logged()
        world = ["world_formed", "world_committed"]
        self.assertEqual(self.names(events["coordinator"]),
                         ["node_joined", *world, "failure", "world_stopping", "world_stopped", *world, "job_finished"])
        self.assertEqual([name for name in self.names(events["agent"]) if name != "workers_killed"],
                         ["coordinator_found", *["assigned", "workers_started", "worker_ended", "all_ended"] * 2, "agent_left"])
        (failure,) = [event for event in events["coordinator"] if event["event"] == "failure"]
        self.assertEqual((failure["kind"], failure["worker"]["exit_code"]), ("worker_failed", 3))
        self.assertEqual(events["coordinator"][-1]["restarts"], 1)
        self.assertEqual([event["exit_code"] for event in events["agent"] if event["event"] == "worker_ended"], [3, 0])

    def test_each_node_tells_of_itself_and_the_host_of_all(self):
        script, endpoint = self.script("note('pid'); live_on()"), f"127.0.0.1:{free_port()}"
        first, second = [
            self.start("--nnodes=1:2", "--rdzv-backend=c10d", f"--rdzv-endpoint={endpoint}", "--rdzv-id=two", "--max-restarts=3",
                       "--rdzv-conf=last_call_timeout=60", f"--log-dir={self.dir}/logs{node}", script) for node in range(2)]
        self.wait_for_notes("pid", 1, range(2))
        hosts = [node for node in range(2) if self.hosts_coordinator(node)]
        self.assertEqual(len(hosts), 1)
        (host,) = hosts
        launchers = [first, second]
        launchers[1 - host].send_signal(signal.SIGKILL)
        self.wait_for_notes("pid", 2, [0])
        launchers[host].send_signal(signal.SIGTERM)
        self.finish(launchers[host])
        events = self.logged(f"logs{host}")["coordinator"]
        self.assertEqual(self.names(events).count("node_joined"), 2)
        lost = self.names(events).index("node_lost")
        self.assertIn("world_stopping", self.names(events)[lost:])
        self.assertEqual((events[-1]["event"], events[-1]["result"]), ("job_finished", "stopped_by_signal"))
        other = self.logged(f"logs{1 - host}")
        self.assertEqual((other["coordinator"], self.names(other["agent"])[:2]), ([], ["coordinator_found", "assigned"]))

    def hosts_coordinator(self, node):
        return any('"from":"coordinator"' in file.read_text() for file in (self.dir / f"logs{node}").rglob("events.jsonl"))

    def test_a_coordinator_in_its_own_process_tells_too(self):
        script = self.script("import os; sys.exit(3 if os.environ['TORCHELASTIC_RESTART_COUNT'] == '0' else 0)")
        endpoint = f"--rdzv-endpoint=127.0.0.1:{free_port()}"
        coordinator = self.start("--coordinator", endpoint, "--rdzv-id=told", "--max-restarts=1", f"--log-dir={self.dir}/logs")
        self.wait_for_line(coordinator, "coordinator of run id")
        agent = self.start(endpoint, "--rdzv-id=told", script, binary="fsdp-agent")
        self.assertEqual([self.finish(process)[0] for process in (coordinator, agent)], [0, 0])
        self.assert_is_told_by_the_coordinator_alone()

    @unittest.skipUnless(shutil.which("jq"), "jq is not installed")
    def test_the_pages_query_finds_what_broke(self):
        self.start("--standalone", f"--log-dir={self.dir}/logs", self.script("sys.exit(3)")).wait()
        query = re.search(r"^(jq .*)$", SCHEMA, re.MULTILINE)[1]
        found = subprocess.run(query, shell=True, cwd=self.dir, capture_output=True, text=True, check=True).stdout
        self.assertRegex(found, r"\A\S+Z\t\S+\t.*exited with 3\n\Z")

    def test_without_a_log_directory_there_is_none(self):
        job = self.start("--standalone", self.script("sys.exit(3)"))
        self.assertEqual(self.finish(job)[0], 1)
        self.assertEqual(list(self.dir.rglob("events.jsonl")), [])


class RemoteEventLogTest(DaemonCase, EventLogCase):
    def test_a_launcher_without_workers_tells_of_all(self):
        script = self.script("import os; sys.exit(3 if os.environ['TORCHELASTIC_RESTART_COUNT'] == '0' else 0)")
        job = self.start_job([self.start_daemon()], "--rdzv-id=told", "--max-restarts=1", f"--log-dir={self.dir}/logs", script)
        self.assertEqual(self.finish(job)[0], 0)
        self.assert_is_told_by_the_coordinator_alone()


if __name__ == "__main__":
    main()
