#include "proto/worker_contract.h"

#include <gtest/gtest.h>

namespace fsdprun::contract {
namespace {

TEST(WorkerContractTest, OnlyConfigurationErrorsArePermanent) {
  EXPECT_TRUE(IsPermanentExit(kExitConfig));
  for (const int code : {0, 1, 2, 77, 79, 127, 255, -9}) {
    EXPECT_FALSE(IsPermanentExit(code)) << code;
  }
}

}  // namespace
}  // namespace fsdprun::contract
