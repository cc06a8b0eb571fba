"""The batch files of deploy/slurm, as they are, and what docs/SLURM.md shows: each is submitted to a real Slurm and runs."""

import pathlib
import re
import signal
import subprocess
import sys

from queue_case import HOLD_AT, STEPS, TRAINER
from slurm_case import BIN
from template_case import ROOT, TEMPLATES, TemplateCase, start_small_cluster

PAGE = ROOT / "docs/SLURM.md"
# With PyTorch, and so in a file of its own: test_templates_ddp.py.
ELSEWHERE = {"python_ddp"}


def setUpModule():
    global slurm
    slurm = start_small_cluster()


class RunTest(TemplateCase):
    def assert_runs(self, name, nodes):
        """All the workers, as many on each node."""
        self.worker("note('place', os.environ['GROUP_RANK'])", name="train.py")
        job = self.submit_file(TEMPLATES / f"{name}.sbatch")
        self.finish(job)
        places = self.notes("place")
        self.assertEqual(sorted({int(node) for node in places.values()}), list(range(nodes)), self.output(job))
        self.assertEqual(len(places) % nodes, 0)
        return self.output(job)

    def test_one_node(self):
        self.assert_runs("one_node", 1)

    def test_many_nodes(self):
        self.assert_runs("many_nodes", 4)

    def test_preemption(self):
        self.assert_runs("preemption", 2)

    def test_apptainer(self):
        self.tool("apptainer", """\
            printf '%s\\n' "$@" >"$D/apptainer.$RANK"
            shift 6
            exec "$@"
            """)
        self.assert_runs("apptainer", 2)
        self.assertEqual((self.dir / "apptainer.0").read_text().split(),
                         ["exec", "--bind", str(self.dir), "--pwd", str(self.dir), "image.sif", "python3", "-u", "train.py"])

    def test_pyxis(self):
        self.tool("srun", f"""\
            words=()
            for word in "$@"; do
              if [[ $word == --container-* ]]; then echo "$word" >>"$D/container"; else words+=("$word"); fi
            done
            exec {slurm.folder}/bin/srun "${{words[@]}}"
            """)
        self.assert_runs("pyxis", 2)
        self.assertEqual([word.split("=")[0] for word in (self.dir / "container").read_text().split()],
                         ["--container-image", "--container-mounts", "--container-workdir"])
        self.assertIn(f"{BIN}:{BIN}", (self.dir / "container").read_text())

    def test_pyxis_where_a_path_has_blanks(self):
        """Its words for srun are cut at them."""
        folder = self.dir / "two words"
        folder.mkdir()
        done = subprocess.run(["bash", TEMPLATES / "pyxis.sbatch"], cwd=folder, capture_output=True, text=True,
                              env={"PATH": f"{BIN}:/usr/bin:/bin"})
        self.assertEqual((done.returncode, done.stderr.count("\n")), (1, 1), done.stderr)
        self.assertIn("two words", done.stderr)

    def test_elastic(self):
        """On less than all nodes, and on more of them when there are."""
        self.worker("note(f\"nodes-{os.environ['GROUP_WORLD_SIZE']}\")\nwait_for('go')", name="train.py")
        for node in slurm.nodes[1:3]:
            slurm.scontrol("update", f"nodename={node}", "state=drain", "reason=test")
        job = self.submit_file(TEMPLATES / "elastic.sbatch")
        slurm.wait_until(lambda: self.notes("nodes-2"), "two nodes", job)
        for node in slurm.nodes[1:3]:
            slurm.node_up(node)
        more = self.command("fsdpctl", "slurm", "grow", job, "--parsable", "--nodes", "1").stdout.strip()
        slurm.wait_until(lambda: self.notes("nodes-3"), "three nodes", more)
        (self.dir / "go").touch()
        self.finish(job)
        self.finish(more)

    def test_requeue(self):
        """Each rank does each step once, in two runs."""
        self.worker(TRAINER, name="train.py")
        job = self.submit_file(TEMPLATES / "requeue.sbatch")
        ranks = self.hold_template(job)
        slurm.scancel("--batch", "--signal=USR1", job)
        self.next_run(job)
        self.finish(job)
        self.assertEqual(self.restarts(job), 1)
        self.assert_told(ranks, signal.SIGUSR1)
        self.assert_each_step_once(ranks, [HOLD_AT, STEPS - HOLD_AT])

    def test_every_file_is_tested(self):
        tested = {name.removeprefix("test_") for name in dir(self) if name.startswith("test_")}
        self.assertLessEqual({path.stem for path in TEMPLATES.glob("*.sbatch")}, tested | ELSEWHERE)


