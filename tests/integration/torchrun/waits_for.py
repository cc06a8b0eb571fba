"""Cases that are known to fail, and why: a case of these lists that passes is an error, so that none is forgotten."""

# Of fsdprun: what has to be built first.
WAITS_FOR: dict[str, str] = {
    "DynamicRendezvousTest.test_two_run_ids_on_one_endpoint_are_isolated": "two run ids on one endpoint",
    "UtilsTest.test_parse_rendezvous_endpoint_raises_error": "localhost:1:2x is taken for an address without a port",
}

# Of torchrun 2.11: defects, by this project's own runs.
TORCHRUN_FAILS: dict[str, str] = {}
