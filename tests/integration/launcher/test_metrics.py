"""GET /metrics of a real job through five faults: Prometheus takes what it says, dashboard and alerts ask for what there is,
and the ledger has every second of the job."""

import http.client
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
import unittest

from coordinator_case import CoordinatorCase
from job_case import BIN, children_of, free_port, is_listening, keeper_of, wait_until
from unittest_main import main

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tests/support"))
from promtool import REASON_TO_SKIP, promtool  # noqa: E402

ROW = re.compile(r'(\w+)(?:\{(.*)\})? (\S+)')
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
NAME = re.compile(r"\b(?:fsdprun|process)_\w+")
SELECTOR = re.compile(r"\b((?:fsdprun|process)_\w+)\{([^}]*)\}")
WANTED = re.compile(r'(\w+)=~?"([^"]*)"')
# Ranks that go step by step together, as those of a training do, and keep a step now and then, so that some are done again. A
# pipe that nobody writes to paces them.
WORKER = """
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    import mmap, select
    quiet = os.pipe()[0]
    table = os.open(D / f"steps.{GENERATION}", os.O_RDWR | os.O_CREAT)
    os.ftruncate(table, 8 * WORLD)
    steps = memoryview(mmap.mmap(table, 8 * WORLD)).cast("q")
    steps[RANK] = 1  # Is there.
    saved = D / "saved"
    step = int(saved.read_text()) if saved.exists() else 0
    note("pid")
    with os.fdopen(int(os.environ["FSDPRUN_CONTROL_FD"]), "w") as control:
        while not (D / "end").exists():
            select.select([quiet], [], [], 0.02)
            if min(steps) < steps[RANK]:
                continue
            step += 1
            steps[RANK] += 1
            print(json.dumps({"v": 1, "type": "progress", "step": step, "total": 1000000}), file=control, flush=True)
            if RANK == 0 and step % 100 == 0:
                (D / "saved.new").write_text(str(step))
                (D / "saved.new").rename(saved)
"""


def parse(text):
    """{(name, sorted labels but for those that all rows have): value}"""
    rows = {}
    for line in filter(lambda line: line and not line.startswith("#"), text.splitlines()):
        name, labels, value = ROW.fullmatch(line).groups()
        own = sorted((k, v) for k, v in LABEL.findall(labels or "") if k not in ("run_id", "node"))
        assert (name, tuple(own)) not in rows, f"twice: {line}"
        rows[name, tuple(own)] = float(value)
    return rows


def wanted_by_queries():
    """Where each metric is asked for that the dashboard or an alert asks for, and where each value of a label."""
    dashboard = json.loads((ROOT / "deploy/grafana/fsdprun.json").read_text())
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])]
    queries += [annotation["expr"] for annotation in dashboard["annotations"]["list"]]
    queries += [variable["query"]["query"] for variable in dashboard["templating"]["list"] if variable["type"] == "query"]
    queries += re.findall(r"expr: (.*)", (ROOT / "deploy/prometheus/alerts.yml").read_text())
    return {name: query for query in queries for name in NAME.findall(query)}, {
        (name, label, value): query for query in queries for name, labels in SELECTOR.findall(query)
        for label, values in WANTED.findall(labels) for value in values.split("|") if value != "$job"}


