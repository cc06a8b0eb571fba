#include "launcher/coordinator/host_place.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace fsdprun {
namespace {

using std::chrono::seconds;
using ::testing::HasSubstr;
using Found = HostPlace::Found;

const MonoTime kStart{std::chrono::hours(1)};

JobSpec SureFor(Duration d) {
  JobSpec spec;
  spec.place_sure_for = d;
  spec.place_sure_from = kStart;
  return spec;
}

TEST(HostPlaceTest, PlaceThatNobodyCanTakeIsAlwaysSureAndNeverLookedUp) {
  const JobSpec spec = SureFor(Duration{});
  HostPlace place(spec);
  place.Doubt(kStart);
  EXPECT_TRUE(place.IsSure(kStart + seconds(1000)));
  EXPECT_FALSE(place.Ask(kStart));
  EXPECT_FALSE(place.is_asked());
}

TEST(HostPlaceTest, IsSureForAWhileAfterItWasTakenAndAfterEachLook) {
  const JobSpec spec = SureFor(seconds(10));
  HostPlace place(spec);
  EXPECT_TRUE(place.IsSure(kStart + seconds(10)));
  EXPECT_FALSE(place.IsSure(kStart + seconds(11)));
  EXPECT_TRUE(place.Ask(kStart + seconds(11)));
  EXPECT_EQ(place.Checked(kStart + seconds(12)), Found::kSure);
  EXPECT_FALSE(place.is_asked());
  EXPECT_TRUE(place.IsSure(kStart + seconds(22)));
  EXPECT_FALSE(place.IsSure(kStart + seconds(23)));
}

TEST(HostPlaceTest, IsAskedOnceUntilTheAnswer) {
  const JobSpec spec = SureFor(seconds(10));
  HostPlace place(spec);
  EXPECT_TRUE(place.Ask(kStart + seconds(1)));
  EXPECT_FALSE(place.Ask(kStart + seconds(2)));
  EXPECT_EQ(place.AnswerDue(), kStart + seconds(11));
  place.Withdraw();
  EXPECT_EQ(place.Checked(kStart + seconds(3)), Found::kUnasked);
  EXPECT_TRUE(place.Ask(kStart + seconds(4)));
}

TEST(HostPlaceTest, LookFromBeforeTheDoubtIsOfNoUse) {
  const JobSpec spec = SureFor(seconds(10));
  HostPlace place(spec);
  place.Ask(kStart);
  place.Doubt(kStart + seconds(2));
  EXPECT_FALSE(place.IsSure(kStart + seconds(2)));
  EXPECT_EQ(place.Checked(kStart + seconds(1)), Found::kOutdated);
  EXPECT_FALSE(place.IsSure(kStart + seconds(2)));
  EXPECT_FALSE(place.is_asked());
  place.Ask(kStart + seconds(2));
  EXPECT_EQ(place.Checked(kStart + seconds(2)), Found::kSure);
}

TEST(HostPlaceTest, WhatCannotBeFoundOutIsNotSureAndStaysAsked) {
  const JobSpec spec = SureFor(seconds(10));
  HostPlace place(spec);
  EXPECT_FALSE(place.NotFound("etcd is down"));
  EXPECT_FALSE(place.IsSure(kStart));
  EXPECT_EQ(place.Question(), "making sure that no other launcher has taken the run id");
  place.Ask(kStart);
  EXPECT_TRUE(place.NotFound("etcd is down"));
  EXPECT_TRUE(place.is_asked());
  EXPECT_EQ(place.Question(),
            "making sure that no other launcher has taken the run id: etcd is down");
  place.Checked(kStart);
  EXPECT_EQ(place.Question(), "making sure that no other launcher has taken the run id");
}

TEST(HostPlaceTest, LostPlaceIsNotAskedForAnyMore) {
  const JobSpec spec = SureFor(seconds(10));
  HostPlace place(spec);
  EXPECT_FALSE(place.is_lost());
  place.Ask(kStart);
  place.Lose("another has it");
  EXPECT_TRUE(place.is_lost());
  EXPECT_FALSE(place.is_asked());
  EXPECT_FALSE(place.was_given_up());
  EXPECT_EQ(place.lost_why(), "another has it");
}

TEST(HostPlaceTest, GivenUpPlaceSaysWhatDidNotAnswer) {
  const JobSpec spec = SureFor(seconds(10));
  HostPlace silent(spec);
  silent.GiveUp();
  EXPECT_TRUE(silent.was_given_up());
  EXPECT_TRUE(silent.is_lost());
  EXPECT_THAT(silent.lost_why(), HasSubstr("the endpoint did not answer)"));
  HostPlace told(spec);
  told.Ask(kStart);
  told.NotFound("etcd is down");
  told.GiveUp();
  EXPECT_THAT(told.lost_why(), HasSubstr("(etcd is down)"));
}

}  // namespace
}  // namespace fsdprun
