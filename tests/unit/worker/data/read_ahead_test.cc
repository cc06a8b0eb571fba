#include "worker/data/read_ahead.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <stdexcept>
#include <string>
#include <vector>

namespace fsdprun::worker {
namespace {

using Squares = ReadAhead<int, int>;

Squares::Made Square(const int& key) { return {key * key, key + 1}; }

TEST(ReadAheadTest, ErrorComesWithItsKeyAndNotBefore) {
  Squares squares(3, [](const int& key) {
    if (key == 2) {
      throw std::runtime_error("two");
    }
    return Square(key);
  });
  EXPECT_EQ(squares.Take(0).value, 0);
  EXPECT_EQ(squares.Take(1).value, 1);
  for (int attempt = 0; attempt < 2; ++attempt) {
    try {
      squares.Take(2);
      ADD_FAILURE() << "no error";
    } catch (const std::runtime_error& error) {
      EXPECT_STREQ(error.what(), "two");
    }
  }
  EXPECT_EQ(squares.Take(3).value, 9);
}

TEST(ReadAheadTest, NoMoreThanIsWantedIsMade) {
  std::atomic<int> made{0};
  std::promise<void> enough;
  Squares squares(2, [&](const int& key) {
    if (++made == 3) {
      enough.set_value();
    }
    EXPECT_LE(key, 2);
    return Square(key);
  });
  EXPECT_EQ(squares.Take(0).value, 0);
  enough.get_future().wait();  // 1 and 2 are made beside this
}

TEST(ReadAheadTest, AJumpGoesOnFromThere) {
  Squares squares(4, Square);
  for (const int key : {0, 1, 2, 100, 101, 3, 4, 4, 5, 0}) {
    const Squares::Made made = squares.Take(key);
    EXPECT_EQ(made.value, key * key);
    EXPECT_EQ(made.next, key + 1);
  }
}

TEST(ReadAheadTest, EndsWithWhatIsBeingMade) {
  std::promise<void> started;
  std::atomic<bool> is_inside{false};
  {
    Squares squares(8, [&](const int& key) {
      if (key == 1) {
        is_inside = true;
        started.set_value();
        std::this_thread::yield();
        is_inside = false;
      }
      return Square(key);
    });
    squares.Take(0);
    started.get_future().wait();
  }
  EXPECT_FALSE(is_inside);
}

TEST(ReadAheadTest, NeverUsed) { const Squares squares(1, Square); }

TEST(ReadAheadTest, CountsHowLongItWaits) {
  std::promise<void> go;
  std::shared_future<void> gone = go.get_future().share();
  Squares squares(1, [&](const int& key) {
    if (key == 1) {
      gone.wait();
    }
    return Square(key);
  });
  squares.Take(0);
  const auto before = squares.waited();
  const auto start = std::chrono::steady_clock::now();
  std::future<int> taken = std::async(std::launch::async, [&] { return squares.Take(1).value; });
  EXPECT_EQ(taken.wait_for(std::chrono::milliseconds(5)), std::future_status::timeout);
  go.set_value();
  EXPECT_EQ(taken.get(), 1);
  EXPECT_LE(squares.waited() - before, std::chrono::steady_clock::now() - start);
  EXPECT_GT(squares.waited(), before);
}

}  // namespace
}  // namespace fsdprun::worker
