#!/usr/bin/env python3
"""Writes the seeds of the fuzz targets: small valid inputs, made by Python's own writers of the formats.

    .venv/bin/python tests/fuzz/make_seeds.py     needs PyTorch (what torch.save and torch.distributed.checkpoint write),
                                                  PyYAML and protoc

The seeds are in the repository, so this is only for adding to them. Inputs of fixed bugs (found_*) are left alone.
"""

import gzip
import io
import json
import pickle
import struct
import subprocess
import tempfile
import zipfile
from collections import OrderedDict
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
import yaml

HERE = Path(__file__).resolve().parent
PROTO = HERE.parents[1] / "proto"
MAX_BYTES = 4096


def write(target: str, name: str, content: bytes | str) -> None:
    folder = HERE / "corpus" / target
    folder.mkdir(parents=True, exist_ok=True)
    data = content.encode() if isinstance(content, str) else content
    assert len(data) <= MAX_BYTES, f"{target}/{name} has {len(data)} bytes"
    (folder / name).write_bytes(data)


def saved(value: object) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def pickle_of(archive: bytes) -> bytes:
    with zipfile.ZipFile(io.BytesIO(archive)) as records:
        return next(records.read(name) for name in records.namelist() if name.endswith("data.pkl"))


STATE = {"step": 3, "seed": 2**64 - 1, "lowest": -2**63, "lr": 0.1, "none": None, "flag": True,
         "nested": {"list": [1, "two", 3.5, []], "tuple": (1, 2)}}


def pickles() -> None:
    shared = ["x"] * 3
    for protocol in (2, 3, 4, 5):
        write("pickle", f"state_protocol_{protocol}", pickle.dumps([STATE, shared, shared, b"by"], protocol=protocol))
    write("pickle", "ordered_dict", pickle.dumps(OrderedDict(a=1, b=torch.Size([2, 3])), protocol=2))
    write("pickle", "tensor", pickle_of(saved(torch.arange(6, dtype=torch.float32).reshape(2, 3))))
    cycle: list = []
    cycle.append(cycle)
    write("pickle", "cycle", pickle.dumps(cycle, protocol=2))


def metadata() -> None:
    state = {"model": {"w": torch.arange(6.0).reshape(2, 3), "b": torch.zeros(0)}, "list": [torch.tensor(1)], "n": 3}
    with tempfile.TemporaryDirectory() as folder:
        dcp.save(state, checkpoint_id=folder, no_dist=True)
        write("dcp_metadata", "python", (Path(folder) / ".metadata").read_bytes())
        dcp.save({"w": torch.ones(1)}, checkpoint_id=folder, no_dist=True)
        write("dcp_metadata", "python_small", (Path(folder) / ".metadata").read_bytes())


def small_archive(zip64: bool) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", allowZip64=True) as archive:
        for name, content in (("a/data.pkl", pickle.dumps({"a": 1}, protocol=2)), ("a/data/0", b"12345678")):
            with archive.open(name, "w", force_zip64=zip64) as record:
                record.write(content)
    return buffer.getvalue()


def archives() -> None:
    tensor = saved(torch.arange(3, dtype=torch.int16))
    write("zip", "tensor", b"r" + tensor)
    write("zip", "object", b"r" + saved({"a": [1, 2.5, "x"], "b": None}))
    write("zip", "tensor_consistent", b"s" + tensor)
    write("zip", "small", b"s" + small_archive(zip64=False))
    write("zip", "zip64", b"s" + small_archive(zip64=True))
    write("zip", "pickle_of_object", b"p" + pickle_of(saved(STATE)))
    write("zip", "pickle_of_tensor", b"p" + pickle_of(saved(torch.arange(6, dtype=torch.int16).reshape(2, 3))))


