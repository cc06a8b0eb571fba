#include "launcher/report/torch_events.h"

#include <gtest/gtest.h>

#include <csignal>

namespace fsdprun {
namespace {

const EventContext kContext{.run_id = "job",
                            .role = "trainer",
                            .hostname = "node0",
                            .rdzv_backend = "c10d",
                            .entry_point = "bash",
                            .group_rank = 1,
                            .group_world_size = 2,
                            .restarts = 3,
                            .total_run_time_s = 4};

// The lines are torchrun's, but for the timestamps and the values.
TEST(TorchEventsTest, EventsOfTheAgent) {
  EXPECT_EQ(FormatEvent(StateEvent{.state = "RENDEZVOUS", .unix_ms = 17, .duration_ms = 6.5},
                        EventContext{.run_id = "job"}),
            R"({"name": "torchelastic.worker.status.RENDEZVOUS", "source": "AGENT", )"
            R"("timestamp": 17, "metadata": {"run_id": "job", "global_rank": null, )"
            R"("group_rank": null, "worker_id": null, "role": "", "hostname": "", )"
            R"("state": "RENDEZVOUS", "total_run_time": 0, "rdzv_backend": "", )"
            R"("raw_error": null, )"
            R"("metadata": "{\"group_world_size\": null, \"entry_point\": \"\"}", )"
            R"("agent_restarts": 0, "duration_ms": 6.5}})");
}

TEST(TorchEventsTest, EventsOfAWorker) {
  StateEvent event{.state = "FAILED",
                   .unix_ms = 17,
                   .worker = EventWorker{.local_rank = 1,
                                         .rank = 3,
                                         .role_rank = 5,
                                         .role_world_size = 6,
                                         .pid = 99,
                                         .exit_code = -9},
                   .raw_error = "gr\xc3\xbc\xc3\x9f\xff"};
  EXPECT_EQ(FormatEvent(event, kContext),
            R"({"name": "torchelastic.worker.status.FAILED", "source": "WORKER", )"
            R"("timestamp": 17, "metadata": {"run_id": "job", "global_rank": 3, "group_rank": 1, )"
            R"("worker_id": "99", "role": "trainer", "hostname": "node0", "state": "FAILED", )"
            R"("total_run_time": 4, "rdzv_backend": "c10d", )"
            R"("raw_error": "gr\u00fc\u00df\ufffd", )"
            R"("metadata": "{\"group_world_size\": 2, \"entry_point\": \"bash\", )"
            R"(\"local_rank\": [1], \"role_rank\": [5], \"role_world_size\": [6], )"
            R"(\"exit_code\": [-9], \"worker_pid\": [99]}", "agent_restarts": 3, )"
            R"("duration_ms": null}})");
  event.worker->exit_code.reset();
  EXPECT_NE(FormatEvent(event, kContext).find(R"(\"exit_code\": [null], \"worker_pid\": [null])"),
            std::string::npos);
}

TEST(TorchEventsTest, EventsOfTheWatchdog) {
  const WatchdogEvent event{.name = "timer expired",
                            .unix_ms = 17,
                            .pid = 99,
                            .scope = "step",
                            .expires_unix_s = 1.5,
                            .signal = 9};
  EXPECT_EQ(FormatEvent(event, kContext),
            R"({"name": "timer expired", "source": "AGENT", "timestamp": 17, "metadata": )"
            R"({"run_id": "job", "global_rank": null, "group_rank": 1, "worker_id": null, )"
            R"("role": "trainer", "hostname": "node0", "state": "RUNNING", "total_run_time": 4, )"
            R"("rdzv_backend": "c10d", "raw_error": null, )"
            R"("metadata": "{\"watchdog_event\": \"timer expired\", \"worker_pid\": \"99\", )"
            R"(\"scope_id\": \"step\", \"expiration_time\": \"1.500000\", \"signal\": \"9\"}", )"
            R"("agent_restarts": 3}})");
}

TEST(TorchEventsTest, RawErrorIsTheErrorFileOrSaysThatThereIsNone) {
  WorkerExit exit{.exit_code = 1};
  EXPECT_EQ(RawErrorOf(exit),
            R"({"message": "<NONE>", "errorTraits": {"category": "system_terminated_error", )"
            R"("retryability": "False"}})");
  exit.signal = SIGSEGV;
  EXPECT_EQ(RawErrorOf(exit), R"({"message": "<NONE>"})");
  exit.error_json = "{";
  EXPECT_EQ(RawErrorOf(exit), R"({"message": "<NONE>"})");
  exit.error_json = R"({"message":"m"})";
  EXPECT_EQ(RawErrorOf(exit), exit.error_json);
}

}  // namespace
}  // namespace fsdprun
