#include "launcher/watch/vitals_table.h"

#include <gtest/gtest.h>

#include <chrono>

namespace fsdprun {
namespace {

using std::chrono::seconds;

constexpr MonoTime kStart{seconds(100)};

v1::NodeVitals Told(uint64_t generation, int64_t pid, int64_t cpu_ns) {
  v1::NodeVitals vitals;
  vitals.set_generation(generation);
  v1::WorkerVitals* const worker = vitals.add_workers();
  worker->set_rank(3);
  worker->set_pid(pid);
  worker->set_cpu_ns(cpu_ns);
  return vitals;
}

class VitalsTableTest : public ::testing::Test {
 protected:
  VitalsTableTest() { table_.Begin(Generation(1)); }
  const VitalsTable::Entry& entry() const { return table_.entries().at(3); }

  VitalsTable table_;
};

TEST_F(VitalsTableTest, ProcessorsAreThoseUsedBetweenTwoTimes) {
  EXPECT_TRUE(table_.Take(Told(1, 7, 1'000'000'000), kStart));
  EXPECT_EQ(entry().cpus, std::nullopt);
  EXPECT_TRUE(table_.Take(Told(1, 7, 4'000'000'000), kStart + seconds(2)));
  EXPECT_EQ(entry().cpus, 1.5);
  EXPECT_TRUE(table_.Take(Told(1, 7, 4'000'000'000), kStart + seconds(3)));
  EXPECT_EQ(entry().cpus, 0.0);
}

TEST_F(VitalsTableTest, AnotherProcessBeginsAnew) {
  table_.Take(Told(1, 7, 9'000'000'000), kStart);
  table_.Take(Told(1, 8, 1'000'000'000), kStart + seconds(1));
  EXPECT_EQ(entry().cpus, std::nullopt);
  table_.Take(Told(1, 8, 2'000'000'000), kStart + seconds(1));  // At the same time.
  EXPECT_EQ(entry().cpus, std::nullopt);
}

TEST_F(VitalsTableTest, AnotherGenerationIsForgotten) {
  table_.Take(Told(1, 7, 0), kStart);
  table_.Begin(Generation(2));
  EXPECT_TRUE(table_.entries().empty());
  EXPECT_FALSE(table_.Take(Told(1, 7, 0), kStart));
  EXPECT_TRUE(table_.entries().empty());
}

}  // namespace
}  // namespace fsdprun
