"""fsdpctl slurm submit: a job that it submits, and what it says of what cannot be."""

import json
import os
import pathlib
import sys

import slurm_case
from control_case import FSDPCTL, ControlCase
from queue_case import HOLD_AT, STEPS, TRAINER

# Whatever a shell, sbatch or a list of options could take for its own.
HOSTILE = ["", " ", "a b", "'", '"', "it's \"so\"", "\\", "\\n", "\n", "a\nb", "a\r\nb", "\t", "$HOME", "$(touch owned)",
           "`touch owned`", "*", "~", "{a,b}", "!x", "#SBATCH --nodes=9", "\n#SBATCH --nodes=9\n", ";", "&&", "|", ">x", "<(x)",
           "--nodes=9", "--", "-N", "--help", "a=b", "\x01\x7f", "gr\u00fc\u00df", os.fsdecode(b"\xff\xfe1")]


def setUpModule():
    global slurm
    slurm = slurm_case.start_cluster()


class SubmitTest(ControlCase):
    def test_job_runs_to_its_end(self):
        job = self.submit_by_control("--nnodes", "3", "--nproc-per-node=2", "--time=10", "--job-name", "two words",
                                     self.worker("note('world', WORLD)"))
        self.finish(job)
        self.assertEqual(self.notes("world"), dict.fromkeys(range(6), "6"))
        self.assertEqual(slurm.job(job)["TimeLimit"], "00:10:00")

    def test_output_has_the_jobs_name_by_default(self):
        job = self.control("submit", "--parsable", self.worker("print('here')")).stdout.strip()
        self.finish(job)
        self.assertIn("here", (slurm.folder / f"jobs/worker.py-{job}.out").read_text())

    def test_dry_run_is_what_is_submitted(self):
        words = ["--nnodes=2:3", "--requeue=auto", "--comment", "a \"b\" \\ 'c' #d", "--setup", "export A='b c'\n: ok",
                 self.worker(), *HOSTILE]
        shown = self.control("submit", "--dry-run", *words).stdout
        job = self.control("submit", "--parsable", "--hold", *words).stdout.strip()
        slurm.scontrol("write", "batch_script", job, self.dir / "submitted")
        submitted = os.fsdecode((self.dir / "submitted").read_bytes())
        self.assertEqual(submitted.replace("#SBATCH --hold\n", ""), shown)
        facts = slurm.scontrol("show", "job", job)
        for text in ("NumNodes=2-3", "Requeue=1", "Comment=a \"b\" \\ 'c' #d"):
            self.assertIn(text, facts)

    def test_arguments_arrive_unchanged(self):
        program = self.worker("note('argv', json.dumps([os.fsencode(word).hex() for word in sys.argv]))",
                              name="it's a $program `x`.py")
        job = self.submit_by_control("--nodes=2", "--setup", "export GREETING='a  b'", program, *HOSTILE)
        self.finish(job)
        expected = [os.fsencode(str(word)).hex() for word in [program, *HOSTILE]]
        self.assertEqual({rank: json.loads(text) for rank, text in self.notes("argv").items()}, {0: expected, 1: expected})
        self.assertFalse((slurm.folder / "jobs/owned").exists())

    def test_lines_of_the_setup_are_run_first(self):
        job = self.submit_by_control("--setup", "export GREETING='a  b'\ncd \"$D\"", self.worker(
            "note('greeting', os.environ['GREETING'] + os.getcwd())"))
        self.finish(job)
        self.assertEqual(self.notes("greeting"), {0: f"a  b{self.dir}"})

    def test_options_of_sbatch_overrule_its_variables(self):
        job = self.control("submit", "--parsable", "--hold", "--comment=x", "--job-name=given", self.worker(),
                           SBATCH_JOB_NAME="variable", SBATCH_TIMELIMIT="7").stdout.strip()
        facts = slurm.job(job)
        self.assertEqual((facts["JobName"], facts["TimeLimit"]), ("given", "00:07:00"))

    def test_job_that_a_task_submits_is_no_part_of_its_step(self):
        """Its shell would take the variables of the step for its own."""
        worker = self.worker("note('world', WORLD)")
        inner = f"{FSDPCTL} slurm submit --parsable --nodes=2 --output={slurm.folder}/jobs/%j.out {worker}"
        outer = self.submit(f"srun --ntasks=1 --nodes=1 {inner}", "--nodes=1")
        job = self.finish(outer).strip()
        self.finish(job)
        self.assertEqual(self.notes("world"), {0: "2", 1: "2"})

    def test_culprits_code_is_the_jobs(self):
        job = self.submit_by_control("--nodes=2", "--exit-code=worker", self.worker("sys.exit(7 if RANK == 1 else 0)"))
        output = self.finish(job, "FAILED")
        self.assertEqual(slurm.job(job)["ExitCode"], "7:0", output)

    def test_notice_is_followed_by_another_run(self):
        """Whose code is the job's."""
        job = self.submit_by_control("--nodes=2", "--requeue=auto", "--exit-code=worker", self.worker(TRAINER + """
    if RESTART == 1:
        meet("done")
        sys.exit(7 if RANK == 1 else 0)
    """))
        self.hold(job, 2)
        slurm.scancel("--batch", "--signal=USR1", job)
        self.next_run(job)
        output = self.finish(job, "FAILED")
        self.assert_each_step_once(2, [HOLD_AT, STEPS - HOLD_AT])
        self.assertEqual(slurm.job(job)["ExitCode"], "7:0", output)

    def test_job_that_will_be_requeued_by_itself_says_so(self):
        job = self.submit_by_control("--nodes=2", "--time=10", self.worker("wait_for('go')"))
        slurm.wait_for_output(job, f"before the end of its time limit, job {job} stops its workers")
        self.assertIn("--requeue=never", slurm.output(job))
        (self.dir / "go").touch()
        self.finish(job)

    def test_short_limit_leaves_time_to_train(self):
        job = self.control("submit", "--parsable", "--hold", "--requeue=auto", "--time=2", self.worker()).stdout.strip()
        slurm.scontrol("write", "batch_script", job, self.dir / "submitted")
        self.assertIn("#SBATCH --signal=B:USR1@30\n", (self.dir / "submitted").read_text())

    def test_what_sbatch_refuses_is_told(self):
        stderr = self.assert_refused(1, "sbatch", "--dry-run", words=["submit", "--partition=nowhere", self.worker()])
        self.assertIn("sbatch: error", stderr)

    def test_bad_input(self):
        for words, code, expected in (
                (["--noeds=2", "x"], 2, ("--noeds", "--nodes")),
                (["--nodes=two", "x"], 1, ("--nodes", "'two'", "number of nodes")),
                (["--time=8h", "x"], 1, ("--time", "'8h'", "HH:MM:SS")),
                (["--nodes=2"], 2, ("no program",)),
                (["--nnodes=4", "--nodes=2", "x"], 1, ("--nodes", "--nnodes needs 4")),
                (["--time=2", "--signal=B:USR1@120", "--requeue=auto", "x"], 1, ("--time", "'2'", "180 s before the limit")),
                (["--nproc-per-node=many", "x"], 1, ("--nproc-per-node", "'many'"))):
            with self.subTest(words=words):
                self.assert_refused(code, *expected, words=["submit", *words])

    def test_without_slurms_programs(self):
        done = self.control("submit", self.worker(), check=False, PATH="/usr/bin:/bin")
        self.assertEqual(done.returncode, 1)
        self.assertIn("cannot start sbatch: no such program on PATH", done.stderr)