def state_dicts() -> None:
    model = OrderedDict(w=torch.arange(6.0).reshape(2, 3).t(), n=torch.tensor(7), b=torch.ones(2, dtype=torch.bfloat16))
    model["tied"] = model["w"]
    model._metadata = OrderedDict({"": {"version": 1}})  # as Module.state_dict() has it
    whole = saved(model)
    write("state_dict", "model", b"a" + whole)
    write("state_dict", "model_pickle", b"m" + pickle_of(whole))
    newer = {"f": torch.zeros(2, dtype=torch.float8_e5m2), "p": torch.nn.Parameter(torch.ones(1))}
    write("state_dict", "model_of_newer_types", b"m" + pickle_of(saved(newer)))
    group = {"lr": torch.tensor(0.1), "betas": (0.9, 0.999), "fused": None, "amsgrad": False, "name": "all"}
    optimizer = {"state": {"w": {"step": torch.tensor(3.0), "exp_avg": torch.ones(2, 3)}, "b": {"step": 2}},
                 "param_groups": [group | {"params": ["w"]}, group | {"params": ["b"], "lr": 1}]}
    write("state_dict", "optimizer", b"a" + saved(optimizer))
    write("state_dict", "optimizer_pickle", b"o" + pickle_of(saved(optimizer)))
    write("state_dict", "protocol_4", b"o" + pickle.dumps({"state": {}, "param_groups": [{"params": ["w"]}]}, protocol=4))


def safetensors() -> None:
    header = {"__metadata__": {"format": "pt"}, "a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
              "b": {"dtype": "BF16", "shape": [4], "data_offsets": [24, 32]},
              "e": {"dtype": "I8", "shape": [0, 5], "data_offsets": [32, 32]},
              "s": {"dtype": "F64", "shape": [], "data_offsets": [32, 40]}}
    text = json.dumps(header, separators=(",", ":"))
    write("safetensors", "header", text)
    write("safetensors", "header_of_one", '{"t":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}')
    write("safetensors", "header_empty", "{}")
    write("safetensors", "file", struct.pack("<Q", len(text) + 2) + text.encode() + b"  " + bytes(range(40)))
    write("safetensors", "file_empty", struct.pack("<Q", 2) + b"{}")
    index = {"metadata": {"total_size": 7},
             "weight_map": {"t": "a.safetensors", "u": "a.safetensors", "v": "b.safetensors"}}
    write("safetensors", "index", "index:" + json.dumps(index))


def checkpoint_texts() -> None:
    write("checkpoint_texts", "offsets", 'o{"w":{"saved_offsets":[3,0]},"s":{"saved_offsets":[]}}')
    write("checkpoint_texts", "map", 'r{"model.*.w":"*.weight","model.*":"*","optim.*":null,"a":"b"}')
    write("checkpoint_texts", "rope_4", 'c{"model_type":"llama","rope_theta":500000.0,"rope_scaling":{"type":"linear","factor":2.0}}')
    write("checkpoint_texts", "rope_5", 'c{"model_type":"qwen3","rope_parameters":{"rope_type":"llama3","rope_theta":1e6,"factor":8.0}}')
    sizes = {"vocab_size": 64, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2,
             "num_attention_heads": 4, "num_key_value_heads": 2}
    scaling = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
               "original_max_position_embeddings": 32, "rope_type": "llama3"}
    write("checkpoint_texts", "llama", "c" + json.dumps({"model_type": "llama", "rope_scaling": scaling} | sizes))
    write("checkpoint_texts", "qwen", "c" + json.dumps(
        {"model_type": "qwen3", "rope_parameters": scaling | {"rope_theta": 1e6}, "max_window_layers": 1,
         "use_sliding_window": True} | sizes))
    write("checkpoint_texts", "gpt2", 'c{"model_type":"gpt2","vocab_size":64,"n_embd":16,"n_layer":2,"n_head":2}')
    manifest = {"schema": 1, "step": 3, "tokens": 96, "world_size": 2, "generation": 2**63, "sequence": 1,
                "job_id": "j", "run": "r", "files": {"__0_0.distcp": {
                    "bytes": 8, "xxh3": "0f", "items": [{"key": "w", "offset": 0, "length": 8, "xxh3": "0a"}]}}}
    write("checkpoint_texts", "manifest", "m" + json.dumps(manifest))
    write("checkpoint_texts", "tied", 'c{"model_type":"gpt2","tie_word_embeddings":null,"eos_token_id":[1,2],"architectures":null}')


