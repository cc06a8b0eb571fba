"""The command lines of the differential test: a list by the rows of the contract, and random ones by seed."""

import json
import random

from differential import WRITE, Case

STATIC = ["--master-port={port}"]
TWO = [*STATIC, "--nproc-per-node=2"]
ERROR_FILE = json.dumps({"message": {"message": "ValueError: bad", "extraInfo": {"py_callstack": "the stack", "timestamp": "1600000000"}}})
MANY_LINES = 'echo "foo,bar$RANK"; echo foo; echo bar; echo baz; echo "foo,bar" >&2; printf "a\\rb\\n"; printf "no end"'


def failing(rank, how="exit 7", start="*"):
    """This rank fails; the others live until they are told to end."""
    return f'if [[ $RANK == {rank} && $TORCHELASTIC_RESTART_COUNT == {start} ]]; then {how}; fi; [[ "{start}" != "*" ]] || wait_for never'


def leaving(content, code=1):
    return f"printf %s '{content}' > \"$TORCHELASTIC_ERROR_FILE\"; exit {code}"


def refused():
    """Rows 2 and 3."""
    rc2 = ["--bogus", "--max-restarts=x", "--start-method=zzz", "--node-rank=1.5", "--monitor-interval=fast", "--standalone=1", "--max-restarts",
           "--numa-binding=zz", "--s=1"]
    rc1 = ["--nnodes=1:2:3", "--nnodes=3:2", "--nnodes=0", "--nnodes=x", "--nproc-per-node=foo", "--nproc-per-node=0", "--max-restarts=-1",
           "--monitor-interval=0", "--rdzv-backend=zz", "--logs-specs=zz", "--rdzv-conf=a", "--rdzv-conf=a=1,", "--redirects=0:1,",
           "--redirects=11", "--redirects=4", "--redirects=1,0:1", "--tee=0:1,1", "--local-ranks-filter=a,b", "--event-log-handler=zz"]
    c10d = ["--rdzv-endpoint=localhost:70000", "--rdzv-conf=is_host=maybe", "--rdzv-conf=read_timeout=0", "--rdzv-conf=join_timeout=0",
            "--rdzv-conf=store_type=zz"]
    yield from (Case(f"row_02: {word}", [*STATIC, word]) for word in rc2)
    yield from (Case(f"row_03: {word}", [*STATIC, word]) for word in rc1)
    yield from (Case(f"row_03: c10d {word}", ["--rdzv-backend=c10d", word]) for word in c10d)
    yield Case("row_03: module and no-python", [*STATIC, "--module"])
    yield Case("row_03: log dir is a file", [*STATIC, "--log-dir=/etc/passwd"], log_dir=False)


def command_line():
    yield Case("row_01: nothing", [], program=[], log_dir=False)
    yield Case("row_01: no script", [*TWO], program=[])
    yield Case("row_02: PET_START_METHOD", [*STATIC], {"PET_START_METHOD": "zzz"})
    for words in (["--tee=0:1,0:1"], ["--signals-to-handle=FOO"], ["--local-ranks-filter=7"], ["--rdzv-conf=unknown=1"]):
        yield Case(f"row_03: odd {words[0]}", [*TWO, *words])
    yield Case("row_04: prefixes", ["--master-p={port}", "--redirect=3", "--tee=3", "--nproc-per", "2"])
    yield Case("row_04: underscores", ["--master_port={port}", "--nproc_per_node=2", "--max_restarts=0", "--local_ranks_filter=1"])
    yield Case("row_04: letters", [*TWO, "-t3", "-r", "1"])
    yield Case("row_04: standalone", ["--stand", "--nproc-per-n=2"])
    verbatim = ["--nproc-per-node", "3", "--", "x", "--tee=3"]
    yield Case("row_05: verbatim", [*STATIC], program=["--no-python", "{script}", *verbatim])
    yield Case("row_05: dashes before", [*STATIC, "--no-python"], program=["--", "{script}", "a"])
    yield Case("row_05: dashes after", [*STATIC, "--no-python"], program=["{script}", "--", "a", "--", "b"])
    yield Case("row_05: ambiguous", [*STATIC, "--no-python"], program=["{script}", "--nproc", "3", "--max", "4", "--log", "d"])
    yield Case("row_06: PET_", [*STATIC], {"PET_NPROC_PER_NODE": "3"})
    yield Case("row_06: command line wins", TWO, {"PET_NPROC_PER_NODE": "3"})
    yield Case("row_06: PET_STANDALONE=0", TWO, {"PET_STANDALONE": "0"})
    yield Case("row_06: PET_STANDALONE=1", ["--nproc-per-node=2"], {"PET_STANDALONE": "1"})
    yield Case("row_06: PET_NO_PYTHON", TWO, {"PET_NO_PYTHON": "1"}, program=["{script}"])
    yield Case("row_06: PET_MODULE", TWO, {"PET_MODULE": "yes"})
    yield Case("row_06: empty", [*STATIC], {"PET_NODE_RANK": ""})
    yield Case("row_07: names", TWO, program=["--no-python", "{script}", "${local_rank}", "$local_rank", "$$", "$HOME", "${rank}"])
    yield Case("row_08: python", TWO, write=WRITE, program=["{D}/missing.py"])
    yield Case("row_09: no program", [*STATIC], program=["--no-python", "./nope"])


