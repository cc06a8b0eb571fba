"""One command line under torchrun and under fsdprun: what can be seen of both, and the differences that are allowed.

A difference is allowed by a rule of RULES, which has a name and a reason; docs/TORCHRUN.md lists the same names. What
differs by nature (process ids, times, random parts of names, ports that nobody chose) is removed by `normalised`, for
both launchers and nowhere else.
"""

import collections
import json
import re
import shutil
import time
from dataclasses import dataclass, field

import this_host

# Leaves environment and arguments in D, writes as told, waits for the other ranks, and ends as told. So all that is
# written is written before anything fails.
WORKER = """
id="$TORCHELASTIC_RESTART_COUNT.$RANK"
cp /proc/self/environ "$D/part.$id"; mv "$D/part.$id" "$D/env.$id"
printf '%s\\0' "$@" > "$D/arguments.$id"
<write>
echo > "$D/wrote.$id"
for ((rank = 0; rank < WORLD_SIZE; rank++)); do wait_for wrote.$TORCHELASTIC_RESTART_COUNT.$rank; done
<end>
"""
WRITE = 'echo "out$RANK"; echo "err$RANK" >&2'


@dataclass
class Case:
    """A command line: options, variables, and what the worker writes and how it ends. {D}, {port}, {script} are filled in."""

    name: str
    words: list
    env: dict = field(default_factory=dict)
    write: str = WRITE
    end: str = "exit 0"
    program: list | None = None  # instead of --no-python and the worker, which is {script}
    log_dir: bool = True
    more_nodes: list = field(default_factory=list)  # words of further launchers of the same job


@dataclass
class Outcome:
    """What can be seen of one run, normalised."""

    codes: list
    environments: dict  # (start, rank) -> {name: value}
    arguments: dict  # (start, rank) -> [word]
    files: dict  # path below the run directory -> text
    out: collections.Counter
    err: collections.Counter  # of workers; what the launcher says itself is not in it
    summary: dict  # label of the root cause's block -> value
    error_file: dict  # the launcher's own
    left: list  # names in TMPDIR afterwards; EMPTY follows that of a folder in which no file has anything
    message: str  # what the launcher itself said, for people


LOGGER_LINE = re.compile(r"^[A-Z]\d{4} \d\d:\d\d:\d\d\.\d+ \d+ \S+:\d+\]|^\[[WE]\d{4} .*\[c10d\]|^Exception raised from|^frame #|^<omitting|^$")
UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
# What parts of PyTorch make that torchrun imports on some of its ways, and not on others.
NOT_OF_TORCHRUN = ("TORCHINDUCTOR_CACHE_DIR", "torchinductor_")
EMPTY = " (empty)"


def split_messages(err):
    """(lines of the workers, text of the launcher)."""
    workers, own, in_report = [], [], False
    for line in err.splitlines():
        if line.startswith(("Traceback (most recent call last):", "usage: torchrun")) or "ChildFailedError" in line:
            in_report = True
        is_own = in_report or LOGGER_LINE.match(line) or line.startswith(("fsdprun:", "torchrun:"))
        (own if is_own else workers).append(line)
        if in_report and re.fullmatch("=+", line) and any("Root Cause" in each for each in own):
            in_report = False
    return workers, "\n".join(own)


def read_summary(text):
    """Labels and values of the root cause's block, and the title."""
    if "Root Cause (first observed failure):" not in text:
        return {}
    title = re.search(r"^(.*) FAILED$", text, re.M)
    root = text[text.index("Root Cause (first observed failure):"):]
    values = {label: value for label, value in re.findall(r"^  (\w+) *: (.*)$", root, re.M)}
    stack = re.search(r"^  traceback : (.*(?:\n(?!  \w+ +:|  (?:log|last) |[-=]+$).*)*)", root, re.M)
    return {"title": title[1] if title else None, **values, **({"traceback": stack[1]} if stack else {})}


def normalised(name, value):
    """The value without what differs from run to run."""
    if name == "TORCHELASTIC_ERROR_FILE":
        return UUID.sub("<uuid>", re.sub(r"_\w{8}/attempt", "_<random>/attempt", value))
    if name == "exitcode":
        return re.sub(r"\(pid: \d+\)", "(pid: <pid>)", value)
    if name == "error_file":
        return re.sub(r"^.*/attempt", "<run>/attempt", value)
    if name == "traceback":
        return re.sub(r"PID \d+", "PID <pid>", value)
    if name == "time":
        seconds = time.mktime(time.strptime(value, "%Y-%m-%d_%H:%M:%S"))
        return "<now>" if abs(time.time() - seconds) < 600 else value
    if name == "TORCHELASTIC_RUN_ID":
        return UUID.sub("<uuid>", value)
    return value


