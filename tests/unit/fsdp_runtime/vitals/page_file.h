#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <string>

#include "proto/worker_vitals.h"

namespace fsdp::testing {

/// The file that an agent makes for a worker, as the agent sees it.
class PageFile {
 public:
  using Page = fsdprun::contract::VitalsPage;

  PageFile() {
    const int fd = ::mkstemp(path_.data());
    EXPECT_GE(fd, 0);
    EXPECT_EQ(::ftruncate(fd, Page::kBytes), 0);
    page_ = static_cast<Page*>(
        ::mmap(nullptr, Page::kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
    EXPECT_NE(static_cast<void*>(page_), MAP_FAILED);
    ::close(fd);
  }
  ~PageFile() {
    ::munmap(page_, Page::kBytes);
    ::unlink(path_.c_str());
  }
  PageFile(const PageFile&) = delete;
  PageFile& operator=(const PageFile&) = delete;

  const char* path() const { return path_.c_str(); }
  Page& page() const { return *page_; }
  static std::string text(const Page::Text& words) {
    std::array<char, Page::kTextBytes> bytes{};
    for (size_t i = 0; i < words.size(); ++i) {
      const uint64_t word = words[i].load();
      std::memcpy(bytes.data() + i * sizeof(word), &word, sizeof(word));
    }
    return std::string(bytes.data(), ::strnlen(bytes.data(), bytes.size()));
  }

 private:
  std::string path_ = ::testing::TempDir() + "page_XXXXXX";
  Page* page_ = nullptr;
};

}  // namespace fsdp::testing
