#include "launcher/daemon/order_seal.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>

#include "agent/rpc/call_proof.h"

namespace fsdprun {
namespace {

constexpr char kOrder[] = "run this, with SECRET=7";
const CallNonces kNonces{"l1", "d1"};

TEST(OrderSealTest, HoldsForOneTokenAndOneCall) {
  const EncryptedOrder sealed = SealOrder("token", kNonces, kOrder);
  const auto open = [&sealed](const char* token, const CallNonces& nonces) {
    return OpenOrder(token, nonces, sealed.text, sealed.seal);
  };
  EXPECT_EQ(open("token", kNonces), kOrder);
  EXPECT_EQ(open("Token", kNonces), std::nullopt);
  EXPECT_EQ(open("token", {"l2", "d1"}), std::nullopt);
  EXPECT_EQ(open("token", {"l1", "d2"}), std::nullopt);
  EXPECT_EQ(open("token", {"l", "1d1"}), std::nullopt);  // Where a number ends counts.
}

TEST(OrderSealTest, AnOrderThatWasChangedAnywhereIsRefused) {
  const EncryptedOrder sealed = SealOrder("token", kNonces, kOrder);
  for (size_t i = 0; i < sealed.text.size(); ++i) {
    std::string text = sealed.text;
    text[i] = static_cast<char>(text[i] ^ 1);
    EXPECT_EQ(OpenOrder("token", kNonces, text, sealed.seal), std::nullopt) << i;
    EXPECT_EQ(OpenOrder("token", kNonces, sealed.text.substr(0, i), sealed.seal), std::nullopt)
        << i;
  }
  for (size_t i = 0; i < sealed.seal.size(); ++i) {
    std::string seal = sealed.seal;
    seal[i] = static_cast<char>(seal[i] ^ 1);
    EXPECT_EQ(OpenOrder("token", kNonces, sealed.text, seal), std::nullopt) << i;
    EXPECT_EQ(OpenOrder("token", kNonces, sealed.text, sealed.seal.substr(0, i)), std::nullopt)
        << i;
  }
  EXPECT_EQ(OpenOrder("token", kNonces, sealed.text + "x", sealed.seal), std::nullopt);
  EXPECT_EQ(OpenOrder("token", kNonces, sealed.text, sealed.seal + "x"), std::nullopt);
}

TEST(OrderSealTest, WhoHasNotTheTokenReadsNothingAndTheSameOrderIsAnotherTextInEachCall) {
  const EncryptedOrder first = SealOrder("token", kNonces, kOrder);
  const EncryptedOrder second = SealOrder("token", {"l1", "d2"}, kOrder);
  EXPECT_NE(first.text, second.text);
  for (const std::string& text : {first.text, second.text}) {
    EXPECT_EQ(text.find("SECRET"), std::string::npos);
  }
}

TEST(OrderSealTest, AnEmptyOrderAndALargeOneAreSealed) {
  for (const size_t size : {size_t{0}, size_t{5} << 20}) {
    const std::string order(size, '\xff');
    const EncryptedOrder sealed = SealOrder("token", kNonces, order);
    EXPECT_EQ(OpenOrder("token", kNonces, sealed.text, sealed.seal), order);
  }
}

TEST(OrderSealTest, WhatTheDaemonAnswersHoldsForOneTokenAndOneCall) {
  EXPECT_NE(DaemonAnswer("token", kNonces), DaemonAnswer("other", kNonces));
  EXPECT_NE(DaemonAnswer("token", {"ab", "c"}), DaemonAnswer("token", {"a", "bc"}));
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
