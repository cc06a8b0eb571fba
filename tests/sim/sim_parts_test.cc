#include <gtest/gtest.h>

#include <map>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "tests/sim/message_pool.h"
#include "tests/sim/virtual_time.h"

namespace fsdprun::sim {
namespace {

TEST(TimeQueue, AgreesWithAnOrderedMapAtAllDistances) {
  Random random(7);
  TimeQueue queue;
  std::map<std::pair<Nanos, uint32_t>, uint32_t> model;  // (time, order of pushing) -> index
  const Nanos kReach[] = {1, 100 * kMicro, 2 * kMilli, 500 * kMilli, 3 * kSecond, 60 * kSecond};
  Nanos now = 0;
  for (uint32_t i = 0; i < 20'000; ++i) {
    const Nanos at = now + random.Between(0, kReach[random.Below(6)]);
    queue.Push(at, ItemKind::kCall, i);
    model[{at, i}] = i;
    while (!queue.empty() && random.Chance(0.49)) {
      const Item item = queue.Pop([](const Item&, int) {});
      ASSERT_EQ(item.index, model.begin()->second);
      ASSERT_EQ(item.at, model.begin()->first.first);
      now = item.at;
      model.erase(model.begin());
    }
  }
  while (!queue.empty()) {
    ASSERT_EQ(queue.Pop([](const Item&, int) {}).index, model.begin()->second);
    model.erase(model.begin());
  }
  EXPECT_TRUE(model.empty());
}

TEST(TimeQueue, WhatIsPushedIntoThePastHappensNow) {
  TimeQueue queue;
  const auto ignore = [](const Item&, int) {};
  queue.Push(kSecond, ItemKind::kCall, 1);
  queue.Pop(ignore);
  queue.Push(2 * kSecond, ItemKind::kCall, 2);
  queue.Push(0, ItemKind::kCall, 3);
  const Item first = queue.Pop(ignore);
  EXPECT_EQ(first.index, 3u);
  EXPECT_EQ(first.at, kSecond);
  EXPECT_EQ(queue.Pop(ignore).index, 2u);
}

TEST(TimeQueue, TellsWhatComesSoonBeforeItComes) {
  TimeQueue queue;
  std::vector<std::pair<uint32_t, int>> told;
  queue.Push(100 * kMilli, ItemKind::kCall, 1);
  queue.Pop([&](const Item& item, int ahead) { told.emplace_back(item.index, ahead); });
  EXPECT_EQ(told, (std::vector<std::pair<uint32_t, int>>{{1, 2}, {1, 1}}));
}

using Pool = MessagePool<std::variant<int, std::string>>;

TEST(MessagePool, EachFifoKeepsItsOrderAndCellsAreUsedAgain) {
  Pool pool;
  Pool::Fifo a;
  Pool::Fifo b;
  pool.Append(a, std::string("a1"));
  pool.Append(b, std::string("b1"));
  pool.Append(a, 2);
  EXPECT_EQ(pool.Length(a), 2u);

  const Pool::Cell first = pool.TakeFirst(a);
  EXPECT_EQ(std::get<std::string>(pool[first]), "a1");
  pool.Release(first);
  pool.Append(b, std::string("b2"));
  const Pool::Cell second = pool.TakeFirst(b);
  EXPECT_EQ(std::get<std::string>(pool[second]), "b1");
  const Pool::Cell third = pool.TakeFirst(b);
  EXPECT_EQ(third, first) << "the cell last freed";
  EXPECT_EQ(std::get<std::string>(pool[third]), "b2");
  EXPECT_TRUE(b.empty());
  EXPECT_EQ(std::get<int>(pool[pool.TakeFirst(a)]), 2);
}

TEST(MessagePool, AClearedFifoStartsAfresh) {
  Pool pool;
  Pool::Fifo fifo;
  pool.Append(fifo, 1);
  pool.Append(fifo, 2);
  pool.Clear(fifo);
  EXPECT_TRUE(fifo.empty());
  EXPECT_EQ(pool.Length(fifo), 0u);
  pool.Append(fifo, 3);
  EXPECT_EQ(pool.Length(fifo), 1u);
  EXPECT_EQ(std::get<int>(pool[pool.TakeFirst(fifo)]), 3);
}

}  // namespace
}  // namespace fsdprun::sim
