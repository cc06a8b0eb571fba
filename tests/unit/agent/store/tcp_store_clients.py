"""Drives a store server with torch.distributed's own clients: every operation, then a gloo world of four."""

import datetime
import multiprocessing
import sys
import threading

import torch
import torch.distributed as dist

WORLD = 4


def make_client(port, use_libuv, seconds=20):
    return dist.TCPStore(
        "127.0.0.1", port, None, False, timeout=datetime.timedelta(seconds=seconds), use_libuv=use_libuv
    )


def check(condition, what):
    if not condition:
        raise AssertionError(what)


def check_values(store, tag):
    store.set(tag + "a", "1")
    check(store.get(tag + "a") == b"1", "get after set")
    store.set(tag + "big", "x" * (3 << 20))
    check(len(store.get(tag + "big")) == 3 << 20, "a value of 3 MiB")
    check(store.add(tag + "n", 5) == 5 and store.add(tag + "n", -7) == -2, "add")
    check(store.get(tag + "n") == b"-2", "a counter is text")
    check(store.compare_set(tag + "c", "wrong", "x") == b"wrong", "compare_set of a missing key")
    check(store.compare_set(tag + "c", "", "x") == b"x", "compare_set creates")
    check(store.compare_set(tag + "c", "y", "z") == b"x", "compare_set refuses")
    check(store.compare_set(tag + "c", "x", "z") == b"z", "compare_set replaces")
    store.append(tag + "p", "ab")
    store.append(tag + "p", "cd")
    check(store.get(tag + "p") == b"abcd", "append")
    check(store.check([tag + "a"]) and not store.check([tag + "a", tag + "none"]), "check")
    store.multi_set([tag + "m1", tag + "m2"], ["one", "two"])
    check(store.multi_get([tag + "m2", tag + "m1"]) == [b"two", b"one"], "multi_get")
    before = store.num_keys()
    check(store.delete_key(tag + "a") and not store.delete_key(tag + "a"), "delete_key")
    check(store.num_keys() == before - 1, "num_keys")
    keys = store.list_keys()
    check(any(key.endswith(tag + "m1") for key in keys) and len(keys) == before - 1, "list_keys")


def check_waiting(store, port, use_libuv, tag):
    other = make_client(port, use_libuv)
    timer = threading.Timer(0.05, lambda: (other.set(tag + "w1", "1"), other.set(tag + "w2", "2")))
    timer.start()
    store.wait([tag + "w1", tag + "w2"], datetime.timedelta(seconds=10))
    timer.join()
    try:
        store.wait([tag + "never"], datetime.timedelta(milliseconds=100))
        raise AssertionError("a wait for a missing key returned")
    except dist.DistStoreError:
        pass
    check(store.add(tag + "after", 1) == 1, "the connection lives on after a wait that timed out")


def check_queue(store, port, use_libuv, tag):
    store.queue_push(tag + "q", "one")
    store.queue_push(tag + "q", "two")
    check(store.queue_len(tag + "q") == 2, "queue_len")
    check(store.queue_pop(tag + "q") == b"one" and store.queue_pop(tag + "q") == b"two", "queue_pop")
    try:
        store.queue_pop(tag + "q", block=False)
        raise AssertionError("an empty queue gave something")
    except dist.QueueEmptyError:
        pass
    other = make_client(port, use_libuv)
    timer = threading.Timer(0.05, lambda: other.queue_push(tag + "q", "late"))
    timer.start()
    check(store.queue_pop(tag + "q", block=True) == b"late", "a blocking pop")
    timer.join()


def run_rank(rank, port):
    store = make_client(port, True, 60)
    dist.init_process_group("gloo", store=dist.PrefixStore("world", store), rank=rank, world_size=WORLD)
    tensor = torch.full((4,), float(rank + 1))
    dist.all_reduce(tensor)
    check(tensor.tolist() == [10.0] * 4, "all_reduce over gloo")
    dist.barrier()
    dist.destroy_process_group()


def main():
    port = int(sys.argv[1])
    for use_libuv in (True, False):
        tag = "uv/" if use_libuv else "legacy/"
        store = make_client(port, use_libuv)
        check_values(store, tag)
        check_waiting(store, port, use_libuv, tag)
        if use_libuv:  # The legacy client refuses queues by itself.
            check_queue(store, port, use_libuv, tag)
    context = multiprocessing.get_context("fork")
    ranks = [context.Process(target=run_rank, args=(rank, port)) for rank in range(WORLD)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(60)
    check([process.exitcode for process in ranks] == [0] * WORLD, "every rank ends well")
    print("all store checks passed")


if __name__ == "__main__":
    main()
