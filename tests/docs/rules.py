"""How docs_test.py treats each command and block of the documentation. A new one that no rule matches fails the test:
give it a rule here. Rules are tried in order; they are regular expressions of the whole command, so that a command may
be reworded as long as its kind is clear."""

import re
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Run:
    """The command is run in the scratch folder, after these replacements in its text, and has to succeed."""

    replace: dict[str, str] = field(default_factory=dict)
    launchers: int = 1  # how many times at once, as the nodes of one job
    expect: tuple[str, ...] = ()  # regular expressions that the output has to contain


@dataclass(frozen=True)
class Named:
    """The command is not run, for this reason; what it names (script, flags, target, label, preset) has to exist."""

    reason: str


COMMANDS: list[tuple[str, Run | Named]] = [
    # {port} is a free port. The workers are the scratch folder's train.py and worker, which print their rank.
    (r"\S*=?\S* ?build/bin/fsdprun .*--nproc-per-node 4 .*train\.py.*",
     Run(expect=tuple(rf"rank {rank} of 4" for rank in range(4)))),
    (r"build/bin/fsdprun --dry-run .*", Run()),
    (r"build/bin/fsdprun --nnodes 2 .*--rdzv-endpoint node0:29400.*",
     Run(replace={"node0:29400": "127.0.0.1:{port}", "--nproc-per-node 8": "--nproc-per-node 2"}, launchers=2,
         expect=tuple(rf"rank {rank} of 4" for rank in range(4)))),
    (r"build/bin/fsdprun .*--no-python \./worker", Run(expect=(r"rank 0 of 2", r"rank 1 of 2"))),
    (r"build/bin/fsdprun .*build/bin/fsdp-train --config train\.json.*",
     Run(replace={"train.steps=1000": "train.steps=24 --set checkpoint.every_steps=12"},
         expect=(r"^eval after step 24: loss [0-4]\.", r"^done: 24 steps"))),
    (r"build/bin/fsdp-train sample .*", Run(expect=(r"^In the ",))),
    (r"build/bin/fsdp-train estimate .*", Run(expect=(r"^  peak ", r"^verdict +fits"))),
    (r"build/bin/fsdp-train check .*", Run(expect=(r"nothing was started or written", r"^memory "))),
    (r"fsdp-train (estimate|check) .*", Named("docs/TRAINING.md runs them with a configuration")),
    (r"(build/bin/)?(fsdprun|fsdp-train|fsdp-agent)( sample)? --help", Run(expect=(r"[Uu]sage",))),
    (r"(build/bin/)?fsdp-train config .*", Run(expect=(r"seq_len",))),
    (r"fsdp-train tokenize .*", Named("train_tokenize runs it with each tokenizer and format")),
    (r"fsdp(run|-train|-agent)( [a-z]+)?", Named("a name in a sentence")),
    (r"fsdpctl( [a-z]+)*", Named("a name in a sentence")),
    (r"fsdpctl (ps|status|events|restart|stop|logs|stacks|checkpoint) .*", Named("launcher_fsdpctl and launcher_fsdpctl_nodes ask real jobs")),
    (r"(build/bin/)?fsdprun chaos.*", Named("launcher_chaos starts it, on jobs of its own")),
    (r"fsdprun \./chaos", Named("a name in a sentence")),
    (r"kill -CONT", Named("a name in a sentence")),
    (r"fsdp-stacks .*", Named("local_agent_parts_test runs it")),
    (r"(build/bin/)?fsdpctl top( .*)?", Named("launcher_fsdpctl_top runs it in a terminal")),
    (r"fsdpctl (drain|scale) .*", Named("launcher_fsdpctl_membership drains and scales real jobs")),
    (r"build/bin/fsdpctl doctor|fsdpctl doctor .*|srun --ntasks-per-node=1 fsdpctl doctor", Named("launcher_doctor runs it; how it ends depends on the machine")),
    (r"fsdpctl ckpt .*", Named("its tests run it on files that Python wrote")),
    (r"fsdpctl slurm .*|sbatch \w+\.sbatch", Named("slurm_templates runs it in a real Slurm")),
    (r"build/bin/fsdprun .*tests/parity/all_reduce_worker\.py", Named("python_worker_standalone runs it")),
    (r"fsdprun (--coordinator .*|)--rdzv-backend etcd .*", Named("launcher_coordinator_etcd runs it")),
    (r"etcdctl del --prefix /journals/run7/", Named("the tests' etcd has no etcdctl; launcher_coordinator_etcd deletes keys by etcd's API")),
    (r"fsdprun (--coordinator|--rdzv-backend c10d --rdzv-endpoint head:29400).*", Named("launcher_coordinator_restart runs it")),
    (r"(build/bin/)?fsdprun (--hostfile \S+ )?--ssh( .*)?", Named("launcher_ssh runs it")),
    (r"fsdp-agent --daemon( .*)?|fsdprun --(agents|hostfile|detach|attach)( .*)?", Named("launcher_daemon runs it")),
    (r"(build/bin/)?fsdprun --accelerate-config .*", Named("accelerate_config and accelerate_scripts run it")),
    (r"(PYTHON_EXEC=\S+ )?(build/bin/)?fsdprun .*", Run()),
    (r"source <\(build/bin/fsdprun --completion bash\)", Run()),
    (r"fsdpctl --completion fish \| source|source <\(fsdpctl .*", Named("launcher_completions has the shells load and use them")),
    (r"jq .* logs/\*/events\.jsonl", Named("launcher_event_log runs it after a real failure")),
    (r"export \w+=.*", Run()),
    (r"scripts/setup --check", Named("what it answers depends on the machine")),
    (r"(\w+=\S+ )?(scripts|\.ci)/\S+.*", Named("they install, build, or run all tests")),
    (r"\.venv/bin/python .*", Named("ctest runs the same scripts, the benchmarks only scripts/bench")),
    (r"ctest .*", Named("it would start the tests again")),
    (r"ninja .*", Named("it would build")),
    (r"cmake .*", Named("install_package, install_programs and install_consumer run it")),
]


