#pragma once

#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fsdp/work.h>

namespace fsdp {

/// What has been launched on the caller's stream. Whoever reads the result there is behind it.
class OnCallersStream : public Work {
 public:
  explicit OnCallersStream(c10::Device device) : event_(device.type()) {
    event_.record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
  }
  void wait() override {
    event_.block(c10::impl::VirtualGuardImpl(event_.device_type()).getStream(event_.device()));
  }
  void wait_on_host() override { event_.synchronize(); }
  bool is_done() override { return event_.query(); }

 private:
  c10::Event event_;
};

}  // namespace fsdp