def run(test, launcher, case, port):
    """The outcome of the case; `test` is a CompatCase. Both launchers work in the same folder, one after the other."""
    folder = test.dir / "both"
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "tmp").mkdir(parents=True)
    script = test.program(WORKER.replace("<write>", case.write).replace("<end>", case.end))

    def filled(text):
        return str(text).replace("{D}", str(folder)).replace("{port}", str(port)).replace("{script}", script)

    env = {"D": "{D}", "TMPDIR": "{D}/tmp", **case.env}
    options = ["--log-dir={D}/logs"] if case.log_dir else []
    program = ["--no-python", "{script}"] if case.program is None else case.program
    started = [test.start(*map(filled, [*options, *words, *program]), launcher=launcher, cwd=folder,
                          env={name: filled(value) for name, value in env.items()}) for words in [case.words, *case.more_nodes]]
    return _outcome(folder, [test.finish(process) for process in started])


def _left_in(folder):
    names = []
    for path in folder.iterdir():
        if not path.name.startswith(NOT_OF_TORCHRUN):
            has_any = not path.is_dir() or any(file.stat().st_size > 0 for file in path.rglob("*") if file.is_file())
            names.append(path.name + ("" if has_any else EMPTY))
    return sorted(names)


def _outcome(folder, results):
    out, err, own = collections.Counter(), collections.Counter(), []
    for _, text, messages in results:
        out.update(text.splitlines())
        workers, message = split_messages(messages)
        err.update(workers)
        own.append(message)
    environments, arguments, files = {}, {}, {}
    for path in folder.glob("env.*"):
        _, start, rank = path.name.split(".")
        entries = [entry.split(b"=", 1) for entry in path.read_bytes().split(b"\0") if b"=" in entry]
        environments[int(start), int(rank)] = {name.decode(): normalised(name.decode(), value.decode()) for name, value in entries
                                               if not name.decode().startswith(NOT_OF_TORCHRUN)}
        words = (folder / f"arguments.{start}.{rank}").read_text().split("\0")[:-1]
        arguments[int(start), int(rank)] = words if words != [""] else []
    runs = list((folder / "logs").iterdir()) if (folder / "logs").is_dir() else []
    for run_dir in runs:
        for path in run_dir.rglob("*"):
            if path.is_file() and path not in (run_dir / "events.jsonl", run_dir / "ledger.json"):
                files[str(path.relative_to(run_dir))] = "\n".join(sorted(path.read_text(errors="replace").split("\n")))
    error_file = folder / "error.json"
    return Outcome([rc for rc, _, _ in results], environments, arguments, files, out, err,
                   {name: normalised(name, value) for name, value in read_summary("\n".join(own)).items()},
                   json.loads(error_file.read_text()) if error_file.exists() else {},
                   _left_in(folder / "tmp"), "\n".join(own))


@dataclass
class Rule:
    """An allowed difference. `settle` takes away what it allows, from both outcomes, and says whether there was any."""

    name: str
    reason: str
    settle: object


# Those of proto/worker_contract.h; no other variable of fsdprun's reaches workers, and a secret least of all.
OWN_VARIABLES = ("FSDPRUN_GENERATION", "FSDPRUN_CONTROL_FD", "FSDPRUN_JOB_ID", "FSDPRUN_VITALS_FILE", "FSDPRUN_PROGRESS_VIEW")


def _own_variables(case, theirs, ours):
    taken = [environment.pop(name, None) for environment in ours.environments.values() for name in OWN_VARIABLES]
    return any(value is not None for value in taken)


def _meets_by_c10d(case):
    return any(str(word).startswith("--stand") or "c10d" in str(word) for word in case.words) or "c10d" in str(case.env) or (
        case.env.get("PET_STANDALONE", "0") not in ("", "0"))


def _where_the_store_is(name, is_allowed):
    """Both launchers give a value, which need not be the same: all ranks of a start have the same one, and each is what it may be."""
    def settle(case, theirs, ours):
        def of_start(outcome, start):
            return {environment.get(name) for (which, _), environment in outcome.environments.items() if which == start}
        fired = False
        for start in {start for start, _ in theirs.environments} & {start for start, _ in ours.environments}:
            a, b = of_start(theirs, start), of_start(ours, start)
            if a != b and len(a) == len(b) == 1 and None not in a | b and is_allowed(case, *a, *b):
                for (which, _), environment in [*theirs.environments.items(), *ours.environments.items()]:
                    if which == start:
                        environment[name] = "<differs>"
                fired = True
        return fired
    return settle


def _is_chosen_port(case, theirs, ours):
    is_given = any("{port}" in str(word) for word in [*case.words, *case.env.values()]) and not _meets_by_c10d(case)
    return not is_given and all(re.fullmatch(r"\d+", port) and 0 < int(port) < 65536 for port in (theirs, ours))


