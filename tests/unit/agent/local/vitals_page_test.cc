#include "agent/local/vitals_page.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>
#include <string>
#include <thread>

#include "tests/unit/base/remove_folder.h"

namespace fsdprun {
namespace {

using Page = contract::VitalsPage;

class VitalsPageTest : public ::testing::Test {
 protected:
  VitalsPageTest() {
    EXPECT_NE(::mkdtemp(folder_.data()), nullptr);
    path_ = folder_ + "/3.0";
  }
  ~VitalsPageTest() override {
    if (page_ != nullptr) {
      ::munmap(page_, Page::kBytes);
    }
    RemoveFolder(folder_);
  }
  /// As the worker has it.
  Page& Worker() {
    if (page_ == nullptr) {
      const UniqueFd fd(::open(path_.c_str(), O_RDWR | O_CLOEXEC));
      page_ = static_cast<Page*>(
          ::mmap(nullptr, Page::kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0));
    }
    return *page_;
  }
  static void Put(Page::Text& words, const std::string& text) {
    std::string padded = text;
    padded.resize(Page::kTextBytes);
    for (size_t i = 0; i < words.size(); ++i) {
      uint64_t word = 0;
      std::memcpy(&word, padded.data() + i * sizeof(word), sizeof(word));
      words[i].store(word, std::memory_order_relaxed);
    }
  }
  static uint64_t Bits(double number) {
    uint64_t bits = 0;
    std::memcpy(&bits, &number, sizeof(bits));
    return bits;
  }

