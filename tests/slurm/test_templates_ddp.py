"""deploy/slurm's batch file for DistributedDataParallel, and the training that is beside it, with PyTorch."""

import pathlib
import re
import shutil
import sys

from template_case import TEMPLATES, TemplateCase, start_small_cluster


def setUpModule():
    global slurm
    slurm = start_small_cluster()


class DdpTest(TemplateCase):
    def test_python_ddp(self):
        shutil.copy(TEMPLATES / "train_ddp.py", self.dir)
        job = self.submit_file(TEMPLATES / "python_ddp.sbatch")
        output = self.finish(job)
        self.assertRegex(output, r"(?m)^step 20 loss ")
        self.assertTrue((self.dir / "checkpoint.pt").exists())
        self.assertTrue(list(self.dir.glob(f"logs-{job}/*/attempt_0/0/stdout.log")))

    def test_ddp_script_goes_on_where_it_was_stopped(self):
        shutil.copy(TEMPLATES / "train_ddp.py", self.dir)
        script = f"#!/bin/bash\n#SBATCH --output={self.dir}/%x-%j.out\ncd {self.dir}\nexec fsdprun train_ddp.py --steps "
        (self.dir / "first").write_text(f"{script}1000000\n")
        first = self.command("sbatch", "--parsable", "--nodes=2", "first").stdout.strip()
        slurm.wait_until(lambda: "step 3 " in self.output(first), "some steps", first)
        slurm.scancel("--batch", "--signal=TERM", first)
        done = len(re.findall(r"(?m)^step \d+ loss", self.finish(first, "FAILED")))
        (self.dir / "second").write_text(f"{script}{done + 3}\n")
        second = self.command("sbatch", "--parsable", "--nodes=2", "second").stdout.strip()
        steps = re.findall(r"(?m)^step (\d+) loss", self.finish(second))
        self.assertEqual(steps, [str(done + n) for n in (1, 2, 3)])


if __name__ == "__main__":
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
    from unittest_main import main
    main()