def rule_of(command: str) -> Run | Named | None:
    return next((rule for pattern, rule in COMMANDS if re.fullmatch(pattern, command)), None)


# Blocks that are not commands: language and a pattern that the text contains -> what is done with it.
BLOCKS: list[tuple[str, str, str]] = [
    ("json", r'"model".*"data".*"train"', "training configuration"),
    ("json", r'"optim\.\*": null', "map of keys, which fsdpctl's tests of ckpt convert have"),
    ("cpp", r"int main\(", "C++ program"),
    ("python", r"FSDPRUN_VITALS_FILE", "worker, which launcher_vitals runs"),
    ("python", r"FSDPRUN_CONTROL_FD.*makefile", "worker that saves when asked, which launcher_fsdpctl_nodes has, too"),
    ("python", r"def permuted", "the order of data, which worker_data_test holds against the C++"),
    ("python", r"dcp\.save\(", "statement of a program, which parity_checkpoint_chain makes"),
    ("cmake", r"add_subdirectory\(fsdprun", "CMake project"),
    ("cmake", r"find_package\(fsdp", "CMake project, which install_consumer has"),
    ("diff", r"fsdp::fully_shard", "change, which install_consumer makes"),
    ("sbatch", r"^#!/bin/bash\n#SBATCH ", "batch file, which slurm_templates runs in a real Slurm"),
    ("", r"fsdp-keeper\n.*worker 0", "picture"),
    ("", r"ShardStore --all-gather--> GatherBuffer", "picture"),
    ("", r"Root Cause \(first observed failure\)", "failure report"),
    ("text", r"Root Cause \(first observed failure\)", "failure report"),
    ("text", r".", "output"),
]
# Languages of blocks of commands; a fence without language is one unless BLOCKS knows it.
COMMAND_LANGUAGES = ("", "sh", "bash", "shell", "console")


def kind_of_block(language: str, text: str) -> str | None:
    """None: nothing is known about such a block."""
    for known, pattern, kind in BLOCKS:
        if language == known and re.search(pattern, text, re.S):
            return kind
    return "commands" if language in COMMAND_LANGUAGES else None