def environment():
    yield Case("row_11: one worker", STATIC)
    yield Case("row_12: two workers", TWO)
    yield Case("row_12: threads", TWO, {"OMP_NUM_THREADS": "7"})
    yield Case("row_13: standalone", ["--standalone", "--nproc-per-node=2"], {"OMP_NUM_THREADS": "1"})
    yield Case("row_14: three nodes", [*STATIC, "--nnodes=3", "--node-rank=0"], more_nodes=[
        [*STATIC, "--nnodes=3", f"--node-rank={n}", f"--nproc-per-node={n + 1}"] for n in (1, 2)], env={"OMP_NUM_THREADS": "1"}, log_dir=False)
    yield Case("row_15: roles", [*STATIC, "--nnodes=3", "--node-rank=0", "--role=ps"], more_nodes=[
        [*STATIC, "--nnodes=3", f"--node-rank={n}", "--nproc-per-node=2", f"--role={role}"] for n, role in ((1, "trainer"), (2, "ps"))],
        env={"OMP_NUM_THREADS": "1"}, log_dir=False)
    yield Case("row_16: virtual", [*TWO, "--virtual-local-rank"], {"CUDA_VISIBLE_DEVICES": "4,6"})
    yield Case("row_16: too few", [*TWO, "--virtual-local-rank"], {"CUDA_VISIBLE_DEVICES": "4"})
    yield Case("row_17: inherited", [*STATIC, "--signals-to-handle=SIGTERM,SIGUSR1"], {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0", "SENTINEL": "7"})
    yield Case("row_17: /dev/null", [*TWO, "--log-dir=/dev/null"], log_dir=False)
    yield Case("row_18: local address", ["--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", "--local-addr=127.0.0.1"])
    yield Case("row_19: restarts", [*TWO, "--max-restarts=2"], end=failing(1))


def logs():
    yield Case("row_23: redirects", [*TWO, "--redirects", "3", "--max-restarts=2"], end=failing(1))
    for row, words in ((24, ["--redirects=0:1,1:2"]), (24, ["--tee=0:1,1:2"]), (24, ["--redirects=0:2,1:0", "--tee=0:1,1:2"]),
                       (25, ["--tee=3", "--role=trainer"]), (28, ["--local-ranks-filter=1", "--tee=3"]),
                       (28, ["--local-ranks-filter=1", "--tee=3", "--redirects=3"]), (24, ["--tee=10:3,0:1"]), (24, ["-r3"]), (24, ["-t1"])):
        yield Case(f"row_{row}: {' '.join(words)}", [*TWO, *words])
    yield Case("row_25: template", [*TWO, "-t3"], {"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "[${role_name}-${local_rank}:${rank}] $x "})
    yield Case("row_26: bytes", [*TWO, "--tee=3"], write=r"printf 'a\rb\n'; printf '\xff\xfe\n'; printf 'no end'")
    yield Case("row_29: filters", [*TWO, "--tee=3", "--duplicate-stdout-filters", "foo,,bar,baz"], write=MANY_LINES)
    yield Case("row_29: both filters", [*TWO, "--tee=3", "--duplicate-stdout-filters=baz", "--duplicate-stderr-filters=foo"], write=MANY_LINES)
    yield Case("row_31: no log directory", STATIC, log_dir=False)
    yield Case("row_31: no log directory, failure", STATIC, log_dir=False, end=failing(0))


def failures():
    yield Case("row_34: exit code", TWO, end=failing(1))
    yield Case("row_35: signal", TWO, end=failing(1, "kill -SEGV $$"))
    yield Case("row_36: nested", TWO, end=failing(0, leaving(ERROR_FILE, 3)))
    yield Case("row_36: plain", TWO, end=failing(1, leaving('{"message": "hello", "timestamp": 10}')))
    yield Case("row_36: string time", TWO, end=failing(1, leaving('{"message": "hello", "timestamp": "10"}')))
    yield Case("row_36: empty", TWO, end=failing(1, leaving("")))
    yield Case("row_36: truncated", TWO, end=failing(1, leaving('{"message": {"mess')))
    yield Case("row_37: the launcher's own file", TWO, {"TORCHELASTIC_ERROR_FILE": "{D}/error.json"}, end=failing(1, leaving(ERROR_FILE, 5)))
    yield Case("row_41: always", [*TWO, "--max-restarts=3"], end=failing(0))
    yield Case("row_41: twice", [*TWO, "--max-restarts=3"], end="exit $((RANK == 0 && TORCHELASTIC_RESTART_COUNT < 2))")
    yield Case("row_41: killed once", [*TWO, "--max-restarts=1"], end=failing(1, "kill -KILL $$", 0))


def fixed():
    for part in (refused, command_line, environment, logs, failures):
        yield from part()


def spelled(chosen, name, value):
    """One of the ways in which torchrun takes an option: (words, variables)."""
    way = chosen.randrange(5)
    if way == 0:
        return [], {f"PET_{name.upper().replace('-', '_')}": value}
    if way == 1:
        return [f"--{name.replace('-', '_')}", value], {}
    if way == 2:
        return [f"--{name[:-1]}={value}"], {}
    return [f"--{name}={value}"] if way == 3 else [f"--{name}", value], {}


def streams(chosen, nproc):
    if chosen.random() < 0.5:
        return str(chosen.randrange(4))
    ranks = chosen.sample(range(nproc + 1), chosen.randint(1, nproc))
    return ",".join(f"{rank}:{chosen.randrange(4)}" for rank in ranks)


def random_case(seed):
    """A command line that torchrun takes, most of the time."""
    chosen = random.Random(seed)
    nproc = chosen.choice([1, 2, 2, 3])
    options = {"nproc-per-node": str(nproc)}
    may = {"role": lambda: chosen.choice(["trainer", "a b", "x-1"]), "rdzv-id": lambda: chosen.choice(["run1", "42", "job.x"]),
           "max-restarts": lambda: chosen.choice(["0", "1", "2"]), "redirects": lambda: streams(chosen, nproc),
           "tee": lambda: streams(chosen, nproc), "local-ranks-filter": lambda: chosen.choice(["0", "1", "0,1", "1,2"]),
           "duplicate-stdout-filters": lambda: chosen.choice(["out", "out0,,", "nothing", "out1,t0"]),
           "duplicate-stderr-filters": lambda: chosen.choice(["err", "r1"]), "monitor-interval": lambda: chosen.choice(["0.05", "0.1", "1e-1"]),
           "start-method": lambda: chosen.choice(["spawn", "fork"]), "signals-to-handle": lambda: chosen.choice(["SIGTERM", "SIGTERM,SIGUSR1"]),
           "rdzv-conf": lambda: chosen.choice(["a=1", "join_timeout=60", " a = b , c = d=e ", "last_call_timeout=5,unknown=x"]),
           "node-rank": lambda: "0", "event-log-handler": lambda: chosen.choice(["null", "dynamic_rendezvous"]),
           "log-dir": lambda: "{D}/logs"}
    for name in chosen.sample(sorted(may), chosen.randint(1, 6)):
        options[name] = may[name]()
    words, env = [], {}
    for name, value in options.items():
        these, variables = spelled(chosen, name, value)
        words, env = [*words, *these], {**env, **variables}
    meeting = chosen.choice([["--standalone"], STATIC, STATIC, ["--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0"]])
    if chosen.random() < 0.2:
        words.append("--virtual-local-rank")
        env["CUDA_VISIBLE_DEVICES"] = chosen.choice(["0,1,2,3", "7,5", "3"])
    if chosen.random() < 0.2:
        env["OMP_NUM_THREADS"] = "3"
    victim = chosen.randrange(nproc)
    end = chosen.choice(["exit 0", "exit 0", failing(victim, f"exit {chosen.choice([1, 2, 78 - 1, 200])}"), failing(victim, "kill -SEGV $$"),
                         failing(victim, "kill -KILL $$", 0), failing(victim, leaving(ERROR_FILE, 4))])
    write = chosen.choice([WRITE, WRITE, MANY_LINES, ":"])
    return Case(f"seed {seed}", [*meeting, *words], env, write, end, log_dir="log-dir" not in options and chosen.random() < 0.7)
