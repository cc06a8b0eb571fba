#include "fsdp_runtime/shm/private_view.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "fsdp_runtime/shm/error.h"

namespace fsdp::shm {
namespace {

// Two parts of two mappings, the second page and those that follow, filled with 1 and 2.
class PrivateViewTest : public ::testing::Test {
 protected:
  PrivateViewTest() {
    std::memset(first_.data(), 1, first_.bytes());
    std::memset(second_.data(), 2, second_.bytes());
  }

  bool shows_shared_memory() const {
    return std::all_of(view_.data(), view_.data() + kPart, [](char byte) { return byte == 1; }) &&
           std::all_of(view_.data() + kPart, view_.data() + 2 * kPart,
                       [](char byte) { return byte == 2; });
  }

  const size_t kPart = 700 * page_bytes();  // more than is looked at at once
  Mapping first_ = Mapping::create("view-test", kPart + page_bytes());
  Mapping second_ = Mapping::create("view-test", kPart + page_bytes());
  PrivateView view_ = PrivateView({{&first_, page_bytes()}, {&second_, page_bytes()}}, kPart);
  const PageMap pages_ = PageMap::of_this_process();
};

TEST_F(PrivateViewTest, PartsLieEndToEndAndFollowTheSharedMemory) {
  EXPECT_TRUE(shows_shared_memory());
  first_.data()[page_bytes()] = 5;
  second_.data()[page_bytes() + kPart - 1] = 6;
  EXPECT_EQ(view_.data()[0], 5);
  EXPECT_EQ(view_.data()[2 * kPart - 1], 6);
}

TEST_F(PrivateViewTest, WritesStayPrivateAndAreForgotten) {
  for (const bool everywhere : {true, false}) {
    for (const size_t page : {0, 1, 511, 512, 699, 700, 1398, 1399}) {
      view_.data()[page * page_bytes() + 3] = 9;
    }
    if (everywhere) {
      std::memset(view_.data(), 9, 2 * kPart);
    }
    EXPECT_EQ(first_.data()[page_bytes() + 3], 1);
    EXPECT_EQ(second_.data()[page_bytes() + 3], 2);
    EXPECT_FALSE(shows_shared_memory());
    view_.forget_writes(pages_);
    EXPECT_TRUE(shows_shared_memory());
  }
}

TEST_F(PrivateViewTest, WhereNobodyCanTellWhatWasWrittenEverythingIsDropped) {
  for (const char* file : {"/proc/self/no-such-file", "/dev/null"}) {
    std::memset(view_.data() + kPart - 7, 9, 14);
    view_.forget_writes(PageMap(Fd(::open(file, O_RDONLY | O_CLOEXEC))));
    EXPECT_TRUE(shows_shared_memory()) << file;
  }
}

// A map without copies that ends behind the first piece that is looked at.
TEST_F(PrivateViewTest, WhereTheMapEndsWhatIsBehindIsDropped) {
  std::memset(view_.data(), 9, 2 * kPart);
  Fd map(::memfd_create("map", MFD_CLOEXEC));
  const size_t known =
      reinterpret_cast<uintptr_t>(view_.data()) / page_bytes() + PageMap::kPagesMax;
  ASSERT_EQ(::ftruncate(map.get(), static_cast<off_t>(known * sizeof(uint64_t))), 0);
  view_.forget_writes(PageMap(std::move(map)));
  const char* behind = view_.data() + PageMap::kPagesMax * page_bytes();
  EXPECT_EQ(behind[-1], 9);
  EXPECT_EQ(behind[0], 1);
  EXPECT_EQ(view_.data()[2 * kPart - 1], 2);
}

TEST_F(PrivateViewTest, PageMapThatCannotBeReadSaysSo) {
  EXPECT_TRUE(pages_.is_readable());
  EXPECT_FALSE(PageMap(Fd(::open("/dev/null", O_RDONLY | O_CLOEXEC))).is_readable());
  EXPECT_FALSE(PageMap(Fd()).is_readable());
}

TEST_F(PrivateViewTest, ViewsLeaveMappingsForTheRestOfTheProcess) {
  const std::vector<PrivateView::Part> half(PrivateView::kPartsMax / 2, {&first_, 0});
  const PrivateView view(half, page_bytes());
  EXPECT_THROW(PrivateView(half, page_bytes()), Error);  // that of the fixture has two more
  EXPECT_NO_THROW(PrivateView({half.begin() + 2, half.end()}, page_bytes()));
}

// Faults would cost more than the copy that a window saves.
TEST_F(PrivateViewTest, WhatWasOnlyReadStaysMapped) {
  const auto faults_of_a_use = [this] {
    rusage before{}, after{};
    ::getrusage(RUSAGE_THREAD, &before);
    EXPECT_TRUE(shows_shared_memory());
    ::getrusage(RUSAGE_THREAD, &after);
    view_.forget_writes(pages_);
    return after.ru_minflt - before.ru_minflt;
  };
  faults_of_a_use();
  EXPECT_LT(faults_of_a_use(), 10);
}

}  // namespace
}  // namespace fsdp::shm