def accelerate_configs() -> None:
    common = {"compute_environment": "LOCAL_MACHINE", "debug": False, "downcast_bf16": "no", "machine_rank": 0,
              "main_training_function": "main", "num_machines": 1, "num_processes": 2, "rdzv_backend": "static",
              "same_network": True, "use_cpu": False}
    fsdp = {"fsdp_version": 2, "fsdp_reshard_after_forward": True, "fsdp_offload_params": False,
            "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP", "fsdp_state_dict_type": "SHARDED_STATE_DICT"}
    files = {"fsdp2": common | {"distributed_type": "FSDP", "mixed_precision": "bf16", "fsdp_config": fsdp},
             "fsdp1": common | {"distributed_type": "FSDP", "num_machines": 2, "main_process_ip": "a",
                                "fsdp_config": {"sharding_strategy": "HYBRID_SHARD", "fsdp_min_num_params": 2000}},
             "cpu": common | {"distributed_type": "MULTI_CPU", "use_cpu": True, "dynamo_config": {"dynamo_backend": "EAGER"}},
             "parallel": {"distributed_type": "FSDP", "fsdp_config": {"fsdp_version": 2},
                          "parallelism_config": {"parallelism_config_dp_replicate_size": 2, "parallelism_config_cp_size": 2}}}
    for name, content in files.items():
        write("accelerate_config", name, yaml.safe_dump(content))


def documents() -> None:
    configuration = {"model": {"layers": 4, "rate": 3e-4, "tied": False}, "names": ["ä", "\n"]}
    write("json", "configuration", json.dumps(configuration))
    write("json", "keys", '{"a":1,"b":{"a":2,"c":3},"d":[{"a":4}]}')
    write("json", "numbers", "[0,-1,18446744073709551615,-9223372036854775808,1e308,-0.0,99999999999999999999]")
    write("json", "deep", "[" * 60 + "null" + "]" * 60)
    write("json", "escapes", '{"\\u0000\\ud83d\\ude00":"\\\\\\"\\/\\b\\f\\n\\r\\t"}')


def tokenizers() -> None:
    letters = "ehlo wĠĊ!1é"
    vocab = {token: number for number, token in enumerate([*letters.replace(" ", ""), "he", "ll", "hell", "hello", "Ġw", "Ã", "©"])}
    end = {"id": len(vocab), "content": "<end>", "single_word": False, "lstrip": False, "rstrip": True, "normalized": False, "special": True}
    word = {**end, "id": len(vocab) + 1, "content": "hé", "single_word": True, "rstrip": False, "normalized": True}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}

    def split(pattern: str, behavior: str = "Isolated", invert: bool = False) -> dict:
        return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": behavior, "invert": invert}

    def file(**parts: object) -> bytes:
        model = {"type": "BPE", "vocab": vocab, "merges": ["h e", "l l", ["he", "ll"], "hell o", "Ġ w"], "ignore_merges": True}
        whole = {"version": "1.0", "added_tokens": [end, word], "pre_tokenizer": byte_level | {"use_regex": True}, "model": model}
        return json.dumps(whole | parts, ensure_ascii=False, separators=(",", ":")).encode()

    text = "\0hello  hello wé hé<end>  \nhell1!e\u0301".encode()
    write("tokenizer_json", "gpt2", file(decoder={"type": "ByteLevel"}) + text)
    template = {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<end>"}}, {"Sequence": {"id": "A"}}],
                "special_tokens": {"<end>": {"ids": [end["id"]]}}}
    steps = [split(r"(?i:'s|'t)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"), byte_level]
    write("tokenizer_json", "llama3", file(normalizer={"type": "NFC"}, pre_tokenizer={"type": "Sequence", "pretokenizers": steps},
                                           post_processor={"type": "Sequence", "processors": [byte_level, template]}) + text)
    steps = [{"type": "Digits", "individual_digits": True}, split("l+", "MergedWithPrevious"), split("[e-h]", "Contiguous", True),
             {"type": "Split", "pattern": {"String": "."}, "behavior": "Removed", "invert": False}, byte_level]
    write("tokenizer_json", "steps", file(pre_tokenizer={"type": "Sequence", "pretokenizers": steps}) + text)
    write("tokenizer_json", "pattern", rb"pattern:(?<=a)b|(?<!a)c|(?>d+)e{2,3}?|[^\x41-\u0044\]]++|(?i:x's)|." + text)
    info = {"format": "fsdprun-tokens-1", "dtype": "uint16", "tokens": 10, "vocab_size": 300, "document_end": None,
            "tokenizer": {"kind": "bytes", "digest": "0" * 16}, "sources": ["a.txt"]}
    write("tokenizer_json", "info", "info:" + json.dumps(info))


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def store() -> None:
    word = struct.pack("<I", 0x3C85F7CE)
    requests = {
        "greeting": b"\0" + word + b"\x0d" + struct.pack("<I", 77),
        "values": b"\1" + text(b"/k") + text(b"v") + b"\3" + text(b"/k") + b"\4" + text(b"/n") + struct.pack("<q", -3)
                  + b"\2" + text(b"/k") + text(b"v") + text(b"w") + b"\x09" + text(b"/k") + text(b"tail"),
        "keys": b"\6" + struct.pack("<Q", 2) + text(b"/a") + text(b"/b") + b"\x0b" + struct.pack("<Q", 2) + text(b"/a")
                + text(b"1") + text(b"/b") + text(b"2") + b"\x0a" + struct.pack("<Q", 1) + text(b"/a") + b"\x0c",
        "queue": b"\x0e" + text(b"/q") + text(b"item") + b"\x10" + text(b"/q") + b"\x0f" + text(b"/q"),
        "listing": b"\7\x11\5" + struct.pack("<Q", 0) + b"\x08" + text(b"/k"),
    }
    for name, content in requests.items():
        write("store_request", name, content)
    write("store_reply", "all_kinds", b"wbis\n" + struct.pack("<IBq", 77, 0, -3) + text(b"value"))
    write("store_reply", "values", b"sss\n" + text(b"a") + text(b"") + text(b"x" * 300))
    write("store_reply", "hang_up", b"s\n" + struct.pack("<Q", 5) + b"abc")