class MetricsCase(CoordinatorCase):
    per_node = 1

    def setUp(self):
        super().setUp()
        self.seen, self.env["XDG_RUNTIME_DIR"] = set(), str(self.dir)
        self.ports = [free_port() for _ in range(3)]

    def probed(self, which):
        return {"TORCHELASTIC_HEALTH_CHECK_PORT": str(self.ports[which])}

    def text(self, which):
        """As Prometheus asks for it."""
        connection = http.client.HTTPConnection("127.0.0.1", self.ports[which], timeout=60)
        connection.request("GET", "/metrics", headers={"Accept": "text/plain;version=0.0.4;q=0.5,*/*;q=0.1", "Accept-Encoding": "gzip"})
        answer = connection.getresponse()
        body = answer.read().decode()
        self.assertEqual((answer.status, answer.getheader("Content-Type")), (200, "text/plain; version=0.0.4; charset=utf-8"))
        connection.close()
        return body

    def scrape(self, which):
        text = self.text(which)
        self.assertEqual(text.count('run_id="kept"'), sum(1 for line in text.splitlines() if not line.startswith("#")))
        rows = parse(text)
        self.seen.update(re.sub(r"_(bucket|sum|count)$", "", name) for name, _ in rows)
        self.seen.update(name for name, _ in rows)
        self.seen.update((name, label, value) for name, labels in rows for label, value in labels)
        return rows

    def value(self, which, name, **labels):
        return self.scrape(which).get((name, tuple(sorted(labels.items()))))

    def wait_for_value(self, which, condition, name, **labels):
        def is_there():
            value = is_listening(self.ports[which]) and self.value(which, name, **labels)
            return value is not None and value is not False and condition(value)
        wait_until(is_there, f"{name} {labels}")

    def start_host(self):
        coordinator = self.start(*self.coordinator_words(f"--log-dir={self.dir / 'logs'}", "--max-restarts=9"), env=self.probed(0))
        wait_until(lambda: is_listening(self.ports[0]), "the coordinator's port")
        return coordinator

    def start_part(self, which):
        return self.start(*self.meeting(), "--nnodes=2", "--nproc-per-node=1", "--rdzv-conf=is_host=0", "--max-restarts=9", self.script(WORKER),
                          env=self.probed(which))

    def wait_for_progress(self, generation):
        self.wait_for_value(0, lambda value: value >= generation, "fsdprun_generation")
        self.wait_for_value(0, lambda value: value == 1, "fsdprun_job_phase", phase="running")
        wait_until(lambda: self.value(0, "fsdprun_progress_age_seconds") is not None, "progress")
        return int(self.value(0, "fsdprun_generation"))

    def buckets(self, rows, name):
        return {dict(labels)["bucket"]: value for (row, labels), value in rows.items() if row == name}

    def assert_ledger(self):
        """What is accounted for is the time that has passed by this test's clock, within half a percent."""
        time.sleep(0.6)  # What it told before is told again for half a second at most.
        before = time.time()
        rows = self.scrape(0)
        after = time.time()
        began = rows["fsdprun_coordinator_start_time_seconds", ()]
        settled, still_open = (self.buckets(rows, f"fsdprun_time_{kind}") for kind in ("seconds_total", "open_seconds"))
        accounted = sum(settled.values()) + sum(still_open.values())
        slack = 0.005 * (after - began) + 0.01
        self.assertGreaterEqual(accounted, before - began - slack)
        self.assertLessEqual(accounted, after - began + slack)
        return {name: settled[name] + still_open[name] for name in settled}, accounted, began