class TextTest(ControlCase):
    def test_help(self):
        for words in (["--help"], ["slurm", "--help"]):
            self.assertIn("fsdpctl slurm submit [options] PROGRAM", slurm.run(FSDPCTL, *words).stdout)
        self.assertRegex(slurm.run(FSDPCTL, "--version").stdout, r"\Afsdpctl \d+\.\d+\.\d+\n\Z")
        for command, words in (("submit", ("usage: fsdpctl slurm submit", "--partition", "--nproc-per-node", "SBATCH_PARTITION",
                                           "Exit codes:")),
                               ("grow", ("usage: fsdpctl slurm grow JOBID", "--nodes", "Exit codes:"))):
            text = self.control(command, "--help").stdout
            for word in words:
                self.assertIn(word, text)

    def test_troff_has_nothing_to_complain_about(self):
        for command in ("submit", "grow"):
            page = self.control(command, "--man").stdout
            done = slurm.run("man", "--warnings=w", "-l", "-", input=page, env={**slurm.environment, "MANPAGER": "cat",
                                                                                "MANWIDTH": "100"})
            self.assertEqual(done.stderr, "")
            self.assertIn("partition", done.stdout)

    def test_unknown_command(self):
        for words, expected in ((["slurm", "sumbit"], "did you mean slurm submit?"), (["slurm"], "unknown command 'slurm'"),
                                ([], "no command was given")):
            done = slurm.run(FSDPCTL, *words, check=False)
            self.assertEqual((done.returncode, done.stderr.count("\n")), (2, 1), words)
            self.assertIn(expected, done.stderr)


if __name__ == "__main__":
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
    from unittest_main import main
    main()