class PageTest(TemplateCase):
    """docs/SLURM.md: its batch files and its commands, in their order. GPUs, which the tests' nodes lack, are left out."""

    def blocks(self, language):
        found = re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text(), re.S | re.M)
        self.assertTrue(found, f"{PAGE} has no block of {language}")
        return [re.sub(r"(?m)^#SBATCH --gpus-per-node=.*\n| --gpus-per-node[ =]\S+", "", text) for text in found]

    def test_batch_files(self):
        self.worker("note('world', WORLD)", name="train.py")
        for number, text in enumerate(self.blocks("sbatch")):
            for path in self.dir.glob("world.*"):
                path.unlink()
            path = self.dir / f"file{number}.sbatch"
            path.write_text(text.replace("--nproc-per-node 8", "--nproc-per-node 2"))
            subprocess.run(["bash", "-n", path], check=True)
            if "srun torchrun" in text:
                self.command("sbatch", "--test-only", path)  # Shown is what becomes of it.
                continue
            job = self.submit_file(path)
            super().finish(job)
            worlds = self.notes("world")
            self.assertEqual(worlds, dict.fromkeys(range(8), "8"), self.output(job))

    def test_commands(self):
        """JOBID is the last job that was not added to another. Each job gets the workers that its command asks for, and ends
        well."""
        self.worker("""
            note(f"{os.environ['TORCHELASTIC_RUN_ID']}-world-{WORLD}")
            wait_for("go")
            """, name="train.py")
        jobs, job, world = [], "", 0
        for line in self.commands():
            self.assertTrue(job or "JOBID" not in line, line)
            added = re.search(r"slurm grow .*--nodes (\d+)", line)
            if asked := re.search(r"--nnodes (\d+)", line):
                workers = re.search(r"--nproc-per-node (\d+)", line)
                world = int(asked[1]) * (int(workers[1]) if workers else 1)
            world += int(added[1]) if added else 0
            stdout = self.command("bash", "-c", line.replace("JOBID", job)).stdout
            if ">" in line:  # What is written there is submitted by a later line.
                self.assertEqual(stdout, "")
                continue
            jobs.append(re.fullmatch(r"Submitted batch job (\d+)\n", stdout)[1])
            job = job if added else jobs[-1]
            self.wait_for_notes(f"slurm-{job}-world-{world}", range(world), jobs[-1])
        self.assertGreaterEqual(len(jobs), 4)
        (self.dir / "go").touch()
        for each in jobs:
            self.finish(each)

    def commands(self):
        lines = [line.split(" #")[0].strip() for text in self.blocks("sh") for line in text.replace("\\\n", "").splitlines()]
        return [line.replace("--nproc-per-node 8", "--nproc-per-node 2") for line in lines if line]


class CancelRowsTest(TemplateCase):
    """The rows of docs/SLURM.md about scancel, for a job that may be requeued."""

    ROWS = {"scancel": "scancel JOBID", "term": "scancel --batch --signal=TERM JOBID",
            "notice": "scancel --batch --signal=USR1 JOBID"}

    def start(self, command="exec fsdprun"):
        self.worker(TRAINER, name="train.py")
        (self.dir / "job.sbatch").write_text("#!/bin/bash\n#SBATCH --nodes=2 --requeue --open-mode=append --output=%x-%j.out\n"
                                             f"{command} train.py\n")
        job = self.submit_file("job.sbatch")
        self.hold(job, 2)
        return job

    def cancel(self, row, job):
        self.command(*self.ROWS[row].replace("JOBID", job).split())

    def test_all_rows_are_here(self):
        rows = re.findall(r"^\| `(scancel [^`]*)` \|", PAGE.read_text(), re.M)
        self.assertEqual(rows, list(self.ROWS.values()))

    def test_scancel(self):
        job = self.start()
        self.cancel("scancel", job)
        slurm.wait_for_state(job, "CANCELLED")
        slurm.wait_until(lambda: not slurm.processes(), "nothing to be left on any node", job)
        self.assertEqual(self.restarts(job), 0)
        self.assert_told(2, signal.SIGTERM)

    def test_term(self):
        job = self.start()
        self.cancel("term", job)
        self.finish(job, "FAILED")
        self.assertEqual(self.restarts(job), 0)
        self.assert_told(2, signal.SIGTERM)
        self.assert_each_step_once(2, [HOLD_AT])

    def test_notice(self):
        job = self.start()
        self.cancel("notice", job)
        self.next_run(job)
        self.finish(job)
        self.assert_told(2, signal.SIGUSR1)
        self.assert_each_step_once(2, [HOLD_AT, STEPS - HOLD_AT])

    def test_notice_to_a_shell_that_waits(self):
        """It ends the shell, and so the job."""
        for command in ("fsdprun", "srun fsdprun"):
            with self.subTest(command=command):
                job = self.start(command)
                self.cancel("notice", job)
                self.finish(job, "FAILED")
                self.assertEqual(slurm.job(job)["ExitCode"], f"0:{signal.SIGUSR1.value}")
                self.assertEqual(self.restarts(job), 0)
            for path in self.dir.glob("*.[01]"):
                path.unlink()


if __name__ == "__main__":
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
    from unittest_main import main
    main()
