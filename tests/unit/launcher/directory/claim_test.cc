#include "launcher/directory/claim.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "launcher/directory/file_claims.h"
#include "launcher/directory/unchanged_for.h"
#include "tests/unit/base/remove_folder.h"

namespace fsdprun {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::minutes;
using std::chrono::seconds;
using ::testing::HasSubstr;

Claim SomeClaim(const std::string& launch) {
  return {
      .launch = launch, .endpoints = {{"10.0.0.1", 4711}, {"fd00::1", 4711}}, .token = "secret"};
}

TEST(ClaimTest, TextIsReadAsItWasWritten) {
  Claim claim = SomeClaim("one");
  EXPECT_EQ(DecodeClaim(EncodeClaim(claim)).value(), claim);
  claim.lease_seconds = 40;
  claim.network = "boot/net:[1]";
  claim.journal = "etcd /fsdprun/journal/run7";
  EXPECT_EQ(DecodeClaim(EncodeClaim(claim)).value(), claim);
  claim = {.launch = "one", .closed_until = 1234};
  EXPECT_EQ(DecodeClaim(EncodeClaim(claim)).value(), claim);
}

TEST(ClaimTest, WhatIsNoClaimIsRefused) {
  const std::string good = EncodeClaim(SomeClaim("one"));
  for (const std::string& text :
       {std::string(), std::string("hello\n"), good.substr(0, 30), good + "address nowhere:1\n",
        good + "address 10.0.0.1:0\n", good + "address 10.0.0.1\n", good + "closed-until soon\n",
        good + "lease-seconds long\n"}) {
    EXPECT_FALSE(DecodeClaim(text).ok()) << text;
  }
  EXPECT_TRUE(DecodeClaim(good + "colour blue\n").ok());
}

TEST(ClaimTest, AHolderThatKeepsAJournalIsReplacedByWhoeverHasThatAndWaitedForByOthers) {
  Claim claim = SomeClaim("one");
  claim.lease_seconds = 40;
  HolderFacts refused{.reach = Reach::Kind::kRefused, .silence = {}, .is_on_own_network = true};
  EXPECT_EQ(MoveOf(claim, refused, 50), ClaimMove::kClaim);
  claim.journal = "etcd /fsdprun/journal/run7";
  EXPECT_EQ(MoveOf(claim, refused, 50), ClaimMove::kJoin);
  refused.silence = seconds(40);
  EXPECT_EQ(MoveOf(claim, refused, 50), ClaimMove::kClaim);
  const HolderFacts taken{.reach = Reach::Kind::kConnects, .silence = {}, .is_succeeded = true};
  EXPECT_EQ(MoveOf(claim, taken, 50), ClaimMove::kClaim);
}

TEST(ClaimTest, OnlyAHolderWhoseHostSaysThatItHasEndedOrWhoseLeaseIsOverIsReplaced) {
  const Claim open = SomeClaim("one");
  const Claim closed{.launch = "one", .closed_until = 100};
  EXPECT_EQ(MoveOf(std::nullopt, {}, 50), ClaimMove::kClaim);
  EXPECT_EQ(MoveOf(open, {Reach::Kind::kConnects}, 50), ClaimMove::kJoin);
  EXPECT_EQ(MoveOf(open, {Reach::Kind::kSilent}, 50), ClaimMove::kJoin);
  EXPECT_EQ(MoveOf(open, {Reach::Kind::kRefused}, 50), ClaimMove::kClaim);
  EXPECT_EQ(MoveOf(open, {Reach::Kind::kSilent, hours(1)}, 50), ClaimMove::kJoin);
  Claim renewed = open;
  renewed.lease_seconds = 40;
  for (const Reach::Kind reach : {Reach::Kind::kConnects, Reach::Kind::kSilent}) {
    EXPECT_EQ(MoveOf(renewed, {reach, milliseconds(39'999)}, 50), ClaimMove::kJoin);
    EXPECT_EQ(MoveOf(renewed, {reach, seconds(40)}, 50), ClaimMove::kClaim);
  }
  const auto refused = [&](Duration silence, bool is_on_own_network) {
    return MoveOf(renewed, {Reach::Kind::kRefused, silence, is_on_own_network}, 50);
  };
  EXPECT_EQ(refused({}, true), ClaimMove::kClaim);
  EXPECT_EQ(refused({}, false), ClaimMove::kJoin);
  EXPECT_EQ(refused(kSilenceOfRefused - milliseconds(1), false), ClaimMove::kJoin);
  EXPECT_EQ(refused(kSilenceOfRefused, false), ClaimMove::kClaim);
  EXPECT_EQ(MoveOf(renewed, {Reach::Kind::kSilent, kSilenceOfRefused}, 50), ClaimMove::kJoin);
  EXPECT_EQ(MoveOf(closed, {}, 99), ClaimMove::kRefuse);
  EXPECT_EQ(MoveOf(closed, {}, 100), ClaimMove::kClaim);
  EXPECT_FALSE(IsClosable("none"));
  EXPECT_TRUE(IsClosable("run7"));
}

TEST(ClaimTest, AnAddressThatIsOwnSaysNothingOfAHolderElsewhere) {
  const NumericEndpoint there{"10.0.0.1", 4711};
  const NumericEndpoint bridge{"172.17.0.1", 4711};
  const NumericEndpoint loopback{"127.0.0.1", 4711};
  struct Row {
    std::string network;
    std::vector<NumericEndpoint> endpoints;
    std::vector<NumericEndpoint> left;
  };
  const std::vector<Row> rows = {
      {"theirs", {there, bridge}, {there}},
      {"theirs", {bridge}, {}},
      {"theirs", {loopback}, {}},
      {"theirs", {there}, {there}},
      {"ours", {there, bridge, loopback}, {there, bridge, loopback}},
      {"", {there, bridge}, {there, bridge}},  // Of a version that does not tell.
  };
  for (const Row& row : rows) {
    const Claim claim{.launch = "one", .endpoints = row.endpoints, .network = row.network};
    EXPECT_EQ(EndpointsOfHolder(claim, "ours", {"10.0.0.2", "172.17.0.1"}), row.left)
        << EncodeClaim(claim);
  }
}

TEST(UnchangedForTest, CountsOnlyTimeInWhichTheObserverRan) {
  UnchangedFor unchanged{seconds(1)};
  MonoTime now{hours(1)};
  struct Row {
    std::string sign;
    milliseconds later;
    milliseconds age;
  };
  const std::vector<Row> rows = {
      {"a", milliseconds(0), milliseconds(0)},   {"a", milliseconds(400), milliseconds(400)},
      {"a", minutes(5), milliseconds(1400)},     {"a", milliseconds(600), milliseconds(2000)},
      {"b", milliseconds(900), milliseconds(0)}, {"b", milliseconds(100), milliseconds(100)},
      {"a", milliseconds(100), milliseconds(0)},
  };
  for (const Row& row : rows) {
    now += row.later;
    EXPECT_EQ(unchanged.See(row.sign, now), row.age);
  }
}

class FileClaimsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = ::testing::TempDir() + "/file_claims_XXXXXX";
    ASSERT_NE(::mkdtemp(folder_.data()), nullptr);
    path_ = folder_ + "/rendezvous.run7";
  }
  void TearDown() override { RemoveFolder(folder_); }

  size_t FileCount() const {
    return static_cast<size_t>(std::distance(std::filesystem::directory_iterator(folder_), {}));
  }

  std::string folder_;
  std::string path_;
};

TEST_F(FileClaimsTest, TheFirstClaimStaysUntilItsHolderReleasesIt) {
  FileClaims claims(path_, false);
  EXPECT_EQ(claims.Read().value(), std::nullopt);
  const Claim one = SomeClaim("one");
  EXPECT_TRUE(claims.Replace(std::nullopt, one).value());
  EXPECT_FALSE(claims.Replace(std::nullopt, SomeClaim("two")).value());
  EXPECT_EQ(claims.Read().value(), one);
  struct stat info {};
  ASSERT_EQ(::stat(path_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  EXPECT_TRUE(claims.Release(SomeClaim("two"), std::nullopt).ok());
  EXPECT_EQ(claims.Read().value(), one);
  EXPECT_TRUE(claims.Release(one, std::nullopt).ok());
  EXPECT_EQ(FileCount(), 0u);
}

TEST_F(FileClaimsTest, ReplacesOnlyWhatWasFound) {
  FileClaims claims(path_, false);
  const Claim one = SomeClaim("one");
  const Claim two = SomeClaim("two");
  ASSERT_TRUE(claims.Replace(std::nullopt, one).value());
  EXPECT_FALSE(claims.Replace(two, SomeClaim("three")).value());
  EXPECT_TRUE(claims.Replace(one, two).value());
  EXPECT_FALSE(claims.Replace(one, SomeClaim("three")).value());
  EXPECT_EQ(claims.Read().value(), two);
  const Claim closed{.launch = "two", .closed_until = 7};
  EXPECT_TRUE(claims.Release(two, closed).ok());
  EXPECT_EQ(claims.Read().value(), closed);
  EXPECT_EQ(FileCount(), 1u);
}

TEST_F(FileClaimsTest, AClaimThatWasRenewedIsNotReplaced) {
  FileClaims observer(path_, false);
  const Claim one = SomeClaim("one");
  ASSERT_TRUE(FileClaims(path_, false).Replace(std::nullopt, one).value());
  ASSERT_EQ(observer.Read().value(), one);
  const auto sign = observer.RenewalSign();
  ASSERT_EQ(observer.Read().value(), one);
  EXPECT_EQ(observer.RenewalSign(), sign);
  // As its holder does it.
  std::filesystem::last_write_time(path_, std::filesystem::file_time_type::clock::now() + hours(1));
  EXPECT_FALSE(observer.Replace(one, SomeClaim("two")).value());
  EXPECT_NE(observer.RenewalSign(), sign);
  EXPECT_TRUE(observer.Replace(one, SomeClaim("two")).value());
  EXPECT_EQ(FileCount(), 1u);
}

TEST_F(FileClaimsTest, WhoHasLookedBeforeTheHolderWasSureCannotReplaceItAnyMore) {
  FileClaims holder(path_, false);
  FileClaims observer(path_, false);
  const Claim one = SomeClaim("one");
  ASSERT_TRUE(holder.Replace(std::nullopt, one).value());
  // Long ago: clocks of file systems are coarse.
  std::filesystem::last_write_time(path_, std::filesystem::file_time_type::clock::now() - hours(1));
  ASSERT_EQ(observer.Read().value(), one);
  EXPECT_TRUE(holder.Confirm(one).value());
  EXPECT_FALSE(observer.Replace(one, SomeClaim("two")).value());
  EXPECT_EQ(FileCount(), 1u);
}

TEST_F(FileClaimsTest, AHolderIsNotSureWhileAnotherIsAboutToReplaceIt) {
  FileClaims holder(path_, false);
  const Claim one = SomeClaim("one");
  ASSERT_TRUE(holder.Replace(std::nullopt, one).value());
  std::ofstream(path_ + ".lock") << "of another launcher";
  const absl::Status locked = holder.Confirm(one).status();
  EXPECT_TRUE(absl::IsUnavailable(locked));
  EXPECT_THAT(std::string(locked.message()), HasSubstr(path_ + ".lock"));
  EXPECT_TRUE(std::filesystem::exists(path_ + ".lock"));
  std::filesystem::remove(path_ + ".lock");
  EXPECT_TRUE(holder.Confirm(one).value());
}

TEST_F(FileClaimsTest, AHolderPutsAClaimThatIsGoneThereAgainAndLeavesThatOfAnother) {
  FileClaims holder(path_, false);
  const Claim one = SomeClaim("one");
  ASSERT_TRUE(holder.Replace(std::nullopt, one).value());
  std::filesystem::remove(path_);
  EXPECT_TRUE(holder.Confirm(one).value());
  EXPECT_EQ(holder.Read().value(), one);
  EXPECT_EQ(FileCount(), 1u);
  std::ofstream(path_) << "hello";
  EXPECT_THAT(std::string(holder.Confirm(one).status().message()), HasSubstr("cannot be used"));
  const Claim two = SomeClaim("two");
  std::ofstream(path_) << EncodeClaim(two);
  EXPECT_FALSE(holder.Confirm(one).value());
  EXPECT_EQ(holder.Read().value(), two);
}

TEST_F(FileClaimsTest, AnotherLaunchersLockIsNotBrokenBeforeItsTimeIsOver) {
  const Claim one = SomeClaim("one");
  ASSERT_TRUE(FileClaims(path_, false).Replace(std::nullopt, one).value());
  std::ofstream(path_ + ".lock") << "of a launcher that was stopped";
  FileClaims claims(path_, false);
  EXPECT_FALSE(claims.Replace(one, SomeClaim("two")).value());
  EXPECT_FALSE(claims.Replace(one, SomeClaim("two")).value());
  EXPECT_TRUE(std::filesystem::exists(path_ + ".lock"));
  EXPECT_EQ(claims.Read().value(), one);
}

TEST_F(FileClaimsTest, OfSeveralAtOnceOneWins) {
  std::optional<Claim> before;
  for (int round = 0; round < 50; ++round) {
    std::atomic<int> winners = 0;
    std::vector<std::thread> launchers;
    for (int i = 0; i < 4; ++i) {
      launchers.emplace_back([&, i] {
        const Claim mine = SomeClaim(std::to_string(round) + "." + std::to_string(i));
        winners += FileClaims(path_, false).Replace(before, mine).value() ? 1 : 0;
      });
    }
    for (std::thread& launcher : launchers) {
      launcher.join();
    }
    // None, if all found another's lock: they try again then.
    ASSERT_LE(winners, 1);
    before = FileClaims(path_, false).Read().value();
    ASSERT_TRUE(before.has_value());
    EXPECT_EQ(FileCount(), 1u);
  }
}

TEST_F(FileClaimsTest, OddFilesAreRefusedByName) {
  std::ofstream(path_) << "hello";
  EXPECT_THAT(std::string(FileClaims(path_, false).Read().status().message()), HasSubstr(path_));
  std::filesystem::remove(path_);
  EXPECT_THAT(std::string(FileClaims(folder_ + "/no/such", false)
                              .Replace(std::nullopt, SomeClaim("one"))
                              .status()
                              .message()),
              HasSubstr("no/such"));
  std::filesystem::create_directory(path_);
  EXPECT_FALSE(FileClaims(path_, false).Read().ok());
}

TEST_F(FileClaimsTest, AFileOfAnotherUserIsOfUseOnlyWithATokenOfOnesOwn) {
  if (::geteuid() != 0) {
    GTEST_SKIP() << "only root can give files away";
  }
  ASSERT_TRUE(FileClaims(path_, false).Replace(std::nullopt, SomeClaim("one")).value());
  ASSERT_EQ(::chown(path_.c_str(), 12345, 12345), 0);
  EXPECT_TRUE(absl::IsPermissionDenied(FileClaims(path_, false).Read().status()));
  EXPECT_TRUE(FileClaims(path_, true).Read().ok());
}

}  // namespace
}  // namespace fsdprun
