#include "fsdp_runtime/src/comm/membership.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <condition_variable>
#include <thread>

#include "fsdp_runtime/store/tcp.h"

#include "tests/unit/fsdp_runtime/comm/linked.h"

namespace fsdp {
namespace {

using std::chrono::steady_clock;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::linked;
using testing::MemoryExchange;

/// Waits to be interrupted.
class FakeGroup : public Interruptible {
 public:
  void interrupt(const GroupFailure& failure) override {
    std::lock_guard lock(mu_);
    failures_.push_back(failure);
    changed_.notify_all();
  }
  GroupFailure wait() {
    std::unique_lock lock(mu_);
    changed_.wait(lock, [&] { return !failures_.empty(); });
    return failures_.front();
  }
  size_t interruptions() {
    std::lock_guard lock(mu_);
    return failures_.size();
  }

 private:
  std::mutex mu_;
  std::condition_variable changed_;
  std::vector<GroupFailure> failures_;
};

struct LinkedWorld {
  explicit LinkedWorld(int64_t size) : links(linked(size)) {
    for (int64_t rank = 0; rank < size; ++rank) {
      members.push_back(std::make_unique<Membership>(rank));
    }
  }
  void connect(size_t rank) { members[rank]->connect(std::move(links[rank])); }

  std::vector<std::unique_ptr<PeerLinks>> links;
  std::vector<std::unique_ptr<Membership>> members;
};

TEST(MembershipTest, TheFirstFailureIsThatOfAllGroupsNowAndLater) {
  Membership members(0);
  FakeGroup first, gone, late;
  members.add(first);
  members.add(gone);
  members.remove(gone, "gone");
  EXPECT_EQ(members.revoke({"rank 3 died", 3}).reason, "rank 3 died");
  EXPECT_EQ(members.revoke({"rank 1 left the group", 1}).lost_rank, 3);
  members.add(late);
  EXPECT_EQ(first.wait().lost_rank, 3);
  EXPECT_EQ(late.wait().reason, "rank 3 died");
  EXPECT_EQ(first.interruptions(), 1U);
  EXPECT_EQ(gone.interruptions(), 0U);
}

TEST(MembershipTest, AllRanksHearOfAFailureWithItsWords) {
  for (const std::optional<int64_t> lost : {std::optional<int64_t>(), std::optional<int64_t>(7)}) {
    LinkedWorld world(3);
    FakeGroup groups[3];
    for (size_t rank = 0; rank < 3; ++rank) {
      world.connect(rank);
      world.members[rank]->add(groups[rank]);
    }
    world.members[1]->revoke({"no more: it is over", lost});
    for (FakeGroup& group : groups) {
      EXPECT_EQ(group.wait().reason, "no more: it is over");
      EXPECT_EQ(group.wait().lost_rank, lost);
    }
  }
}

// A process that dies says nothing; here its links end without its membership.
TEST(MembershipTest, AConnectionThatEndsWithoutAWordIsADeath) {
  LinkedWorld world(3);
  FakeGroup groups[2];
  for (size_t rank = 0; rank < 2; ++rank) {
    world.connect(rank);
    world.members[rank]->add(groups[rank]);
  }
  world.links[2].reset();
  for (FakeGroup& group : groups) {
    EXPECT_EQ(group.wait().lost_rank, 2);
    EXPECT_THAT(group.wait().reason, HasSubstr("rank 2 died"));
  }
}

// Rank 1 knows of the death and leaves at once; rank 2, whose own link with the dead one has not
// ended yet, must not take rank 1 for the cause.
TEST(MembershipTest, WhoLeavesBecauseOfADeathIsNotTheCause) {
  LinkedWorld world(3);
  FakeGroup group;
  world.connect(2);
  world.members[2]->add(group);
  world.connect(1);
  world.members[1]->revoke({"rank 0 died", 0});
  world.members[1].reset();
  EXPECT_EQ(world.members[2]->explain_loss(1, "world").lost_rank, 0);
  EXPECT_EQ(group.wait().reason, "rank 0 died");
}

// The library reports a broken connection before the word of who broke it is here.
TEST(MembershipTest, WhatMayBeTheEffectOfAFailureElsewhereWaitsForItsWord) {
  LinkedWorld world(3);
  world.connect(0);
  world.connect(1);
  std::thread other([&] { world.members[0]->revoke({"rank 2 died", 2}); });
  EXPECT_EQ(world.members[1]->revoke_unless_told({"a connection is broken", {}}).lost_rank, 2);
  other.join();
  EXPECT_EQ(Membership(0).revoke_unless_told({"a connection is broken", {}}).reason,
            "a connection is broken");
}

TEST(MembershipTest, WhoLeavesAfterItsWorkIsNoFailureButExplainsALostConnection) {
  LinkedWorld world(2);
  FakeGroup group, of_peer;
  world.connect(0);
  world.connect(1);
  world.members[0]->add(group);
  world.members[1]->add(of_peer);
  world.members[1]->remove(of_peer, "part");
  EXPECT_EQ(world.members[0]->explain_loss(1, "part").reason, "rank 1 left the group");
  world.members[1].reset();
  const GroupFailure why = world.members[0]->explain_loss(std::nullopt, "part");
  EXPECT_EQ(why.lost_rank, 1);
  EXPECT_EQ(world.members[0]->explain_loss(1, "world").reason, "rank 1 left the group");
  EXPECT_FALSE(world.members[0]->failure().has_value());
}

// Each of the two may have seen only that the other closed: both named as lost, both would be left
// out by those that go on.
TEST(MembershipTest, WhoClosesAConnectionWithoutAWordIsNotLostWhileItsLinkStands) {
  LinkedWorld world(2);
  world.connect(0);
  world.connect(1);
  const GroupFailure why = world.members[0]->explain_loss(1, "world");
  EXPECT_FALSE(why.lost_rank.has_value());
  EXPECT_THAT(why.reason, HasSubstr("rank 1 closed its connection without a word"));
  EXPECT_EQ(Membership(0).explain_loss(1, "world").lost_rank, 1);
}

TEST(MembershipTest, WhoHasLeftAGroupIsKnownByThoseOfThatGroup) {
  LinkedWorld world(3);
  FakeGroup of_peer;
  world.connect(0);
  world.connect(1);
  Membership& members = *world.members[0];
  world.members[1]->add(of_peer);
  world.members[1]->remove(of_peer, "part");
  members.explain_loss(1, "part");  // returns when it is heard
  EXPECT_EQ(members.departure("part", {0, 1}, {})->lost_rank, 1);
  EXPECT_FALSE(members.departure("part", {0, 1}, std::chrono::minutes(10)).has_value());
  EXPECT_FALSE(members.departure("world", {}, {}).has_value());
  world.members[1].reset();
  members.explain_loss(1, "world");
  EXPECT_EQ(members.departure("world", {}, {})->lost_rank, 1);
  EXPECT_EQ(members.departure("row", {0, 1}, {})->lost_rank, 1);
  EXPECT_FALSE(members.departure("row", {0, 2}, {}).has_value());
}

TEST(PeerLinksTest, MessagesArriveInOrderAndBeforeTheEnd) {
  class Collector : public PeerLinks::Listener {
   public:
    void on_message(int64_t, const std::string& message) override { add(message); }
    void on_closed(int64_t) override { add("end"); }
    std::vector<std::string> wait(size_t count) {
      std::unique_lock lock(mu_);
      changed_.wait(lock, [&] { return heard_.size() >= count; });
      return heard_;
    }

   private:
    void add(const std::string& what) {
      std::lock_guard lock(mu_);
      heard_.push_back(what);
      changed_.notify_all();
    }
    std::mutex mu_;
    std::condition_variable changed_;
    std::vector<std::string> heard_;
  };
  Collector collector;  // outlives the links
  auto links = linked(2);
  links[0]->start(collector);
  const std::string large(100000, 'x');
  links[1]->send_to_all("a");
  links[1]->send_to_all("");
  links[1]->send_to_all(large);
  links[0]->send_to_all("nobody reads this");
  links[1].reset();
  EXPECT_THAT(collector.wait(4), ElementsAre("a", "", large, "end"));
}

TEST(MembershipTest, WhoHasDiedOrTakenLeaveIsGone) {
  LinkedWorld world(3);
  for (size_t rank = 0; rank < 2; ++rank) {
    world.connect(rank);
  }
  EXPECT_TRUE(world.members[0]->gone().empty());
  world.links[2].reset();    // without a word
  world.members[1].reset();  // with one
  const auto end = steady_clock::now() + std::chrono::seconds(60);
  while (world.members[0]->gone().size() < 2 && steady_clock::now() < end) {
    std::this_thread::yield();
  }
  EXPECT_THAT(world.members[0]->gone(), ElementsAre(1, 2));
}

// Whoever it has connected to has taken its hello for one that came too late.
TEST(PeerLinksTest, RankThatIsNotWelcomeConnectsAgain) {
  MemoryExchange exchange;
  int port = 0;
  const shm::Fd listener(listen_at("127.0.0.1", 8, port));
  exchange.put("links/0", "127.0.0.1 " + std::to_string(port) + " 7");
  std::thread other([&] {
    PeerLinks links(exchange, 1, 2, "127.0.0.1", steady_clock::now() + std::chrono::seconds(60));
  });
  for (const bool is_welcome : {false, true}) {
    pollfd entry{listener.get(), POLLIN, 0};
    ASSERT_EQ(::poll(&entry, 1, 60'000), 1);
    const shm::Fd fd(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    ASSERT_TRUE(fd.valid());
    if (is_welcome) {
      ASSERT_EQ(::send(fd.get(), "w", 1, MSG_NOSIGNAL), 1);
      other.join();
    }
  }
}

TEST(PeerLinksTest, WaitForAPeerEndsWhenItIsKnownNotToCome) {
  class Hopeless : public MemoryExchange {
   public:
    void check() override { throw std::runtime_error("it will not come"); }
  };
  Hopeless exchange;
  EXPECT_THROW(PeerLinks(exchange, 0, 2, "127.0.0.1", steady_clock::now() + std::chrono::hours(1)),
               std::runtime_error);
}

TEST(PeerLinksTest, RankThatDoesNotComeIsNamed) {
  MemoryExchange exchange;
  const auto deadline = steady_clock::now() + std::chrono::milliseconds(50);
  try {
    PeerLinks links(exchange, 0, 2, "127.0.0.1", deadline);
    FAIL() << "rank 1 has not come";
  } catch (const LinkError& error) {
    EXPECT_THAT(error.what(), HasSubstr("not reached by rank 1"));
  }
}

}  // namespace
}  // namespace fsdp
