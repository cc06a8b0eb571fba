#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/mono_time.h"

namespace fsdprun {

/// Asks the coordinator at an endpoint where that of another run id is.
/// Thread: one at a time.
class RunIdClient {
 public:
  enum class Kind { kHere, kThere, kYours, kClosed, kUnknown };
  struct Answer {
    Kind kind = Kind::kUnknown;
    /// Of kThere: `address:port`, best first.
    std::vector<std::string> endpoints;
  };
  struct Question {
    std::string run_id;
    /// Where the caller would host; empty if it cannot.
    std::vector<std::string> endpoints;
  };

  RunIdClient();
  /// Ends the call: whoever hosts is forgotten.
  ~RunIdClient();

  /// The call stays open after kYours. Errors: UNAVAILABLE, UNAUTHENTICATED, CANCELLED.
  absl::StatusOr<Answer> Ask(const std::string& target, const std::string& token,
                             const Question& question, MonoTime deadline,
                             const std::function<bool()>& is_cancelled);
  /// Says that the job is over, and waits a second at most until that has been heard.
  void Close();

 private:
  class Call;

  std::shared_ptr<Call> call_;
};

}  // namespace fsdprun
