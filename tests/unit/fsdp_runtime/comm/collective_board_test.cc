#include "fsdp_runtime/src/comm/collective_board.h"

#include <fsdp/counters.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "fsdp_runtime/vitals/own_vitals.h"
#include "tests/unit/fsdp_runtime/vitals/page_file.h"

namespace fsdp {
namespace {

using testing::PageFile;

class CollectiveBoardTest : public ::testing::Test {
 protected:
  std::string shown() const { return PageFile::text(page().collective); }
  std::string unit() const { return PageFile::text(page().unit); }
  PageFile::Page& page() const { return file_.page(); }
  uint64_t begin(const char* kind, const std::string& group = "", const std::string& purpose = "",
                 uint64_t bytes = 0) {
    return board_->begin({kind, group, purpose, bytes});
  }

  const PageFile file_;
  const std::unique_ptr<CollectiveBoard> board_ = std::make_unique<CollectiveBoard>(&file_.page());
};

TEST_F(CollectiveBoardTest, ShowsWhatIsUnderWay) {
  const uint64_t before = vitals_now_ns();
  const uint64_t open = begin("all_gather", "ranks 0-3", "unit layers.0", 1234);
  EXPECT_EQ(shown(), "all_gather of ranks 0-3");
  EXPECT_EQ(unit(), "layers.0");
  EXPECT_EQ(page().collective_bytes, 1234u);
  EXPECT_GE(page().collective_began_ns, before);
  EXPECT_LE(page().collective_began_ns, vitals_now_ns());
  EXPECT_EQ(page().collectives_begun, 1u);
  EXPECT_EQ(page().collectives_ended, 0u);
  EXPECT_EQ(page().text_lock % 2, 0u);
  board_->end(open);
  EXPECT_EQ(page().collectives_ended, 1u);
  EXPECT_EQ(page().collective_began_ns, 0u);
}

TEST_F(CollectiveBoardTest, TheOldestIsShownUntilItEnds) {
  const uint64_t first = begin("all_gather");
  const uint64_t first_began = page().collective_began_ns;
  const uint64_t second = begin("reduce_scatter");
  const uint64_t third = begin("all_reduce", "", "the norm");
  EXPECT_EQ(shown(), "all_gather");
  board_->end(second);  // in any order
  EXPECT_EQ(shown(), "all_gather");
  EXPECT_EQ(page().collective_began_ns, first_began);
  board_->end(first);
  EXPECT_EQ(shown(), "all_reduce");
  EXPECT_EQ(unit(), "the norm");
  EXPECT_GE(page().collective_began_ns, first_began);
  board_->end(third);
  EXPECT_EQ(page().collective_began_ns, 0u);
  EXPECT_EQ(page().collectives_ended, 3u);
}

TEST_F(CollectiveBoardTest, LongTextsAreCut) {
  const std::string purpose = "unit " + std::string(200, 'a') + "the.end";
  begin("all_gather", std::string(200, 'r'), purpose);
  EXPECT_EQ(shown(), ("all_gather of " + std::string(200, 'r')).substr(0, 96));
  EXPECT_EQ(unit(), purpose.substr(purpose.size() - 96));
}

TEST_F(CollectiveBoardTest, MoreThanCanBeKeptAreCounted) {
  std::vector<uint64_t> open;
  for (size_t i = 0; i < CollectiveBoard::kKept + 10; ++i) {
    open.push_back(begin(i == 1 ? "broadcast" : "all_gather"));
  }
  EXPECT_EQ(page().collectives_begun, open.size());
  board_->end(open[0]);
  EXPECT_EQ(shown(), "broadcast");
  for (size_t i = 1; i < open.size(); ++i) {
    board_->end(open[i]);
  }
  EXPECT_EQ(page().collectives_ended, open.size());
  EXPECT_EQ(page().collective_began_ns, 0u);
  begin("barrier");  // it goes on behind that
  EXPECT_EQ(shown(), "barrier");
}

TEST_F(CollectiveBoardTest, NothingHappensWithoutAPage) {
  CollectiveBoard board(nullptr);
  const uint64_t open = board.begin({"all_gather"});
  EXPECT_EQ(open, 0u);
  board.end(open);
}

/// What a reader sees between two equal and even values of the lock belongs together.
TEST_F(CollectiveBoardTest, TextsAreReadWholeByTheirLock) {
  std::atomic<bool> is_over{false};
  std::thread writer([&] {
    for (int i = 0; !is_over; ++i) {
      const char* const text = i % 2 == 0 ? "aaaaaaaaaaaaaaaaaaaaaaaa" : "bbbbbbbbbbbbbbbbbbbbbbbb";
      board_->end(begin(text, "", text));
    }
  });
  int whole = 0;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (whole < 1000 && std::chrono::steady_clock::now() < deadline) {
    const uint64_t before = page().text_lock.load();
    const std::string collective = shown();
    const std::string its_unit = unit();
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (before % 2 == 0 && before == page().text_lock.load()) {
      EXPECT_EQ(collective, its_unit);
      ++whole;
    }
  }
  is_over = true;
  writer.join();
  EXPECT_EQ(whole, 1000);
}

TEST_F(CollectiveBoardTest, ThreadsCountTogether) {
  constexpr int kEach = 20000;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int k = 0; k < kEach; ++k) {
        board_->end(begin("all_gather"));
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(page().collectives_begun, 4u * kEach);
  EXPECT_EQ(page().collectives_ended, 4u * kEach);
  EXPECT_EQ(page().collective_began_ns, 0u);
}

TEST(HostWaitTest, OnlyTheOutermostWaitOfAThreadCounts) {
  using std::chrono::milliseconds;
  const auto before = collective_wait_time();
  {
    const HostWait outer;
    const HostWait inner;
    std::this_thread::sleep_for(milliseconds(20));
  }
  const auto once = collective_wait_time() - before;
  EXPECT_GE(once, milliseconds(20));
  std::thread([] {
    const UncountedWaits lane;
    const HostWait waiting;
    std::this_thread::sleep_for(milliseconds(20));
  }).join();
  EXPECT_EQ(collective_wait_time() - before, once);
}

TEST(GroupTextTest, NamesRanksInRuns) {
  EXPECT_EQ(group_text({}), "");
  EXPECT_EQ(group_text({5}), "rank 5");
  EXPECT_EQ(group_text({0, 1}), "ranks 0, 1");
  EXPECT_EQ(group_text({0, 1, 2, 3, 8, 10, 11}), "ranks 0-3, 8, 10, 11");
  std::vector<int64_t> even;
  for (int64_t rank = 0; rank < 2000; rank += 2) {
    even.push_back(rank);
  }
  EXPECT_LT(group_text(even).size(), 75u);
  EXPECT_EQ(group_text(even).rfind("ranks 0, 2, 4", 0), 0u);
  EXPECT_EQ(group_text(even).substr(group_text(even).size() - 5), ", ...");
}

}  // namespace
}  // namespace fsdp
