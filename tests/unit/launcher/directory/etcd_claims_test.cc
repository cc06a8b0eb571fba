#include "launcher/directory/etcd_claims.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>

#include "tests/unit/launcher/etcd/fake_etcd.h"

namespace fsdprun {
namespace {

using ::testing::HasSubstr;

/// A launcher that has a claim.
class EtcdClaimsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    claims_ = std::make_unique<EtcdClaims>(etcd_.MakeClient(), key_, nullptr);
    ASSERT_TRUE(claims_->Replace(std::nullopt, mine_).value());
  }

  bool IsHeld() {
    const auto entry = data_.Get(key_);
    return entry.has_value() && entry->value == EncodeClaim(mine_) && data_.IsAlive(entry->lease);
  }

  const std::string key_ = "torchelastic/run7/coordinator";
  const Claim mine_{.launch = "mine", .endpoints = {{"127.0.0.1", 1}}, .lease_seconds = 40};
  FakeEtcd etcd_;
  EtcdData& data_ = etcd_.data();
  std::unique_ptr<EtcdClaims> claims_;
};

TEST_F(EtcdClaimsTest, AHolderPutsAKeyThatSomebodyHasDeletedThereAgain) {
  EXPECT_TRUE(claims_->Confirm(mine_).value());
  data_.Delete(key_);
  EXPECT_TRUE(claims_->Confirm(mine_).value());
  EXPECT_TRUE(IsHeld());
}

TEST_F(EtcdClaimsTest, AKeyThatCouldNotBePutAfterItsLeaseIsPutTheNextTime) {
  data_.RefuseWrites(true);
  data_.Expire();
  EXPECT_THAT(std::string(claims_->Confirm(mine_).status().message()), HasSubstr("no leader"));
  EXPECT_FALSE(IsHeld());
  data_.RefuseWrites(false);
  EXPECT_TRUE(claims_->Confirm(mine_).value());
  EXPECT_TRUE(IsHeld());
}

TEST_F(EtcdClaimsTest, WhatAnotherHasPutThereStays) {
  const Claim other{.launch = "other", .endpoints = {{"127.0.0.1", 2}}};
  data_.Put(key_, EncodeClaim(other));
  EXPECT_FALSE(claims_->Confirm(mine_).value());
}

TEST_F(EtcdClaimsTest, WhoHasLostTheClaimDoesNotTakeItBackWhenTheOtherLeaves) {
  data_.Put(key_, EncodeClaim({.launch = "other", .endpoints = {{"127.0.0.1", 2}}}));
  EXPECT_FALSE(claims_->Confirm(mine_).value());
  data_.Delete(key_);
  EXPECT_FALSE(claims_->Confirm(mine_).value());
  EXPECT_FALSE(data_.Get(key_).has_value());
}

TEST_F(EtcdClaimsTest, AValueThatIsNoClaimIsLeftAndNamed) {
  data_.Put(key_, "hello");
  const absl::Status odd = claims_->Confirm(mine_).status();
  EXPECT_THAT(std::string(odd.message()), HasSubstr("its value cannot be used"));
  EXPECT_EQ(data_.Get(key_)->value, "hello");
}

TEST_F(EtcdClaimsTest, AnEtcdThatIsAwayIsNamed) {
  etcd_.Shutdown();
  const absl::Status away = claims_->Confirm(mine_).status();
  EXPECT_TRUE(absl::IsUnavailable(away));
  EXPECT_THAT(std::string(away.message()), HasSubstr("etcd at http://127.0.0.1:"));
}

}  // namespace
}  // namespace fsdprun
