#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "tests/unit/fsdp_runtime/engine/sharded_model.h"

namespace fsdp::testing {

/// Has a folder for this test alone.
class OnDiskTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string path = ::testing::TempDir() + "offload-XXXXXX";
    ASSERT_NE(::mkdtemp(path.data()), nullptr);
    folder_ = std::filesystem::canonical(path).string();
    name_ = std::filesystem::path(folder_).filename().string();
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  Sharded make_on_disk(const Rank& rank, const ToyConfig& config = {}) const {
    return make(rank, config, {.offload_policy = DiskOffloadPolicy{folder_}});
  }
  std::string folder_;
  std::string name_;  // the last part of it
};

}  // namespace fsdp::testing
