#include "fsdp_runtime/src/comm/stream_lanes.h"

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <exception>
#include <optional>
#include <utility>

#include "fsdp_runtime/src/comm/group_error.h"

namespace fsdp {
namespace {

c10::Stream current_stream(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

c10::Stream new_stream(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type())
      .getStreamFromGlobalPool(device, /*isHighPriority=*/true);
}

}  // namespace

bool has_passed(const EventPtr& event) {
  try {
    return event->query();
  } catch (const std::exception&) {
    return true;
  }
}

StreamLanes::StreamLanes(c10::Device device)
    : device_(device), streams_{new_stream(device), new_stream(device)} {}

EventPtr StreamLanes::run(const Issue& issue, const std::function<void()>& launch) const {
  const c10::Stream& stream = streams_[static_cast<size_t>(issue.lane)];
  c10::Event ready(device_.type());
  ready.record(current_stream(device_));
  ready.block(stream);
  const c10::StreamGuard guard(stream);
  if (issue.after) {
    issue.after->wait();  // by the lane's stream, which is the current one
  }
  launch();
  auto done = std::make_shared<c10::Event>(device_.type());
  done->record(stream);
  return done;
}

StreamWork::StreamWork(EventPtr done, std::string operation, const GroupPlace& place)
    : done_(std::move(done)),
      operation_(std::move(operation)),
      membership_(place.membership),
      rank_(place.world_rank(place.rank)) {}

// The stream waits also for what has failed: the caller gives the memory back when this throws, and
// kernels use it until they have been revoked.
void StreamWork::wait() {
  done_->block(current_stream(done_->device()));
  check_group();
}

void StreamWork::wait_on_host() {
  done_->synchronize();
  check_group();
}

void StreamWork::check_group() const {
  if (const std::optional<GroupFailure> failure = membership_->failure()) {
    throw_failure(*failure, operation_, rank_, {});
  }
}

}  // namespace fsdp