def frame(kind: int, content: bytes) -> bytes:
    return struct.pack("<IB", len(content) + 1, kind) + content


def word_list(*words: bytes) -> bytes:
    return struct.pack("<I", len(words)) + b"".join(short(word) for word in words)


def short(value: bytes) -> bytes:
    return struct.pack("<I", len(value)) + value


def keeper() -> None:
    rank = struct.pack("<i", 1)
    argv = word_list(b"python3", b"-u", b"train.py")
    spawn = rank + argv + word_list(b"RANK=1", b"A=b") + short(b"/o") + short(b"/e") + b"\1" + struct.pack("<Q", 1024)
    write("keeper_frame", "commands", frame(1, spawn) + frame(2, struct.pack("<iiB", -1, 15, 1))
          + frame(3, rank + short(b'{"v":1}')) + frame(4, b"") + frame(5, b"")
          + frame(6, struct.pack("<I", 35000)))
    write("keeper_frame", "life", frame(64, struct.pack("<iI", 7, 4)) + frame(65, rank + struct.pack("<i", 99))
          + frame(66, rank + struct.pack("<i", 2) + short(b"run") + short(b"/x"))
          + frame(67, rank + struct.pack("<iiiBq", 99, 0, 9, 1, 10**18) + short(b"Traceback") + b"\0") + frame(73, b""))
    write("keeper_frame", "output", frame(68, rank + b"\1" + struct.pack("<Q", 5))
          + frame(69, rank + b"\0" + short(b"line\n"))
          + frame(70, rank + b"\1" + struct.pack("<i", 28) + short(b"/full") + short(b"No space"))
          + frame(74, struct.pack("<i", 8))
          + frame(71, rank + short(b'{"type":"hello"}')) + frame(72, struct.pack("<i", -1) + short(b"a note")))


MESSAGES = {
    "a_joined": 'generation: 3 joined { node { incarnation: 7 name: "n0" address: "10.0.0.1" local_world_size: 8 '
                'role: "trainer" requested_node_rank: 1 } highest_seen: 2 }',
    "a_heartbeat": 'generation: 3 heartbeat { progress { step: 5 total: 100 text: "loss 2.3" } }',
    "a_prepared": 'generation: 3 prepared { store { address: "fe80::1%eth0" port: 29500 } }',
    "a_exited": 'generation: 3 worker_exited { exit { local_rank: 1 rank: 9 pid: 77 exit_code: 1 error_message: "E: x" '
                'traceback: "tb" error_json: "{}" stderr_tail: "a" stderr_tail: "b" last_step: 4 log_path: "/l" '
                'exited_unix_ns: 1000 failed_before_stop: true } age_ns: 5000000 }',
    "a_faulted": 'generation: 3 faulted { kind: CAUSE_KIND_SPAWN_FAILED what: "start python3" age_ns: 1000 }',
    "a_left": "generation: 3 left { signal: 15 workers_running: true }",
    "c_prepare": 'generation: 3 prepare { assignment { generation: 3 group_rank: 1 group_world_size: 2 rank_offset: 8 '
                 'world_size: 16 local_world_size: 8 role: "trainer" role_rank_offset: 8 role_world_size: 16 '
                 'restart_count: 1 max_restarts: 3 launch_id: "abcdef" } }',
    "c_commit": 'generation: 3 commit { store { address: "10.0.0.1" port: 29500 } }',
    "c_stop": 'generation: 3 stop { signal: 15 grace_ns: 30000000000 reason: "a worker failed" }',
    "c_pass_signal": "generation: 3 pass_signal { signal: 10 }",
    "c_reject": 'reject { reason: "full" rejoin: true }',
}


