#pragma once

#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <fsdp/collectives.h>
#include <fsdp/export.h>

#include <array>
#include <functional>
#include <memory>
#include <string>

#include "fsdp_runtime/src/comm/membership.h"

namespace fsdp {

using EventPtr = std::shared_ptr<c10::Event>;

/// Whether the device has got to `event`, or has failed, as the caller's next use of it tells. Does
/// not block. Any thread.
FSDP_API bool has_passed(const EventPtr& event);

/// The lanes of a group on a device: each is a stream of high priority. All waits between the
/// streams of collectives and of compute are here and in StreamWork, in LibTorch's terms for any
/// device, so that what they order can be tested without one.
///
/// An operation runs behind what the current stream has been given at the time of issue. That is
/// all of these: the last use of the memory that it writes, the optimizer's writes of the shard
/// that a gather reads, and the gradients that a reduction reads. In turn who uses its result, or
/// its memory, waits for its work.
class FSDP_API StreamLanes {
 public:
  explicit StreamLanes(c10::Device device);
  /// Calls `launch` with the lane's stream as the current one, which waits for issue.after and for
  /// the caller's current stream. Returns the event behind what it has launched.
  EventPtr run(const Issue& issue, const std::function<void()>& launch) const;

 private:
  const c10::Device device_;
  const std::array<c10::Stream, 2> streams_;
};

/// Complete when the lane's stream has reached `done`.
class FSDP_API StreamWork : public Work {
 public:
  StreamWork(EventPtr done, std::string operation, const GroupPlace& place);
  void wait() override;
  void wait_on_host() override;
  bool is_done() override { return has_passed(done_); }

 private:
  void check_group() const;

  const EventPtr done_;
  const std::string operation_;
  const std::shared_ptr<Membership> membership_;
  const int64_t rank_;
};

}  // namespace fsdp
