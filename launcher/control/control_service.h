#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "base/event_loop.h"
#include "fsdprun/v1/control.pb.h"
#include "launcher/rpc/guest_service.h"

namespace fsdprun {

/// The JobControl service of one gRPC server: questions come in, answers go out; what they say is
/// for others. Thread: loop thread.
class ControlService : public GuestService {
 public:
  using CallId = uint64_t;

  struct Callbacks {
    /// The first message of a call.
    std::function<void(CallId, const v1::ControlQuestion&)> on_question;
    /// What was sent last has been written: more may be sent.
    std::function<void(CallId)> on_written;
    /// The call has ended at the other end.
    std::function<void(CallId)> on_lost;
  };

  /// More calls than that are refused.
  static constexpr size_t kCallsMax = 64;

  /// `check`: whether the caller may ask; any thread.
  ControlService(EventLoop& loop, CallCheck check, Callbacks callbacks);
  ~ControlService() override;

  grpc::Service* service() override;
  void End(const absl::Status& status) override;

  /// The next not before on_written(): who reads slowly costs one answer. Dropped if the call has
  /// ended.
  void Send(CallId call, v1::ControlAnswer answer);
  /// All is said: ends the call once it is written.
  void Finish(CallId call);
  /// Ends the call at once. `status` is an error.
  void Refuse(CallId call, const absl::Status& status);

 private:
  class Call;
  class Endpoint;
  struct Open {
    std::shared_ptr<Call> call;
    bool has_asked = false;
    bool is_writing = false;
    bool is_finished = false;
  };

  void Admit(CallId id, const std::shared_ptr<Call>& call);
  void Ask(CallId id, const v1::ControlQuestion& question);
  void Written(CallId id);
  void Lose(CallId id);
  void PostIfLive(absl::AnyInvocable<void()> closure);

  // Constant after construction.
  EventLoop& loop_;
  const Callbacks callbacks_;
  std::unique_ptr<Endpoint> endpoint_;

  // Owned by the loop thread.
  std::map<CallId, Open> calls_;
  bool has_ended_ = false;
  const std::shared_ptr<bool> is_live_ = std::make_shared<bool>(true);
};

}  // namespace fsdprun