def messages() -> None:
    for name, content in MESSAGES.items():
        kind = {"a": "AgentMessage", "c": "CoordinatorMessage"}[name[0]]
        command = ["protoc", f"--proto_path={PROTO}", f"--encode=fsdprun.v1.{kind}", "fsdprun/v1/coordinator.proto"]
        message = f'job_id: "job" incarnation: 7 {content}'.encode()
        encoded = subprocess.run(command, input=message, capture_output=True, check=True).stdout
        write("codec", name[2:], name[0].encode() + encoded)


def command_lines() -> None:
    lines = {
        "standalone": ["--standalone", "--nproc-per-node=4", "train.py", "--rank", "${local_rank}", "$$x"],
        "static": ["--nnodes", "2", "--node_rank", "1", "--master-addr", "[fe80::1]", "--master-port", "29501", "-m",
                   "pkg"],
        "elastic": ["--nnodes=1:4", "--rdzv-backend", "c10d", "--rdzv-endpoint", "[::1]:29400", "--rdzv-id", "run7",
                    "--rdzv-conf", "join_timeout=60, last_call_timeout=0.5", "--max-restarts", "3", "--no-python",
                    "a.out"],
        "environment": ["env PET_NNODES=2", "env PET_MASTER_ADDR=node0", "env PET_STANDALONE=0", "env PET_MODULE=1",
                        "--shutdown-timeout", "5", "--local-addr", "10.0.0.1", "--log-dir", "logs", "pkg"],
        "output": ["-t3", "--redirects", "0:1,1:2", "--local-ranks-filter=0", "--duplicate-stdout-filters", "a,,b,c",
                   "--signals-to-handle=SIGUSR1,SIGTERM", "--virtual-local-rank", "--run-path", "--start-method=fork", "s.py"],
        "leases": ["--nnodes=2:3", "--rdzv-backend=c10d", "--rdzv-conf",
                   "keep_alive_interval=1,keep_alive_max_attempt=4,read_timeout=5,is_host=yes,store_type=tcp", "s.py"],
        "agent": ["agent", "--rdzv-endpoint", "10.0.0.1:29400", "--rdzv-id", "run7", "--token-file", "t", "--role", "r",
                  "--nproc-per-node", "gpu", "--dry-run", "train.py"],
    }
    for name, words in lines.items():
        write("command_line", name, "\n".join(words))


def monitoring() -> None:
    timer = {"version": 1, "pid": 12, "scope_id": "step", "expiration_time": 1.5e9, "signal": 9}
    write("monitoring", "acquire", json.dumps(timer))
    write("monitoring", "release", json.dumps(timer | {"expiration_time": -1, "signal": 0}))
    write("monitoring", "probe", "GET /healthz?max_progress_age=2.5 HTTP/1.1\r\nHost: x\r\n\r\n")
    write("monitoring", "status", "HEAD /status HTTP/1.0\r\n\r\n")


