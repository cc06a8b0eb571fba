"""Wrong input to fsdp-train: one line that says what and where, the right exit code, nothing left."""

import json
import pathlib
import struct
import subprocess

from train_case import MODEL, TRAIN, TrainCase
from unittest_main import main

CONFIG_EXIT = 78


class ConfigurationTest(TrainCase):
    def both_ways(self, words, *settings):
        self.assert_refused(CONFIG_EXIT, words, *settings, ranks=0)
        _, err = self.assert_refused(CONFIG_EXIT, words, *settings, launcher=["--max-restarts=3"])
        self.assertIn("0 of 3 restarts used", err)
        self.assertFalse(self.metrics.exists() and self.records())

    def test_syntax_error(self):
        self.config.write_text('{"train": {"steps": 5,}}\n')
        self.both_ways([self.config, ":1:23"])

    def test_missing_file(self):
        self.config.unlink()
        self.assert_refused(CONFIG_EXIT, [self.config, "No such file"], ranks=0)

    def test_unknown_key(self):
        self.both_ways(["data.seq_ln", "did you mean data.seq_len?"], "data.seq_ln=3")
        self.config.write_text(json.dumps({"trian": {}}))
        self.assert_refused(CONFIG_EXIT, [self.config, "trian", "did you mean train?"], ranks=0)

    def test_wrong_types_and_values(self):
        for setting, word in (("train.steps=many", "integer"), ("train.steps=-1", ">= 0"), ("optimizer.lr=-1", "from 0"),
                              ("optimizer.lr=1e39", "3.4e38"), ("data.seq_len=0", ">= 1"),
                              ("optimizer.betas=[1,2]", "[0, 1)"), ("parallel.tp=2", "1")):
            with self.subTest(setting):
                self.assert_refused(CONFIG_EXIT, [setting.split("=")[0], word], setting, ranks=0)
        self.assert_refused(CONFIG_EXIT, ["parallel.backend", "shm"], "parallel.backend=mpi", ranks=0)

    def test_missing_key(self):
        self.config.write_text(json.dumps({"model": {"config": str(self.model)}}))
        self.assert_refused(CONFIG_EXIT, ["data.train is missing"], ranks=0)

    def test_bad_pattern(self):
        self.both_ways(["optimizer.no_decay", "*nrom*"], 'optimizer.no_decay=["*nrom*"]')  # Found with the model built.


    def test_full_disk_for_what_is_printed(self):
        with open("/dev/full", "w") as full:
            done = subprocess.run([TRAIN, "config", "--default"], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
        self.assertEqual((done.returncode, done.stderr),
                         (1, "fsdp-train: cannot write to standard output: No space left on device\n"))


class ModelDescriptionTest(TrainCase):
    def refuse(self, text, *words):
        path = self.model / "config.json"
        path.write_text(text)
        self.assert_refused(CONFIG_EXIT, [path, *words])

    def test_malformed(self):
        self.refuse("{", ":1:", "not valid JSON")

    def test_heads_that_do_not_divide(self):
        self.refuse(json.dumps({**MODEL, "num_key_value_heads": 3}), "num_key_value_heads = 3", "divisor")

    def test_other_model(self):
        self.refuse(json.dumps({**MODEL, "model_type": "mamba"}), "mamba", "llama")

    def test_missing(self):
        (self.model / "config.json").unlink()
        self.assert_refused(CONFIG_EXIT, [self.model / "config.json", "No such file"])

    def test_window_longer_than_the_model_allows(self):
        self.assert_refused(CONFIG_EXIT, ["data.seq_len = 65", "max_position_embeddings = 64"], "data.seq_len=65")


class DataTest(TrainCase):
    def test_missing_file(self):
        self.assert_refused(CONFIG_EXIT, ["/nowhere.txt", "No such file"], 'data.train=["/nowhere.txt"]')

    def test_directory(self):
        self.assert_refused(CONFIG_EXIT, [self.dir, "not a regular file"], f'data.train=["{self.dir}"]')

    def test_shorter_than_one_window(self):
        (self.dir / "train.txt").write_bytes(b"x" * 16)
        self.assert_refused(CONFIG_EXIT, ["data.train", "16 bytes", "17"])
        (self.dir / "train.txt").write_bytes(b"x" * 17)
        self.train_well("train.steps=1")

    def test_evaluation_without_text(self):
        self.assert_refused(CONFIG_EXIT, ["data.valid", "eval_every"], "train.eval_every=1")


class WeightsTest(TrainCase):
    def refuse(self, *words):
        self.assert_refused(CONFIG_EXIT, words, f"model.weights={self.model}", launcher=["--max-restarts=3"])

    def write(self, header, data=b""):
        text = json.dumps(header).encode()
        self.path = self.model / "model.safetensors"
        self.path.write_bytes(struct.pack("<Q", len(text)) + text + data)

    def test_missing(self):
        self.refuse(self.model, "model.safetensors")

    def test_truncated(self):
        self.write({"model.norm.weight": {"dtype": "F32", "shape": [32], "data_offsets": [0, 128]}}, b"\0" * 100)
        self.refuse(self.path)
        self.path.write_bytes(self.path.read_bytes()[:20])
        self.refuse(self.path)
        self.path.write_bytes(b"")
        self.refuse(self.path)

    def test_tensors_missing(self):
        self.write({"model.norm.weight": {"dtype": "F32", "shape": [32], "data_offsets": [0, 128]}}, b"\0" * 128)
        self.refuse("lack", "model.embed_tokens.weight")


class OutputTest(TrainCase):
    def test_metrics_path(self):
        self.assert_refused(CONFIG_EXIT, ["/proc/nope/m.jsonl"], "metrics.jsonl=/proc/nope/m.jsonl")

    def test_folders_of_metrics(self):
        for key in ("metrics.tensorboard", "metrics.trace_dir"):
            self.assert_refused(CONFIG_EXIT, ["/proc/nope", key], f"{key}=/proc/nope", ranks=0)

    def test_checkpoint_directory_is_a_file(self):
        (self.dir / "file").touch()
        self.assert_refused(CONFIG_EXIT, [self.dir / "file"], f"checkpoint.dir={self.dir}/file")

    def test_read_only_checkpoint_directory(self):
        disk = self.disk("1m", "ro")
        self.assert_refused(CONFIG_EXIT, [disk, "read-only"], f"checkpoint.dir={disk}/run")
        self.assert_refused(CONFIG_EXIT, [disk, "read-only"], f"checkpoint.dir={disk}", ranks=0)

    def test_full_disk(self):
        disk = self.disk("64k")
        self.fill(disk)
        # Not CONFIG_EXIT, which no restart follows: somebody may make room.
        self.assert_refused(1, [disk, "full"], f"checkpoint.dir={disk}")

    def test_named_checkpoint_that_is_none(self):
        self.assert_refused(CONFIG_EXIT, ["checkpoint.resume", "/nowhere"], "checkpoint.resume=/nowhere",
                            launcher=["--max-restarts=3"])


class CommandLineTest(TrainCase):
    def run_plain(self, *arguments, env=None):
        return self.run_job(*arguments, binary=TRAIN, env=env)

    def test_unknown_flag(self):
        self.assert_one_line_error(self.run_plain("--confg", "x"), 2, "--confg", "--help")

    def test_no_arguments(self):
        self.assert_one_line_error(self.run_plain(), 2, "--config", "fsdprun", "--help")

    def test_unknown_flag_is_not_retried(self):
        rc, out, err = self.run_job("--standalone", "--nproc-per-node=2", "--max-restarts=3", "--no-python", TRAIN,
                                    "--confg")
        self.assertNotEqual(rc, 0)
        self.assertEqual(len(self.own_lines(out, err)), 1, err)
        self.assertIn("0 of 3 restarts used", err)

    def test_help_and_version(self):
        rc, out, err = self.run_plain("--help")
        self.assertEqual((rc, err), (0, ""))
        for word in ("usage:", "--config", "Signals:", "Exit codes:", "micro_batch_size", "checkpoint"):
            self.assertIn(word, out)
        self.assertEqual(self.run_plain("--version")[0], 0)

    def test_bad_environment(self):
        result = self.run_plain("--config", self.config, env={"RANK": "two", "WORLD_SIZE": "2"})
        self.assert_one_line_error(result, CONFIG_EXIT, "RANK", "two")

    def test_error_file_has_the_line(self):
        path = pathlib.Path(self.dir / "error.json")
        self.run_plain("--config", "/nowhere", env={"TORCHELASTIC_ERROR_FILE": str(path)})
        self.assertIn("ConfigError: cannot read /nowhere", json.loads(path.read_text())["message"]["message"])


if __name__ == "__main__":
    main()
