#include "launcher/daemon/order_seal.h"

#include <gtest/gtest.h>

#include "agent/rpc/call_proof.h"

namespace fsdprun {
namespace {

TEST(OrderSealTest, HoldsForOneTokenOneCallAndOneOrder) {
  const CallNonces nonces{"l1", "d1"};
  const std::string seal = OrderSeal("token", nonces, "order");
  EXPECT_EQ(OrderSeal("token", nonces, "order"), seal);
  EXPECT_NE(OrderSeal("Token", nonces, "order"), seal);
  EXPECT_NE(OrderSeal("token", {"l2", "d1"}, "order"), seal);
  EXPECT_NE(OrderSeal("token", {"l1", "d2"}, "order"), seal);
  EXPECT_NE(OrderSeal("token", nonces, "order "), seal);
}

TEST(OrderSealTest, WhereANumberEndsCounts) {
  EXPECT_NE(OrderSeal("t", {"ab", "c"}, ""), OrderSeal("t", {"a", "bc"}, ""));
  EXPECT_NE(OrderSeal("t", {"a", "b"}, "c"), OrderSeal("t", {"a", "bc"}, ""));
}

TEST(OrderSealTest, WhatTheDaemonAnswersSealsNoOrder) {
  const CallNonces nonces{"l", "d"};
  EXPECT_NE(DaemonAnswer("token", nonces), OrderSeal("token", nonces, ""));
  EXPECT_NE(DaemonAnswer("token", nonces), DaemonAnswer("other", nonces));
}

TEST(OrderSealTest, AJobsTokenOpensNeitherAnotherJobNorADaemon) {
  const std::string of_job = TokenOfJob("token", "run1");
  EXPECT_NE(of_job, "token");
  EXPECT_NE(of_job, TokenOfJob("token", "run2"));
  EXPECT_NE(TokenOfJob(of_job, "run1"), of_job);
  EXPECT_EQ(TokenOfJob(kNoToken, "run1"), kNoToken);
}

}  // namespace
}  // namespace fsdprun