def _is_numeric_address(case, theirs, ours):
    return _meets_by_c10d(case) and this_host.is_name(theirs) and this_host.is_numeric_address(ours)


def _all_streams_have_files(case, theirs, ours):
    logs = re.compile(r"/std(out|err)\.log$")
    if any(logs.search(name) for name in theirs.files):
        return False
    extra = [name for name in ours.files if logs.search(name)]
    for name in extra:
        del ours.files[name]
    return bool(extra)


def _nothing_is_left(case, theirs, ours):
    """After success, after what is refused before anything starts, and where no worker has written anything to a file; the
    logs of a failure stay."""
    is_over = ours.codes == [0] * len(ours.codes) or not ours.environments
    unwanted = [name for name in theirs.left if name.startswith("torchelastic_") and
                (is_over or (name.endswith(EMPTY) and not ours.left))]
    theirs.left = [name for name in theirs.left if name not in unwanted]
    return bool(unwanted)


def _names_in_tmp(case, theirs, ours):
    """Of the temporary run directory of a job that failed."""
    def plain(outcome):
        return ["<run>" if re.match(r"torchelastic_|fsdprun_", name) else name for name in outcome.left]
    fired = theirs.left != ours.left and plain(theirs) == plain(ours)
    if fired:
        theirs.left = ours.left = []
    for outcome in (theirs, ours):
        for environment in outcome.environments.values():
            if "ERROR_FILE" not in environment and not case.log_dir and "TORCHELASTIC_ERROR_FILE" in environment:
                new = re.sub(r"/tmp/(torchelastic_\w+/|fsdprun_)", "/tmp/<run>/", environment["TORCHELASTIC_ERROR_FILE"])
                fired = fired or new != environment["TORCHELASTIC_ERROR_FILE"]
                environment["TORCHELASTIC_ERROR_FILE"] = new
    return fired


def _asks_for_logs(case):
    """No stream, as in `--redirects 0`, is none."""
    words = " ".join([*map(str, case.words), *(f"{name}={value}" for name, value in case.env.items())])
    words = re.sub(r"(?:^| )(?:--redirects|--tee|-[rt]|PET_(?:REDIRECTS|TEE))[ =]?0(?= |$)", "", words)
    return case.log_dir or re.search(r"(?:^| )(?:--log|--redirect|--tee|-[rt]|PET_(?:LOG_DIR|REDIRECTS|TEE))", words)


def _error_files_side_by_side(case, theirs, ours):
    """Where nobody asked for logs, until the worker has ended."""
    if _asks_for_logs(case):
        return False
    fired = False
    for key, environment in ours.environments.items():
        written = environment.get("TORCHELASTIC_ERROR_FILE", "")
        kept = re.sub(r"/(attempt_\d+)/error_(\d+)\.json$", r"/\1/\2/error.json", written)
        if kept != written and key in theirs.environments:
            environment["TORCHELASTIC_ERROR_FILE"] = kept
            fired = True
    return fired


# Of the block of a failure; what else is said has no label.
MORE_LABELS = ("log",)


def _more_in_the_summary(case, theirs, ours):
    extra = [label for label in MORE_LABELS if label in ours.summary and label not in theirs.summary] if theirs.summary else []
    for label in extra:
        del ours.summary[label]
    return bool(extra)


def _name_of_the_host(case, theirs, ours):
    if not this_host.is_name(theirs.summary.get("host", "")) or not this_host.is_name_with_address(ours.summary.get("host", "")):
        return False
    theirs.summary["host"] = ours.summary["host"] = "<host>"
    return True


def _name_of_the_signal(case, theirs, ours):
    match = re.fullmatch(r"(-\d+ \(pid: <pid>\)) SIG\w+", ours.summary.get("exitcode", ""))
    if match:
        ours.summary["exitcode"] = match[1]
    return bool(match)


def _one_line(case, theirs, ours):
    """Of what is refused: torchrun shows a traceback or its whole usage."""
    return bool(theirs.message) and not theirs.summary and theirs.codes == ours.codes != [0] and len(ours.message.splitlines()) == 1 < len(
        theirs.message.splitlines())


def _forgive(case, theirs, ours):
    """torchrun does not get as far as this: nothing is left to compare."""
    for name in ("codes", "environments", "arguments", "files", "out", "err", "summary", "error_file", "left"):
        setattr(theirs, name, getattr(ours, name))
    return True


def _ours_is_better(is_meant, works=lambda ours: ours.codes == [0]):
    """torchrun fails where fsdprun does what was asked for."""
    def settle(case, theirs, ours):
        return is_meant(case, theirs) and works(ours) and _forgive(case, theirs, ours)
    return settle


def _usage_error(case, theirs):
    return theirs.codes == [2] and any(word.startswith("--") for word in (case.program or [])[1:])


