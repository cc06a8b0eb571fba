#include "fsdp_runtime/src/comm/worlds.h"

#include <c10/util/Exception.h>
#include <fsdp/device_mesh.h>
#include <fsdp/process_group.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>

#include "fsdp_runtime/src/comm/single_collectives.h"

namespace fsdp {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

/// A world of one, as init_process_group() has it.
struct FormedWorld {
  std::shared_ptr<Membership> membership = std::make_shared<Membership>(0);
  std::shared_ptr<Collectives> group =
      make_single_collectives("single", c10::kCPU, GroupPlace{.membership = membership});
};

std::string refusal_of(const std::function<void()>& run) {
  try {
    run();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "accepted";
}

std::string refusal_of(const Worlds& worlds) {
  return refusal_of([&] { worlds.only("fully_shard"); });
}

TEST(WorldsTest, WithoutAGroupOneIsToBeFormed) {
  EXPECT_THAT(refusal_of(Worlds()),
              AllOf(StartsWith("fully_shard: "), HasSubstr("has formed no process group"),
                    HasSubstr("fsdp::init_process_group()")));
}

TEST(WorldsTest, AGroupIsFoundAsLongAsSomebodyHasIt) {
  Worlds worlds;
  FormedWorld world;
  worlds.add(world.group, world.membership);
  EXPECT_EQ(worlds.only("fully_shard"), world.group);
  EXPECT_EQ(world.group.use_count(), 1);
  world = {};
  EXPECT_THAT(refusal_of(worlds), AllOf(HasSubstr("has been destroyed"), HasSubstr("keep what")));
  worlds.add(world.group, world.membership);
  EXPECT_EQ(worlds.only("fully_shard"), world.group);
}

TEST(WorldsTest, OfSeveralNoneIsChosen) {
  Worlds worlds;
  FormedWorld first;
  worlds.add(first.group, first.membership);
  {
    const FormedWorld second;
    worlds.add(second.group, second.membership);
    EXPECT_THAT(refusal_of(worlds),
                AllOf(HasSubstr("2 process groups (single of 1 rank, single of 1 rank)"),
                      HasSubstr("fsdp::init_device_mesh()")));
  }
  EXPECT_EQ(worlds.only("fully_shard"), first.group);
}

// Who catches the error of the failed group has it still when the others have met anew.
TEST(WorldsTest, TheWorldOfThoseThatAreLeftTakesThePlaceOfTheFailedOne) {
  Worlds worlds;
  const FormedWorld failed;
  worlds.add(failed.group, failed.membership);
  const FormedWorld left;
  worlds.replace(failed.membership, left.group, left.membership);
  EXPECT_EQ(worlds.only("fully_shard"), left.group);
  const FormedWorld last;
  worlds.replace(left.membership, last.group, last.membership);
  EXPECT_EQ(worlds.only("fully_shard"), last.group);
}

// A row and a column of a mesh that has failed, of which either has gone on for itself.
TEST(WorldsTest, TwoWorldsMadeOfPartsOfOneAreSeveral) {
  Worlds worlds;
  const FormedWorld failed;
  worlds.add(failed.group, failed.membership);
  const FormedWorld row, column;
  worlds.replace(failed.membership, row.group, row.membership);
  worlds.replace(failed.membership, column.group, column.membership);
  EXPECT_THAT(refusal_of(worlds), HasSubstr("2 process groups"));
}

TEST(WorldsTest, WhatIsMadeOfAnUnknownGroupIsUnknown) {
  Worlds worlds;
  const FormedWorld unknown, made;
  worlds.replace(unknown.membership, made.group, made.membership);
  worlds.replace(nullptr, made.group, made.membership);
  EXPECT_THAT(refusal_of(worlds), HasSubstr("has formed no process group"));
}

TEST(DefaultProcessGroupTest, IsTheOneThatWasFormed) {
  std::shared_ptr<Collectives> world = init_process_group({});
  EXPECT_EQ(default_process_group(), world);
  const auto mesh = init_device_mesh(c10::kCPU, {1}, {"dp"});
  EXPECT_EQ(mesh->group(), world);
  world.reset();
  EXPECT_EQ(default_process_group(), mesh->group());
}

TEST(DefaultProcessGroupTest, IsGoneWithItsLastOwner) {
  init_process_group({})->barrier();
  EXPECT_THAT(refusal_of([] { default_process_group(); }),
              AllOf(StartsWith("default_process_group: "), HasSubstr("has been destroyed")));
  EXPECT_THAT(refusal_of([] { init_device_mesh(c10::kCPU, {1}, {"dp"}); }),
              StartsWith("init_device_mesh without a group: "));
  const std::shared_ptr<Collectives> again = init_process_group({});
  EXPECT_EQ(default_process_group(), again);
}

TEST(DefaultProcessGroupTest, IsTheOneThatShrinkHasMade) {
  const std::shared_ptr<Collectives> world = init_process_group({});
  const std::shared_ptr<Collectives> left = world->shrink({});
  EXPECT_EQ(default_process_group(), left);
  const std::shared_ptr<Collectives> last = left->shrink({});
  EXPECT_EQ(default_process_group(), last);
}

TEST(DefaultProcessGroupTest, IsNoPartOfAGroup) {
  const std::shared_ptr<Collectives> world = init_process_group({});
  const std::shared_ptr<Collectives> part = world->split(0);
  EXPECT_EQ(default_process_group(), world);
}

}  // namespace
}  // namespace fsdp
