#pragma once

#include "tests/unit/fsdp_runtime/streams/fake_device.h"
#include "tests/unit/fsdp_runtime/streams/peerless_collectives.h"

namespace fsdp::testing {

/// A group on the fake device, which runs ATen's operations for the CPU.
class FakeCollectives : public PeerlessCollectives {
 public:
  explicit FakeCollectives(int64_t size)
      : PeerlessCollectives(size, c10::kCPU, FakeDevice::device()) {
    before_launch = [](const std::string& operation) { FakeDevice::get().launch(operation); };
  }
};

}  // namespace fsdp::testing
