#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "agent/rpc/tls.h"
#include "base/event_loop.h"
#include "base/unique_fd.h"
#include "fsdprun/v1/coordinator.pb.h"
#include "launcher/rpc/guest_service.h"
#include "proto/cluster/clocks.h"
#include "proto/cluster/messages.h"

namespace fsdprun {

/// The coordinator's side of the agents' streams: checks the token, decodes, posts to the loop. It
/// binds no port: connections are accepted elsewhere and handed over, because the workers' store
/// shares the port. Thread: loop thread only, callbacks too.
class CoordinatorService {
 public:
  struct Options {
    std::string job_id;
    /// What every call must prove to have: see Note [The token stays at home].
    std::string token;
    /// See Clocks.
    Duration stream_silence = Clocks{}.stream_silence;
    /// Null: nothing is encrypted.
    std::shared_ptr<const Tls> tls{};
    /// Makes another service of the server, whose calls `check` judges; null: there is none.
    std::function<std::unique_ptr<GuestService>(CallCheck check)> make_guest{};
  };
  struct Callbacks {
    std::function<void(const FromAgent&)> on_message;
    /// The agent's current stream broke; not called for a stream that the agent has replaced.
    std::function<void(Incarnation)> on_stream_lost;
    /// The agent has replaced its stream; may be null.
    std::function<void(Incarnation)> on_stream_replaced{};
    /// What an agent says beside the machines, after its first message; may be null.
    std::function<void(Incarnation, const v1::FromNodeAside&)> on_aside{};
    /// A call without the job's token or for another job was refused, or a connection; to be
    /// logged.
    std::function<void(const std::string& what)> on_refused;
    /// Another launcher hosts this run id too, at these endpoints; may be null.
    std::function<void(const std::vector<std::string>& endpoints)> on_other_host;
  };

  CoordinatorService(EventLoop& loop, Options options, Callbacks callbacks);
  /// Shutdown().
  ~CoordinatorService();
  CoordinatorService(const CoordinatorService&) = delete;
  CoordinatorService& operator=(const CoordinatorService&) = delete;

  /// Starts gRPC. Errors: INTERNAL.
  absl::Status Start();
  /// Serves an accepted connection from which nothing has been read. Closed if it makes no call
  /// within seconds.
  void AddConnection(UniqueFd connection);
  /// The connections from here on are also of an endpoint that was another coordinator's.
  void TakeOver();
  /// Queues `message` for the agent it names; dropped if that agent has no stream.
  void Send(const ToAgent& message);
  /// The same of what is said beside the machines.
  void SendAside(Incarnation agent, const v1::ToNodeAside& aside);
  /// Writes what is queued (waiting at most a second), ends all streams and gRPC. Idempotent.
  void Shutdown();

 private:
  class Stream;
  class Endpoint;

  void ReportMessage(uint64_t id, const FromAgent& message);
  void ReportAside(uint64_t id, Incarnation agent, const v1::FromNodeAside& aside);
  void ReportLoss(uint64_t id);
  void Refuse(uint64_t id, const absl::Status& status);
  void WatchHosts();
  absl::Status Check(const v1::AgentMessage& message) const;
  absl::Status AnotherRunId(const std::string& run_id) const;
  void PostIfLive(absl::AnyInvocable<void()> closure);

  // Constant after construction.
  EventLoop& loop_;
  const Options options_;
  const Callbacks callbacks_;
  std::unique_ptr<Endpoint> endpoint_;

  // Owned by the loop thread.
  /// Streams that have sent a message, by agent; streams_ has all authenticated ones.
  std::map<Incarnation, uint64_t> stream_of_agent_;
  std::map<uint64_t, std::shared_ptr<Stream>> streams_;
  EventLoop::TimerId watch_timer_ = 0;
  bool is_shut_down_ = false;
  const std::shared_ptr<bool> is_live_ = std::make_shared<bool>(true);
};

}  // namespace fsdprun