  std::string folder_ = ::testing::TempDir() + "vitals_XXXXXX";
  std::string path_;
  const CarefulCopy copy_;
  Page* page_ = nullptr;
};

TEST_F(VitalsPageTest, IsMadeEmptyWithRoomOnTheDisk) {
  const auto view = VitalsView::Make(path_);
  ASSERT_TRUE(view.ok()) << view.status();
  struct stat info {};
  ASSERT_EQ(::stat(path_.c_str(), &info), 0);
  EXPECT_EQ(info.st_size, static_cast<off_t>(Page::kBytes));
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  EXPECT_FALSE(view->Read(copy_, 100).has_value());  // nobody says anything
}

TEST_F(VitalsPageTest, WhatTheWorkerSaysIsRead) {
  const auto view = VitalsView::Make(path_);
  ASSERT_TRUE(view.ok()) << view.status();
  Page& page = Worker();
  page.step = 12;
  page.total = 100;
  page.step_began_ns = 1000;
  page.loss = Bits(2.5);
  page.tokens_per_second = Bits(1e6);
  page.tokens = 77;
  page.phase = static_cast<uint64_t>(contract::WorkerPhase::kBackward);
  page.step_ns = 5;
  page.collective_wait_ns = 6;
  page.data_wait_ns = 7;
  page.save_ns = 8;
  page.collectives_begun = 20;
  page.collectives_ended = 19;
  page.collective_began_ns = 2000;
  page.collective_bytes = 4096;
  Put(page.collective, "all_gather of ranks 0-3");
  Put(page.unit, "layers.0");
  page.device_bytes = 9;
  page.device_peak_bytes = 10;
  page.version = Page::kVersion;
  const auto own = view->Read(copy_, 2500);
  ASSERT_TRUE(own.has_value());
  EXPECT_EQ(own->step(), 12);
  EXPECT_EQ(own->total(), 100);
  EXPECT_EQ(own->step_age_ns(), 1500);
  EXPECT_EQ(own->loss(), 2.5);
  EXPECT_FALSE(own->has_bad_loss());
  EXPECT_EQ(own->tokens_per_second(), 1e6);
  EXPECT_EQ(own->tokens(), 77);
  EXPECT_EQ(own->phase(), "backward");
  EXPECT_EQ(own->step_ns(), 5);
  EXPECT_EQ(own->collective_wait_ns(), 6);
  EXPECT_EQ(own->data_wait_ns(), 7);
  EXPECT_EQ(own->save_ns(), 8);
  EXPECT_EQ(own->collectives_begun(), 20u);
  EXPECT_EQ(own->collectives_ended(), 19u);
  EXPECT_EQ(own->collective_age_ns(), 500);
  EXPECT_EQ(own->collective(), "all_gather of ranks 0-3");
  EXPECT_EQ(own->unit(), "layers.0");
  EXPECT_EQ(own->collective_bytes(), 4096);
  EXPECT_EQ(own->device_bytes(), 9);
  EXPECT_EQ(own->device_peak_bytes(), 10);
  page.collective_began_ns = 0;
  EXPECT_EQ(view->Read(copy_, 2500)->collective(), "");  // it has ended
}

TEST_F(VitalsPageTest, AWordThatIsNotWrittenSaysNothing) {
  const auto view = VitalsView::Make(path_);
  ASSERT_TRUE(view.ok()) << view.status();
  Worker().version = Page::kVersion;
  auto own = view->Read(copy_, 2500);
  ASSERT_TRUE(own.has_value());
  EXPECT_EQ(own->step(), -1);
  EXPECT_EQ(own->total(), -1);
  EXPECT_TRUE(std::isnan(own->loss()));
  EXPECT_FALSE(own->has_bad_loss());
  for (const double bad : {NAN, INFINITY}) {
    Worker().loss = Bits(bad);
    own = view->Read(copy_, 2500);
    EXPECT_TRUE(std::isnan(own->loss()));
    EXPECT_TRUE(own->has_bad_loss());
  }
  EXPECT_EQ(own->step_age_ns(), 0);
  EXPECT_EQ(own->phase(), "other");
  Worker().collective_began_ns = 1;
  EXPECT_EQ(view->Read(copy_, 2500)->phase(), "collective");
}

TEST_F(VitalsPageTest, GarbageHarmsNobody) {
  const auto view = VitalsView::Make(path_);
  ASSERT_TRUE(view.ok()) << view.status();
  Page& page = Worker();
  std::memset(static_cast<void*>(&page), 0xff, sizeof(page));
  EXPECT_FALSE(view->Read(copy_, 2500).has_value());  // of no known version
  page.version = Page::kVersion;
  page.text_lock = 2;
  auto own = view->Read(copy_, 2500);
  ASSERT_TRUE(own.has_value());
  EXPECT_EQ(own->step(), -1);
  EXPECT_EQ(own->step_age_ns(), 0);
  EXPECT_TRUE(std::isnan(own->loss()));
  EXPECT_EQ(own->tokens_per_second(), 0);
  EXPECT_EQ(own->tokens(), 0);
  EXPECT_EQ(own->phase(), "collective");
  EXPECT_EQ(own->collective().substr(0, 6), "\xef\xbf\xbd\xef\xbf\xbd");  // U+FFFD each
  EXPECT_EQ(view->Writer(copy_), 0);
  page.pid = 77;
  EXPECT_EQ(view->Writer(copy_), 77);
  page.step_began_ns = 1;
  page.step = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  EXPECT_EQ(view->Read(copy_, 2500)->step(), int64_t{1} << 62);  // differences are taken of it
  page.step_began_ns = ~uint64_t{0};
  page.step = static_cast<uint64_t>(int64_t{-5});
  page.tokens_per_second = Bits(-std::numeric_limits<double>::infinity());
  Put(page.collective, "a\x1b[31mb\nc");
  Put(page.unit, std::string(Page::kTextBytes, 'x'));  // without an end
  own = view->Read(copy_, 2500);
  EXPECT_EQ(own->step(), -1);
  EXPECT_EQ(own->tokens_per_second(), 0);
  EXPECT_EQ(own->collective(), "a?[31mb?c");
  EXPECT_EQ(own->unit(), std::string(Page::kTextBytes, 'x'));
}

TEST_F(VitalsPageTest, ATextThatIsBeingChangedIsLeftOut) {
  const auto view = VitalsView::Make(path_);
  ASSERT_TRUE(view.ok()) << view.status();
  Page& page = Worker();
  page.version = Page::kVersion;
  page.collective_began_ns = 1;
  Put(page.collective, "torn");
  page.text_lock = 7;  // its writer was killed
  const auto own = view->Read(copy_, 2500);
  ASSERT_TRUE(own.has_value());
  EXPECT_EQ(own->collective(), "");
  EXPECT_EQ(own->collective_age_ns(), 2499);
}

TEST_F(VitalsPageTest, TextsAreReadWholeWhileTheyChange) {
  const auto view = VitalsView::Make(path_);
  ASSERT_TRUE(view.ok()) << view.status();
  Page& page = Worker();
  page.version = Page::kVersion;
  page.collective_began_ns = 1;
  std::atomic<bool> is_over{false};
  std::thread writer([&] {
    for (int i = 0; !is_over; ++i) {
      const std::string text(90, i % 2 == 0 ? 'a' : 'b');
      page.text_lock.fetch_add(1, std::memory_order_relaxed);
      std::atomic_thread_fence(std::memory_order_release);
      Put(page.collective, text);
      Put(page.unit, text);
      page.text_lock.fetch_add(1, std::memory_order_release);
      std::this_thread::sleep_for(std::chrono::microseconds(i % 50));
    }
  });
  int whole = 0;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (whole < 500 && std::chrono::steady_clock::now() < deadline) {
    const auto own = view->Read(copy_, 2500);
    EXPECT_EQ(own->collective(), own->unit());
    EXPECT_EQ(own->unit().find_first_not_of(own->unit().substr(0, 1)), std::string::npos);
    whole += own->unit().empty() ? 0 : 1;
  }
  is_over = true;
  writer.join();
  EXPECT_EQ(whole, 500);
}

/// A load from there would be SIGBUS.
TEST_F(VitalsPageTest, AFileThatWasCutEndsNobody) {
  const auto view = VitalsView::Make(path_);
  ASSERT_TRUE(view.ok()) << view.status();
  Worker().version = Page::kVersion;
  ASSERT_TRUE(view->Read(copy_, 1).has_value());
  ASSERT_EQ(::truncate(path_.c_str(), 0), 0);
  EXPECT_FALSE(view->Read(copy_, 1).has_value());
}

TEST_F(VitalsPageTest, AnotherAgentOpensThePageAsItIs) {
  ASSERT_TRUE(VitalsView::Make(path_).ok());
  Worker().version = Page::kVersion;
  Worker().tokens = 5;
  const auto again = VitalsView::Open(path_);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->Read(copy_, 1)->tokens(), 5);
  // A new life has a new page, whatever is still mapped of the old one.
  const auto fresh = VitalsView::Make(path_);
  ASSERT_TRUE(fresh.ok()) << fresh.status();
  EXPECT_FALSE(fresh->Read(copy_, 1).has_value());
}

TEST_F(VitalsPageTest, WhatIsNoPageIsNotOpened) {
  EXPECT_FALSE(VitalsView::Open(folder_ + "/none").ok());
  EXPECT_FALSE(VitalsView::Open(folder_).ok());
  EXPECT_FALSE(VitalsView::Make(folder_ + "/none/3.0").ok());
  ASSERT_EQ(::symlink("/dev/zero", path_.c_str()), 0);
  EXPECT_FALSE(VitalsView::Open(path_).ok());
  EXPECT_TRUE(VitalsView::Make(path_).ok());  // in its place
  ASSERT_EQ(::truncate(path_.c_str(), 100), 0);
  EXPECT_FALSE(VitalsView::Open(path_).ok());
}

}  // namespace
}  // namespace fsdprun
