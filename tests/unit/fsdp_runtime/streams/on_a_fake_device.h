#pragma once

#include <gtest/gtest.h>

#include <cstdint>

#include "tests/unit/fsdp_runtime/streams/fake_device.h"

namespace fsdp::testing {

class OnAFakeDevice : public ::testing::Test {
 protected:
  void SetUp() override { device_.start(); }
  void TearDown() override { device_.stop(); }
  FakeDevice& device_ = FakeDevice::get();
};

// By number: compute, the lanes of the row, those of the copies.
enum Stream : int64_t { kCompute, kRowGather, kRowReduce, kCopiesGather, kCopiesReduce };

}  // namespace fsdp::testing
