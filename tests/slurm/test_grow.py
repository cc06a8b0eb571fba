"""fsdpctl slurm grow: nodes of another job join one that runs."""

import json
import pathlib
import stat
import sys

import slurm_case
from control_case import FSDPCTL, ControlCase
from slurm_case import FSDPRUN


def setUpModule():
    global slurm
    slurm = slurm_case.start_cluster()


class GrowTest(ControlCase):
    def record(self, job):
        return self.dir / "config/fsdprun/slurm" / f"test.{job}"

    def wait_for_record(self, job):
        """The launcher writes it beside all else that it does."""
        slurm.wait_until(lambda: self.record(job).exists(), f"the record of job {job}", job)

    def grow(self, job, *words, **environment):
        """The id of the job that grows it."""
        self.wait_for_record(job)
        return self.control("grow", job, "--parsable", *words, **environment).stdout.strip()

    def start(self, *words):
        worker = self.worker("""
            note(f"world-{WORLD}", json.dumps([sys.argv[1:], os.getcwd(), os.environ.get("KIND")]))
            wait_for("go")
            """)
        return self.submit_by_control("--rdzv-conf=last_call_timeout=1", *words, worker, "a b", "$x")

    def test_running_job_becomes_larger(self):
        """In its folder, with its arguments and its environment, whatever those are where it is grown."""
        (self.dir / "folder").mkdir()
        job = self.start("--nnodes=1:3", "--nodes=1", "--setup", "export KIND='of the job'; cd \"$D/folder\"")
        self.wait_for_notes("world-1", range(1), job)
        self.wait_for_record(job)
        self.assertEqual(stat.S_IMODE(self.record(job).stat().st_mode), 0o600)
        more = self.grow(job, "--nodes", "2", f"--output={slurm.folder}/jobs/%j.out", KIND="of the other")
        notes = self.wait_for_notes("world-3", range(3), more)
        same = json.dumps([["a b", "$x"], str(self.dir / "folder"), "of the job"])
        self.assertEqual(notes, dict.fromkeys(range(3), same))
        self.assertEqual(slurm.job(more)["JobName"], f"grow-{job}")
        (self.dir / "go").touch()
        self.finish(job)
        self.finish(more)
        self.assertFalse(self.record(job).exists())

    def test_job_goes_on_when_its_added_nodes_are_cancelled(self):
        job = self.start("--nnodes=1:2", "--nodes=1", "--max-restarts=3")
        self.wait_for_notes("world-1", range(1), job)
        more = self.grow(job)
        self.wait_for_notes("world-2", range(2), more)
        (self.dir / "world-1.0").unlink()
        slurm.scancel(more)
        self.wait_for_notes("world-1", range(1), job)
        (self.dir / "go").touch()
        self.finish(job)

    def test_requeued_job_grows_anew(self):
        """Its coordinator is another one, and all workers count its restarts alike."""
        worker = self.worker("""
            signal.signal(signal.SIGUSR1, lambda *_: sys.exit(0))
            note(f"run-{RESTART}-world-{WORLD}")
            wait_for("go")
            """)
        job = self.submit_by_control("--nnodes=1:2", "--nodes=1", "--rdzv-conf=last_call_timeout=1", "--requeue=auto", worker)
        self.wait_for_notes("run-0-world-1", range(1), job)
        slurm.scancel("--batch", "--signal=USR1", job)
        self.next_run(job)
        self.wait_for_notes("run-1-world-1", range(1), job)
        more = self.grow(job)
        self.wait_for_notes("run-1-world-2", range(2), more)
        (self.dir / "go").touch()
        self.finish(job)

    def test_token_is_where_only_its_user_looks(self):
        job = self.start("--nnodes=1:2", "--nodes=1")
        self.wait_for_notes("world-1", range(1), job)
        self.wait_for_record(job)
        token = self.record(job).read_bytes().split(b"\0token=")[1].split(b"\0")[0]
        self.assertGreaterEqual(len(token), 32)
        shown = self.control("grow", job, "--dry-run", "--nodes=3").stdout
        self.assertIn(f"exec {FSDPCTL} slurm join {job}\n", shown)
        self.assertNotIn(token.decode(), shown)
        more = self.grow(job)
        self.wait_for_notes("world-2", range(2), more)
        for each in (job, more):
            slurm.scontrol("write", "batch_script", each, self.dir / f"script-{each}")
        self.assertEqual([line for line in self.of_all_processes("cmdline") if token in line], [])
        self.assertTrue([line for line in self.of_all_processes("environ") if token in line])  # It can be found.
        (self.dir / "go").touch()
        self.finish(job)
        for path in (*self.dir.glob("script-*"), *slurm.folder.glob("jobs/*.out")):
            self.assertNotIn(token, path.read_bytes())

    def of_all_processes(self, what):
        """Of all that runs for jobs on any node."""
        found = []
        for pid in slurm.processes():
            try:
                found.append(pathlib.Path(f"/proc/{pid}/{what}").read_bytes())
            except (FileNotFoundError, ProcessLookupError):
                pass
        return found

    def test_job_of_a_fixed_size_does_not_grow(self):
        """And leaves no copy of its environment."""
        job = self.start("--nnodes=2")
        self.wait_for_notes("world-2", range(2), job)
        self.assert_refused(1, f"job {job} has left no record", "--nnodes MIN:MAX", words=["grow", job])
        self.assertEqual(list(self.record(job).parent.glob("*")), [])

    def test_node_that_was_lost_may_join_again(self):
        job = self.start("--nnodes=1:2", "--nodes=2", "--max-restarts=3")
        self.wait_for_notes("world-2", range(2), job)
        lost = slurm.scontrol("show", "hostnames", slurm.job(job)["NodeList"]).split()[-1]
        for path in self.dir.glob("world-*"):
            path.unlink()
        slurm.node_down(lost)
        self.wait_for_notes("world-1", range(1), job)
        slurm.node_up(lost)
        more = self.grow(job, f"--nodelist={lost}")
        self.wait_for_notes("world-2", range(2), more)
        self.assertEqual(slurm.job(more)["NodeList"], lost)
        (self.dir / "go").touch()
        self.finish(job)
        self.finish(more)

    def test_two_additions_do_not_share_a_node(self):
        """Their agents would have one name."""
        job = self.start("--nnodes=1:4", "--nodes=1")
        self.wait_for_notes("world-1", range(1), job)
        nodes = {slurm.job(job)["NodeList"]}
        for world, options in ((2, []), (3, ["--job-name=more"]), (4, [])):
            more = self.grow(job, "--nodes=1", *options)
            self.wait_for_notes(f"world-{world}", range(world), more)
            nodes.add(slurm.job(more)["NodeList"])
        self.assertEqual(len(nodes), 4)
        (self.dir / "go").touch()
        self.finish(job)

    def test_heterogeneous_job_grows(self):
        worker = self.worker("note(f'world-{WORLD}')\nwait_for('go')")
        job = self.submit(f"exec {FSDPRUN} --nnodes=2:3 --rdzv-conf=last_call_timeout=1 {worker}", "--nodes=1", ":",
                          "--nodes=1")
        self.wait_for_notes("world-2", range(2), job)
        taken = {part["NodeList"] for part in slurm.jobs(job)}
        more = self.grow(job)
        self.wait_for_notes("world-3", range(3), more)
        self.assertNotIn(slurm.job(more)["NodeList"], taken)
        (self.dir / "go").touch()
        self.finish(job)
        self.finish(more)

    def test_job_asks_for_what_the_first_has_asked_for(self):
        job = self.start("--nnodes=1:2", "--nodes=1", "--exclusive", "--time=30")
        self.wait_for_notes("world-1", range(1), job)
        more = self.grow(job, "--sbatch-args=--hold")
        facts = slurm.job(more)
        self.assertEqual(facts["OverSubscribe"], "NO")
        self.assertRegex(facts["TimeLimit"], r"00:(29|30):00")
        self.assertEqual(facts["ExcNodeList"], slurm.job(job)["NodeList"])
        (self.dir / "go").touch()
        self.finish(job)

    def test_controller_that_does_not_answer(self):
        """Nothing is known of the job: that is said where somebody reads it, and is no reason not to join."""
        job = self.start("--nnodes=1:2", "--nodes=1")
        self.wait_for_notes("world-1", range(1), job)
        tools = self.dir / "tools"
        tools.mkdir()
        (tools / "squeue").write_text(f"""#!/bin/sh
            [ -z "$SLURM_JOB_ID$SILENT" ] || {{ echo "squeue: error: it does not answer" >&2; exit 1; }}
            exec {slurm.folder}/bin/squeue "$@"
            """)
        (tools / "squeue").chmod(0o755)
        self.environment["PATH"] = f"{tools}:{slurm.environment['PATH']}"
        self.environment["SILENT"] = "yes"
        self.wait_for_record(job)
        self.assert_refused(1, "squeue ended with code 1", "try again", words=["grow", job])
        del self.environment["SILENT"]
        more = self.grow(job)
        self.wait_for_notes("world-2", range(2), more)
        (self.dir / "go").touch()
        self.finish(job)
        self.finish(more)

    def test_job_that_is_not_there_does_not_grow(self):
        for words, code, expected in ((["99"], 1, "job 99 has left no record"), (["x"], 2, "'x' is not the id"),
                                      (["99", "100"], 2, "'100' follows"), ([], 2, "JOBID")):
            with self.subTest(words=words):
                self.assert_refused(code, expected, words=["grow", *words])

    def test_record_of_a_killed_launcher_leads_nowhere(self):
        """And is removed when another job leaves one."""
        job = self.start("--nnodes=1:2", "--nodes=1")
        self.wait_for_notes("world-1", range(1), job)
        self.wait_for_record(job)
        kept = self.record(job).read_bytes()
        slurm.scancel(job)
        slurm.wait_for_state(job, "CANCELLED")
        self.record(job).write_bytes(kept)
        self.record(job).chmod(0o600)
        self.assert_refused(1, f"job {job} does not run", words=["grow", job])
        self.record(job).chmod(0o640)
        self.assert_refused(1, "no file that this user alone", words=["grow", job])
        (self.dir / "world-1.0").unlink()
        another = self.start("--nnodes=1:2", "--nodes=1")
        slurm.wait_until(lambda: not self.record(job).exists(), "the old record to go", another)
        self.wait_for_notes("world-1", range(1), another)
        self.wait_for_record(another)


if __name__ == "__main__":
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
    from unittest_main import main
    main()
