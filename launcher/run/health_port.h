#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/event_loop.h"
#include "base/mono_time.h"
#include "base/unique_fd.h"

namespace fsdprun {

/// What a prober can learn of a node: nothing that must be kept from anybody.
struct HealthReport {
  /// rendezvous, running, stopping, wedged or ended.
  std::string phase = "rendezvous";
  /// Why this node cannot do its work; empty while it can.
  std::string problem;
  /// What may pass by itself; a node must not be ended for it.
  std::string notice;
  uint64_t generation = 0;
  int restarts = 0;
  /// Since a worker of this node has last shown progress, or since the workers' start if none has
  /// yet; unset without workers.
  std::optional<Duration> progress_age;
  /// A worker of this world has shown progress.
  bool has_progress = false;
};

/// The whole HTTP answer to a request whose headers are complete.
///   GET /healthz   200 while the node can do its work, else 503, with one line that says why.
///                  With ?max_progress_age=SECONDS also 503 if running workers have shown no
///                  progress for longer.
///   GET /status    the report as JSON, always 200.
///   GET /metrics   what `metrics` returns, in Prometheus' text format; without one, 404.
/// Pure, but for what it calls.
std::string AnswerProbe(absl::string_view request, const HealthReport& report,
                        const std::function<std::string()>& metrics = nullptr);

/// What a HealthPort tells.
struct HealthSources {
  std::function<HealthReport()> report;
  /// May be null. Not called for each request: see HealthPort.
  std::function<std::string()> metrics{};
};

/// Answers probes over HTTP/1.0, on all interfaces: Kubernetes' come from outside of the pod. An
/// answer waits for its reader without holding up anything else, for kClientLimit at most. Metrics
/// are made anew only after kMetricsPause times what making them took, for kOldestMetrics at most:
/// however many ask, the loop has most of its time for other things. Thread: loop thread only.
//
// An HTTP library would bring threads of its own, and locks for a state that belongs to the loop;
// a few kinds of short requests without a body need none.
class HealthPort {
 public:
  static constexpr size_t kMaxClients = 16;
  static constexpr size_t kMaxRequestBytes = 4096;
  static constexpr Duration kClientLimit = std::chrono::seconds(5);
  static constexpr int kMetricsPause = 10;
  static constexpr Duration kOldestMetrics = std::chrono::milliseconds(500);

  /// Port 0: a free one. Errors: ALREADY_EXISTS or INTERNAL, with the port.
  static absl::StatusOr<std::unique_ptr<HealthPort>> Open(EventLoop& loop, uint16_t port,
                                                          HealthSources sources);
  ~HealthPort();
  HealthPort(const HealthPort&) = delete;
  HealthPort& operator=(const HealthPort&) = delete;

  int port() const { return port_; }

 private:
  struct Client {
    UniqueFd socket;
    std::string request;
    /// What is still to be sent of it.
    std::string answer{};
    size_t sent = 0;
    EventLoop::TimerId limit = 0;
  };

  HealthPort(EventLoop& loop, UniqueFd listener, int port, HealthSources sources);

  Client& ClientOf(int socket);
  std::string Metrics();
  void Accept();
  void Receive(int socket);
  void Send(int socket);
  void Close(int socket);

  // Constant after construction.
  EventLoop& loop_;
  const UniqueFd listener_;
  const int port_;
  const HealthSources sources_;

  // Owned by the loop thread.
  /// Makes room for one more descriptor.
  UniqueFd reserve_;
  /// The oldest first; it makes room for a new one.
  std::deque<Client> clients_;
  /// The latest ones, and until when they are told.
  std::string metrics_;
  MonoTime metrics_until_{};
};

}  // namespace fsdprun
