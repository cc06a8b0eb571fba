"""What a shell offers after fsdprun and after fsdpctl, asked of the shells themselves."""

import os
import pty
import select
import subprocess
import time

from job_case import BIN, JobCase
from unittest_main import main

ASK = """
source <("$1" --completion bash)
COMP_LINE=$2
COMP_POINT=${#2}
"_${1##*/}"
printf '%s\\n' "${COMPREPLY[@]}"
"""


class BashCompletionTest(JobCase):
    def offered(self, line, program="fsdprun"):
        """At the end of the line after the program."""
        done = subprocess.run(["bash", "-c", ASK, "bash", BIN / program, f"{program} {line}"], cwd=self.dir, text=True,
                              capture_output=True, check=True)
        self.assertEqual(done.stderr, "")
        return done.stdout.split()

    def test_options(self):
        self.assertEqual(self.offered("--rdzv-b"), ["--rdzv-backend"])
        self.assertIn("--nproc-per-node", self.offered("-"))
        for before in ("--nnodes=2", "--nnodes 1:2", "--nnodes=1:2", "--standalone", "--rdzv-endpoint h:29400",
                       "--rdzv-endpoint=[::1]:1", "--rdzv-conf join_timeout=5,a=b", "--log_dir /tmp", "-m", "--nproc 2",
                       "--nproc_per=2", "--master-a h"):
            with self.subTest(before):
                self.assertEqual(self.offered(f"{before} --max-r"), ["--max-restarts"])

    def test_values(self):
        for line in ("--rdzv-backend ", "--rdzv-backend=", "--rdzv_backend ", "--rdzv_backend="):
            with self.subTest(line):
                self.assertEqual(self.offered(line), ["c10d", "static", "etcd", "etcd-v2"])
                self.assertEqual(self.offered(line + "c"), ["c10d"])
        (self.dir / "logs").mkdir()
        (self.dir / "log.txt").touch()
        self.assertEqual(self.offered("--log-dir lo"), ["logs"])
        self.assertEqual(sorted(self.offered("--token-file=lo")), ["log.txt", "logs"])

    def test_nothing_of_ours_after_the_program(self):
        for line in ("train.py --rdzv-b", "--nnodes 2 train.py --", "-- --rdzv-b"):
            with self.subTest(line):
                self.assertEqual(self.offered(line), [])

    def test_the_command_chaos(self):
        for line, offers in (("chaos --faul", ["--faults"]), ("chaos --faults 3 --kinds k", ["kill"]), ("chaos -- fsdprun --faul", []),
                             ("chaos --nnod", []), ("cha", []), ("--nnodes 2 --faul", [])):
            with self.subTest(line):
                self.assertEqual(self.offered(line), offers)

    def test_shells_that_are_not_known_are_named(self):
        self.assert_one_line_error(self.run_job("--completion", "csh"), 2, "--completion", "'csh'", "bash, zsh or fish")
        done = subprocess.run([BIN / "fsdpctl", "--completion=csh"], text=True, capture_output=True)
        self.assertEqual((done.returncode, done.stderr), (2, "fsdpctl: --completion: 'csh' is not bash, zsh or fish\n"))

    def test_commands_of_fsdpctl(self):
        for line, offers in (("sl", ["slurm"]), ("slurm ", ["submit", "grow"]), ("slurm su", ["submit"]),
                             ("slurm submit --gpus-p", ["--gpus-per-node"]), ("slurm submit --nnodes 2 --max-r", ["--max-restarts"]),
                             ("slurm submit --open-mode ", ["append", "truncate"]), ("slurm submit train.py --max-r", []),
                             ("slurm grow 12 --parti", ["--partition"]), ("slurm grow --parti", ["--partition"]),
                             ("slurm nothing --", []), ("nothing ", []), ("st", ["status", "stacks", "stop"]), ("status --fol", ["--follow"]),
                             ("events -f --js", ["--json"]), ("ps --fol", []), ("stop --n", ["--no-token", "--now"])):
            with self.subTest(line):
                self.assertEqual(self.offered(line, "fsdpctl"), offers)