def token_files() -> None:
    def llmc(magic: int, version: int, form: str, ids: list[int]) -> bytes:
        return b"l" + struct.pack("<256i", magic, version, len(ids), *[0] * 253) + struct.pack(f"<{len(ids)}{form}", *ids)

    def megatron(code: int, width: int, lengths: list[int], documents: list[int], modes: bytes = b"") -> bytes:
        pointers = [width * sum(lengths[:i]) for i in range(len(lengths))]
        return (b"mMMIDIDX\0\0" + struct.pack("<QBQQ", 1, code, len(lengths), len(documents))
                + struct.pack(f"<{len(lengths)}i{len(lengths)}q{len(documents)}q", *lengths, *pointers, *documents) + modes)

    write("token_files", "llmc_gpt2", llmc(20240520, 1, "H", [50256, 1, 2, 3]))
    write("token_files", "llmc_llama3", llmc(20240801, 7, "I", [128000, 1]))
    write("token_files", "llmc_empty", llmc(20240520, 1, "H", []))
    write("token_files", "megatron_uint16", megatron(8, 2, [3, 0, 2, 4], [0, 1, 2, 4]))
    write("token_files", "megatron_int32", megatron(4, 4, [5], [0, 1]))
    write("token_files", "megatron_modes", megatron(8, 2, [3, 2], [0, 2], modes=b"\0\1"))
    write("token_files", "megatron_no_documents", megatron(5, 8, [1, 1, 1], []))
    write("token_files", "megatron_empty", megatron(1, 1, [], [0]))
    write("token_files", "datatrove", b"d" + struct.pack("<4Q", 3, 3, 10, 12))


def tokenize_inputs() -> None:
    def zstd(*blocks: tuple[int, int, bytes]) -> bytes:
        """A frame with a window of 8 KiB, of blocks: their kind (0: as they are, 1: one byte, often), size and content."""
        frame = b"\x28\xb5\x2f\xfd\x00\x18"
        for number, (kind, size, content) in enumerate(blocks):
            is_last = number == len(blocks) - 1
            frame += (size << 3 | kind << 1 | is_last).to_bytes(3, "little") + content
        return frame

    some = b"one line\nand another\r\n\n" * 5
    write("tokenize_input", "gzip", b"g" + gzip.compress(some, mtime=0) + gzip.compress(b"second", mtime=0))
    write("tokenize_input", "gzip_cut", b"g" + gzip.compress(some, mtime=0)[:-3])
    skipped = b"\x50\x2a\x4d\x18" + struct.pack("<I", 3) + b"abc"
    write("tokenize_input", "zstd", b"z" + zstd((0, 5, b"hello"), (1, 20, b"x")) + skipped + zstd((0, 0, b"")))
    write("tokenize_input", "lines", b"l" + some + "ends without: ä€😀".encode())
    write("tokenize_input", "utf8", b"u" + "a ä€😀 longer than eight".encode() + b"\xff\xe2\x82\xf0\x9f\xc0\x80\xed\xa0\x80")
    lines = {"strict": '{"id": 1, "more": {"text": [null, true, -1.5e3]}, "text": "a\\u00e4\\ud83d\\ude00\\n", "last": []}',
             "python": '{"n": NaN, "i": [-Infinity, 1e400], "h": "\\udc00", "text": "b"}', "half": '{"text": "\\ud83dz\\\\"}',
             "null": '{"text": null}', "twice": '{"text": "a", "text": "b"}', "list": '["text"]'}
    for name, line in lines.items():
        write("tokenize_input", f"json_{name}", "j" + line)


def sentencepieces() -> None:
    def field(number: int, content: bytes) -> bytes:
        size, rest = b"", len(content)
        while rest >= 128:
            size, rest = size + bytes([rest & 127 | 128]), rest >> 7
        return bytes([number << 3 | 2]) + size + bytes([rest]) + content

    # Every lookup begins at unit 0; from there "a" leads to unit 97, whose leaf is unit 3 and names the second text.
    units = [0] * 256
    units[97] = 97 | 1 << 8 | (97 ^ 3) << 10
    units[3] = 1 << 31 | 2
    chars_map = struct.pack("<I256I", 1024, *units) + b"x\0y\0"
    pieces = b"".join(field(1, field(1, piece) + b"\x15" + struct.pack("<f", -score) + b"\x18\x01")
                      for score, piece in enumerate((b"<unk>", b"a", b"ab")))
    write("sentencepiece", "model", b"m" + pieces + field(2, b"\x18\x02") + field(3, field(1, b"identity") + field(2, chars_map)))
    write("sentencepiece", "map", b"c" + chars_map)


if __name__ == "__main__":
    for make in (pickles, metadata, archives, state_dicts, safetensors, checkpoint_texts, accelerate_configs,
                 documents, tokenizers, store, keeper, messages, command_lines, monitoring,
                 token_files, tokenize_inputs, sentencepieces):
        make()