def _broken_file(case, theirs):
    return not theirs.summary and re.search(r"JSONDecodeError|KeyError|TypeError", theirs.message) is not None


def _two_digits(case, theirs):
    return theirs.codes == [1] and "1" in str(case.words) and re.search(r"\b\d\d:[0-3]", str(case.words)) is not None


def _empty_variable(case, theirs):
    return theirs.codes[0] != 0 and any(name.startswith("PET_") and value == "" for name, value in case.env.items())


def _missing_script(case, theirs, ours):
    """torchrun starts Python, which fails."""
    fired = theirs.codes == ours.codes == [1] and "can't open file" in str(theirs.err) + theirs.message
    return fired and _forgive(case, theirs, ours)


def _whole_lines(case, theirs, ours):
    """The same characters, but ends of lines are missing where nothing ended a worker's last line."""
    fired = False
    for name in ("out", "err"):
        a, b = getattr(theirs, name), getattr(ours, name)
        if a != b and sum(a.values()) < sum(b.values()) and sorted("".join(a.elements())) == sorted("".join(b.elements())):
            setattr(theirs, name, b)
            fired = True
    return fired


def _message_and_stack(case, theirs, ours):
    a, b = theirs.summary.get("traceback"), ours.summary.get("traceback")
    if not a or not b or a == b or not set(map(str.strip, a.splitlines())) <= set(map(str.strip, b.splitlines())):
        return False
    theirs.summary["traceback"] = b
    return True


def _dash_dash(case, theirs, ours):
    fired = False
    for key, words in theirs.arguments.items():
        if ours.arguments.get(key) == ["--", *words]:
            ours.arguments[key] = words
            fired = True
    return fired


RULES = [
    Rule("own-variables", "variables tell workers of fsdprun's job and generation, of its control channel and of their page", _own_variables),
    Rule("chosen-port", "a port that nobody chose is a free one", _where_the_store_is("MASTER_PORT", _is_chosen_port)),
    Rule("numeric-master-address", "a name would have to be resolved by every worker",
         _where_the_store_is("MASTER_ADDR", _is_numeric_address)),
    Rule("file-for-each-stream", "the report shows the last lines of the worker that failed", _all_streams_have_files),
    Rule("error-files-side-by-side", "to make and remove a folder for each worker takes longer than to start it", _error_files_side_by_side),
    Rule("nothing-left-in-tmp", "torchrun leaves a directory behind after each run", _nothing_is_left),
    Rule("name-of-the-run-directory", "the temporary directory has our name", _names_in_tmp),
    Rule("name-of-the-signal", "the exit code's line names the signal, as torchrun does after 2.11", _name_of_the_signal),
    Rule("whole-lines", "a line without an end gets one when another worker's line or the end follows", _whole_lines),
    Rule("message-before-the-stack", "the message of an error file stands before its stack", _message_and_stack),
    Rule("more-in-the-summary", "where the log is, its last lines, what else was stopped, what to do", _more_in_the_summary),
    Rule("name-of-the-host", "the host's short name with the address that the others see", _name_of_the_host),
    Rule("one-line-errors", "a traceback of the launcher tells its user nothing", _one_line),
    Rule("verbatim-arguments", "a script's arguments are its own: `--` after the script is kept", _dash_dash),
    Rule("arguments-that-are-prefixes", "a script's argument that begins like an option of torchrun's is no usage error",
         _ours_is_better(_usage_error)),
    Rule("broken-error-files", "an error file that is empty or cut off does not end the launcher",
         _ours_is_better(_broken_file, lambda ours: bool(ours.summary))),
    Rule("ranks-above-nine", "maps of --redirects and --tee take any local rank", _ours_is_better(_two_digits)),
    Rule("empty-variables", "a PET_ variable that is empty counts as not set", _ours_is_better(_empty_variable)),
    Rule("missing-script", "a script that does not exist is told in one line, before anything starts", _missing_script),
]


def compare(case, theirs, ours):
    """(differences that no rule allows, names of the rules that fired)."""
    fired = {rule.name for rule in RULES if rule.settle(case, theirs, ours)}
    differences = []
    for name in ("codes", "environments", "arguments", "files", "out", "err", "summary", "error_file", "left"):
        a, b = getattr(theirs, name), getattr(ours, name)
        if a != b:
            differences.append(f"{name}: " + _difference(a, b))
    return differences, fired


def _difference(a, b):
    if isinstance(a, dict) and isinstance(b, dict):
        return "; ".join(f"{key}: {_difference(a[key], b[key]) if key in a and key in b else f'only torchrun: {a[key]!r}' if key in a else f'only fsdprun: {b[key]!r}'}"
                         for key in sorted(a.keys() | b.keys(), key=str) if a.get(key) != b.get(key))
    return f"torchrun {a!r}, fsdprun {b!r}"