class FishCompletionTest(JobCase):
    def offered(self, line, program="fsdprun"):
        script = '$argv[1] --completion fish | source; complete -C "$argv[2]"'
        done = subprocess.run(["fish", "--no-config", "-c", script, str(BIN / program), f"{program} {line}"], cwd=self.dir,
                              text=True, capture_output=True, check=True, env={**os.environ, "HOME": str(self.dir)})
        self.assertEqual(done.stderr, "")
        return [offer.split("\t")[0] for offer in done.stdout.splitlines()]

    def test_options_and_values(self):
        self.assertEqual(self.offered("--rdzv-b"), ["--rdzv-backend"])
        for before in ("--nnodes 1:2", "--nproc 2", "--standalone", "--log_dir=/tmp", "-m"):
            with self.subTest(before):
                self.assertEqual(self.offered(f"{before} --max-r"), ["--max-restarts"])
        self.assertEqual(self.offered("--rdzv-backend "), ["c10d", "etcd", "etcd-v2", "static"])
        self.assertEqual(self.offered("chaos --faul"), ["--faults"])
        self.assertEqual(self.offered("chaos --nnod"), [])

    def test_nothing_of_ours_after_the_program(self):
        self.assertNotIn("--rdzv-backend", self.offered("train.py --rdzv-b"))

    def test_commands_of_fsdpctl(self):
        for line, offers in (("sl", ["slurm"]), ("slurm ", ["grow", "submit"]), ("slurm submit --gpus-p", ["--gpus-per-node"]),
                             ("slurm submit --nnodes 2 --max-r", ["--max-restarts"]),
                             ("slurm submit --open-mode ", ["append", "truncate"]), ("slurm submit train.py --max-r", []),
                             ("slurm grow 12 --parti", ["--partition"]), ("stat", ["status"]), ("status --fol", ["--follow"]),
                             ("ps --fol", [])):
            with self.subTest(line):
                self.assertEqual(self.offered(line, "fsdpctl"), offers)


class ZshCompletionTest(JobCase):
    def completed(self, line, program="fsdprun"):
        """The line after a tabulator, as the terminal shows it."""
        (self.dir / ".zshrc").write_text("autoload -U compinit; compinit -u -d $ZDOTDIR/dump\n"
                                         f"source <({BIN / program} --completion zsh)\nPS1='ready> '\n")
        pid, terminal = pty.fork()
        if pid == 0:
            os.environ.update(ZDOTDIR=str(self.dir), HOME=str(self.dir), TERM="dumb")
            os.execvp("zsh", ["zsh", "-i"])
        try:
            self.read_until(terminal, "ready> ")
            os.write(terminal, f"{program} {line}\t".encode())
            # What follows comes after the completion.
            os.write(terminal, b"END")
            return self.read_until(terminal, "END").split(f"{program} ")[-1]
        finally:
            os.kill(pid, 9)
            os.waitpid(pid, 0)
            os.close(terminal)

    def read_until(self, terminal, end):
        shown, deadline = "", time.monotonic() + 30
        while end not in shown:
            self.assertTrue(select.select([terminal], [], [], max(0, deadline - time.monotonic()))[0], shown)
            shown += os.read(terminal, 4096).decode(errors="replace")
        return shown.split(end)[0]

    def test_options_and_values(self):
        self.assertIn("--rdzv-backend", self.completed("--rdzv-b"))
        self.assertIn("static", self.completed("--rdzv-backend=st"))
        self.assertIn("--max-restarts", self.completed("--nnodes 1:2 --max-r"))
        self.assertIn("--faults", self.completed("chaos --faul"))

    def test_nothing_of_ours_after_the_program(self):
        self.assertNotIn("--rdzv-backend", self.completed("train.py --rdzv-b"))

    def test_commands_of_fsdpctl(self):
        for line, expected in (("sl", "slurm"), ("slurm su", "submit"), ("slurm submit --gpus-p", "--gpus-per-node"),
                               ("slurm submit --nnodes 2 --max-r", "--max-restarts"), ("slurm submit --open-mode=tr", "truncate"),
                               ("slurm grow 12 --parti", "--partition"), ("stat", "status"), ("status --fol", "--follow")):
            with self.subTest(line):
                self.assertIn(expected, self.completed(line, "fsdpctl"))
        self.assertNotIn("--max-restarts", self.completed("slurm submit train.py --max-r", "fsdpctl"))


class ManPageTest(JobCase):
    def test_troff_has_nothing_to_complain_about(self):
        for program in ("fsdprun", "fsdp-agent"):
            page = subprocess.run([BIN / program, "--man"], capture_output=True, check=True).stdout
            done = subprocess.run(["man", "--warnings=w", "-l", "-"], input=page, capture_output=True, check=True,
                                  env={**os.environ, "MANPAGER": "cat", "MANWIDTH": "100"})
            self.assertEqual(done.stderr, b"", program)
            self.assertIn(b"rdzv-endpoint", done.stdout)


if __name__ == "__main__":
    main()
