#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "agent/rpc/tls.h"
#include "base/mono_time.h"

namespace fsdprun {

/// Asks the coordinator at an endpoint where that of another run id is. Virtual for tests.
/// Thread: one at a time.
class RunIdClient {
 public:
  enum class Kind { kHere, kThere, kYours, kClosed, kUnknown, kWait };
  struct Answer {
    Kind kind = Kind::kUnknown;
    /// Of kThere: `address:port`, best first.
    std::vector<std::string> endpoints;
  };
  struct Question {
    std::string run_id;
    /// Where the caller would host; empty if it cannot.
    std::vector<std::string> endpoints;
    /// Where the caller was told to join, and found that nothing listens.
    std::vector<std::string> refused;
    /// It hosts already.
    bool hosts = false;
    /// For how long it keeps the run id without being heard of.
    std::chrono::seconds claim_lease{};
  };

  /// What it takes to speak to the endpoint.
  struct Security {
    /// Null: nothing is encrypted.
    std::shared_ptr<const Tls> tls{};
    /// See GrpcLink::Options.
    std::string tls_name{};
  };

  RunIdClient() : RunIdClient(Security()) {}
  explicit RunIdClient(Security security);
  /// Ends the call: whoever hosts and has not left is sought for a while. Waits seconds at most.
  virtual ~RunIdClient();

  /// The call stays open after kYours. Errors: UNAVAILABLE, UNAUTHENTICATED,
  /// PERMISSION_DENIED (TLS), CANCELLED.
  virtual absl::StatusOr<Answer> Ask(const std::string& target, const std::string& token,
                                     const Question& question, MonoTime deadline,
                                     const std::function<bool()>& is_cancelled);
  /// The same in two steps: Poll() gives the answer or the error as soon as there is one.
  virtual void Start(const std::string& target, const std::string& token, const Question& question);
  virtual std::optional<absl::StatusOr<Answer>> Poll();
  /// The call is still open, so that whoever asks the other end for the run id finds the caller.
  virtual bool is_open() const;
  /// To be called often by who hosts: says about once a second that it is there, unless the other
  /// end does not ask for that.
  virtual void Beat();
  /// Says that the caller hosts no more, and waits seconds at most until that has been heard;
  /// `closes`: its job is over, and nobody shall join it. False if it cannot have been heard.
  virtual bool Leave(bool closes);

 private:
  class Call;

  const Security security_;
  std::shared_ptr<Call> call_;
};

}  // namespace fsdprun
