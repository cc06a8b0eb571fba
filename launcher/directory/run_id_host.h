#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/mono_time.h"
#include "launcher/directory/directory.h"
#include "launcher/directory/numeric_address.h"
#include "launcher/directory/reach.h"
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
    RunIdClient::Security security{};
    /// Of what somebody waits for; may be null.
    std::function<bool()> is_cancelled;
  };
  /// The time and the network; a test has others.
  struct Outside {
    std::function<MonoTime()> now = MonoNow;
    std::function<Reach(const std::vector<NumericEndpoint>&, MonoTime,
                        const std::function<bool()>&)>
        reach = ReachAny;
    std::function<std::unique_ptr<RunIdClient>(const RunIdClient::Security&)> new_call =
        [](const RunIdClient::Security& security) {
          return std::make_unique<RunIdClient>(security);
        };
  };

  /// `call` has been answered with kYours.
  RunIdHost(Options options, std::unique_ptr<RunIdClient> call)
      : RunIdHost(std::move(options), std::move(call), Outside()) {}
  RunIdHost(Options options, std::unique_ptr<RunIdClient> call, Outside outside)
      : options_(std::move(options)), outside_(std::move(outside)), call_(std::move(call)) {}

  /// See Directory::Tend().
  Tended Tend();
  /// See Directory::Confirm(). Asks anew, at every address until one answers: a call that seems
  /// open may have broken while this process did not run. Another host of the run id may be about
  /// to give way, and counts only once it has been met for a while. An endpoint whose machine says
  /// that nobody listens leaves the run id where it is: the endpoint's own job is over, nobody can
  /// be sent to another host, and who comes there next is told of this one within half a second.
  /// (So who is cut off for longer than a claim lasts, and until after that job, may not hear of
  /// who was given its run id meanwhile.) While the endpoint is silent, or refuses to answer, it is
  /// not known who else was told to host: a host whose endpoint's machine is gone forms no further
  /// world.
  absl::StatusOr<bool> Confirm();
  /// This launcher listens at the endpoint itself.
  bool has_taken_over() const { return has_taken_over_; }
  /// See SharedEndpoint.
  void CannotListen() { has_taken_over_ = false; }
  /// The coordinator is gone; see RunIdClient::Leave().
  void Leave(bool closes);

 private:
  /// With another host of the run id, of which nobody has said since that it is gone.
  struct Meeting {
    MonoTime since;
    RunIdClient::Answer last;
    /// Tend() has told of it.
    bool is_told = false;
  };

  RunIdClient::Question MakeQuestion() const;
  const NumericEndpoint& NextHolder();
  void Ask();
  absl::StatusOr<RunIdClient::Answer> AskAndWait(const NumericEndpoint& holder);
  /// Of a question; the answer has been dealt with then.
  HostMove Settle(const absl::StatusOr<RunIdClient::Answer>& answer);
  bool HasMetForLong() const;
  absl::StatusOr<bool> AfterRefusal();
  absl::StatusOr<bool> Judge(const absl::StatusOr<RunIdClient::Answer>& answer) const;
  absl::Status Unsure(absl::string_view why) const;
  std::vector<UniqueFd> TakeOver();
  std::vector<std::string> WhereTheOtherIs(const RunIdClient::Answer& answer) const;

  const Options options_;
  const Outside outside_;
  std::unique_ptr<RunIdClient> call_;
  /// The answer to the present call has been dealt with.
  bool is_settled_ = true;
  MonoTime asked_at_{};
  Duration pause_{};
  size_t times_asked_ = 0;
  std::optional<Meeting> meeting_;
  bool has_taken_over_ = false;
};

}  // namespace fsdprun
