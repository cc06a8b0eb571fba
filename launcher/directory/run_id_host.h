#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/mono_time.h"
#include "launcher/directory/directory.h"
#include "launcher/directory/numeric_address.h"
#include "launcher/directory/run_id_client.h"

namespace fsdprun {

/// What a host does about what became of its question. Pure.
enum class HostMove {
  kStay,
  /// Nobody answers at the endpoint: listen there.
  kTakeOver,
  /// Another launcher hosts the run id as well.
  kMeet,
};
HostMove MoveAfter(const absl::StatusOr<RunIdClient::Answer>& answer);

/// How long after a question that was answered so the next is asked, if its call is over; `before`
/// it there was that pause. Pure.
Duration PauseAfter(const absl::StatusOr<RunIdClient::Answer>& answer, Duration before);

/// Keeps the coordinator of one run id known at an endpoint where that of another listens, or
/// listened. See Note [Several run ids on one endpoint]. Thread: one at a time.
class RunIdHost {
 public:
  struct Options {
    /// Where the coordinator of the other run id is reached.
    std::vector<NumericEndpoint> holder;
    /// What to listen on in its place; nothing if the endpoint is another machine's.
    std::vector<std::string> listen_on;
    std::string token;
    std::string run_id;
    /// Where this launcher hosts.
    std::vector<std::string> endpoints;
    /// See RunIdClient::Question.
    std::chrono::seconds claim_lease{};
  };

  /// `call` has been answered with kYours.
  RunIdHost(Options options, std::unique_ptr<RunIdClient> call)
      : options_(std::move(options)), call_(std::move(call)) {}

  /// See Directory::Tend().
  Tended Tend();
  /// This launcher listens at the endpoint itself.
  bool has_taken_over() const { return has_taken_over_; }
  /// The coordinator is gone; see RunIdClient::Leave().
  void Leave(bool closes);

 private:
  RunIdClient::Question MakeQuestion() const;
  void Ask();
  std::vector<UniqueFd> TakeOver();
  std::vector<std::string> WhereTheOtherIs(const RunIdClient::Answer& answer) const;

  const Options options_;
  std::unique_ptr<RunIdClient> call_;
  /// The answer to the present call has been dealt with.
  bool is_settled_ = true;
  MonoTime asked_at_{};
  Duration pause_{};
  size_t times_asked_ = 0;
  int times_met_ = 0;
  bool has_taken_over_ = false;
};

}  // namespace fsdprun