class MetricsTest(MetricsCase):
    def test_a_node_answers_from_the_beginning(self):
        node = self.start_part(1)
        wait_until(lambda: is_listening(self.ports[1]), "the node's port")
        rows = self.scrape(1)
        self.assertEqual(rows["fsdprun_agent_connected", ()], 0)
        self.assertEqual(rows["fsdprun_worker_starts_total", ()], 0)
        self.assertNotIn(("fsdprun_generation", ()), rows)  # The coordinator is elsewhere.
        node.send_signal(signal.SIGTERM)
        self.assertEqual(self.finish(node)[0], 1)

    def test_a_launcher_of_one_node_tells_of_both(self):
        launcher = self.start(*self.meeting(), "--nproc-per-node=2", self.script(WORKER), env=self.probed(0))
        self.wait_for_value(0, lambda value: value == 2, "fsdprun_workers", state="running")
        self.wait_for_value(0, lambda value: value > 0, "fsdprun_worker_step", rank="1", local_rank="1")
        for rank in ("0", "1"):
            wait_until(lambda: self.value(0, "fsdprun_worker_proportional_memory_bytes", rank=rank, local_rank=rank), "memory")
        rows = self.scrape(0)
        rank = (("local_rank", "1"), ("rank", "1"))
        pid = int(self.notes("pid")[1, 1])
        resident = int(pathlib.Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")
        self.assertAlmostEqual(rows["fsdprun_worker_resident_memory_bytes", rank] / resident, 1, delta=0.2)
        self.assertLess(rows["fsdprun_worker_proportional_memory_bytes", rank], rows["fsdprun_worker_resident_memory_bytes", rank] * 1.1)
        self.assertEqual(rows["fsdprun_world_size", ()], 2)
        self.assertEqual(rows["fsdprun_agents", (("state", "member"),)], 1)
        self.order("end")
        self.assertEqual(self.finish(launcher)[0], 0)

    def test_five_faults(self):
        coordinator = self.start_host()
        self.launch = [None, self.start_part(1), self.start_part(2)]
        self.pids(self.wait_for_progress(1))
        self.wait_for_value(0, lambda value: value > 0, "fsdprun_time_seconds_total", bucket="productive")
        self.kill_a_worker()
        self.kill_a_node()
        self.pause_a_node()
        self.restart_all()
        self.check_what_is_told(coordinator)
        coordinator = self.kill_coordinator(coordinator)
        self.order("end")
        self.assert_all_end_well(coordinator, self.launch[1:])
        self.check_ledger_file()

    def kill_a_worker(self):
        generation = int(self.value(0, "fsdprun_generation"))
        os.kill(self.pids(generation)[1], signal.SIGKILL)
        self.wait_for_progress(generation + 1)
        self.assertEqual(self.value(0, "fsdprun_faults_total", **{"class": "worker_failed"}), 1)

    def kill_a_node(self):
        generation = int(self.value(0, "fsdprun_generation"))
        self.end_abruptly(self.launch[2])
        self.launch[2] = self.start_part(2)
        self.wait_for_progress(generation + 1)
        self.assertEqual(self.value(0, "fsdprun_nodes_joined_total"), 3)

    def pause_a_node(self):
        """It is given up when its lease is over, and comes again."""
        generation = int(self.value(0, "fsdprun_generation"))
        worker = next(pid for pid in self.pids(generation) if pid in children_of(keeper_of(self.launch[2])))
        self.launch[2].send_signal(signal.SIGSTOP)
        os.kill(worker, signal.SIGSTOP)
        self.wait_for_value(0, lambda value: value >= 2, "fsdprun_nodes_lost_total")
        self.launch[2].send_signal(signal.SIGCONT)
        self.wait_for_progress(generation + 1)
        self.assertEqual(self.value(0, "fsdprun_faults_total", **{"class": "node_lost"}), 2)

    def restart_all(self):
        generation = int(self.value(0, "fsdprun_generation"))
        done = subprocess.run([BIN / "fsdpctl", "restart"], env=self.env, text=True, capture_output=True, timeout=60, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.wait_for_progress(generation + 1)

    def check_what_is_told(self, coordinator):
        spent, _, _ = self.assert_ledger()
        for bucket in ("rendezvous", "startup", "productive", "recompute", "detect", "stop", "operator"):
            self.assertGreater(spent[bucket], 0, spent)
        self.assertGreater(spent["detect"], 2, spent)  # A lease of 3 s, less the time between heartbeats.
        self.assertEqual(spent["headless"], 0)
        rows = self.scrape(0)
        for cause in ("failure", "operator"):
            self.assertGreaterEqual(rows["fsdprun_recoveries_total", (("cause", cause), ("outcome", "recovered"))], 1)
        self.assertGreaterEqual(rows["fsdprun_recovery_duration_seconds_count", (("until", "progress"),)], 4)
        self.assertGreater(rows["fsdprun_repeated_steps_total", ()], 0)
        self.assertLess(rows["fsdprun_restart_budget_remaining", ()], 9)
        for which in range(3):
            self.scrape(which)
            if not REASON_TO_SKIP:
                code, said = promtool("check", "metrics", text=self.text(which))
                self.assertEqual((code, said), (0, ""))
        wait_until(lambda: self.value(1, "fsdprun_worker_proportional_memory_bytes", rank="0", local_rank="0") or
                   self.value(1, "fsdprun_worker_proportional_memory_bytes", rank="1", local_rank="0"), "memory")
        for wanted in wanted_by_queries():
            for name, query in wanted.items():
                self.assertIn(name, self.seen, query)
        status = subprocess.run([BIN / "fsdpctl", "status", "--json"], env=self.env, text=True, capture_output=True, timeout=60, check=False)
        ledger = json.loads(status.stdout)["ledger"]
        self.assertAlmostEqual(sum(ledger["buckets_s"].values()), ledger["wall_s"], places=3)
        self.assertGreater(ledger["goodput_ratio"], 0)

    def kill_coordinator(self, coordinator):
        generation = self.value(0, "fsdprun_generation")
        self.end_abruptly(coordinator)
        coordinator = self.start_host()
        wait_until(lambda: self.value(0, "fsdprun_progress_age_seconds") is not None, "progress")
        self.assertEqual((self.value(0, "fsdprun_coordinator_took_over"), self.value(0, "fsdprun_generation")), (1, generation))
        self.wait_for_value(0, lambda value: value > 0, "fsdprun_time_seconds_total", bucket="productive")
        spent, self.accounted, _ = self.assert_ledger()
        self.assertGreater(spent["headless"], 0, spent)  # Until its nodes were back.
        self.assertEqual(spent["rendezvous"], 0, spent)
        self.second_began = time.monotonic() - self.accounted
        return coordinator

    def check_ledger_file(self):
        """Of the coordinator that has seen the end."""
        lived = time.monotonic() - self.second_began
        (path,) = (self.dir / "logs").glob("kept_coordinator_*/ledger.json")
        ledger = json.loads(path.read_text())
        self.assertEqual((ledger["v"], ledger["job"]), (1, "kept"))
        self.assertAlmostEqual(sum(ledger["buckets_s"].values()), ledger["wall_s"], places=6)
        self.assertGreaterEqual(ledger["wall_s"], self.accounted)
        self.assertLessEqual(ledger["wall_s"], lived * 1.005 + 0.01)


if __name__ == "__main__":
    main()
