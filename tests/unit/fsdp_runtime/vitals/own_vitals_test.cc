#include "fsdp_runtime/vitals/own_vitals.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "proto/worker_contract.h"
#include "tests/unit/fsdp_runtime/vitals/page_file.h"

namespace fsdp {
namespace {

using testing::PageFile;
using Page = PageFile::Page;

TEST(OwnVitalsTest, WhatIsWrittenIsSeenThroughTheFile) {
  const PageFile file;
  const VitalsMapping mapping(file.path());
  ASSERT_NE(mapping.page(), nullptr);
  EXPECT_EQ(file.page().version, Page::kVersion);
  EXPECT_EQ(file.page().pid, static_cast<uint64_t>(::getpid()));
  mapping.page()->step = 42;
  EXPECT_EQ(file.page().step, 42u);
}

TEST(OwnVitalsTest, PartsOfAProcessShareThePage) {
  const PageFile file;
  const VitalsMapping first(file.path());
  first.page()->step = 3;
  const VitalsMapping second(file.path());
  ASSERT_NE(second.page(), nullptr);
  EXPECT_EQ(second.page()->step, 3u);
}

TEST(OwnVitalsTest, WhatIsNoPageIsLeftAlone) {
  EXPECT_EQ(VitalsMapping(nullptr).page(), nullptr);
  EXPECT_EQ(VitalsMapping("").page(), nullptr);
  EXPECT_EQ(VitalsMapping("/none/at/all").page(), nullptr);
  EXPECT_EQ(VitalsMapping("/dev/zero").page(), nullptr);
  EXPECT_EQ(VitalsMapping("/tmp").page(), nullptr);
  const PageFile file;
  const std::string link = std::string(file.path()) + ".link";
  ASSERT_EQ(::symlink(file.path(), link.c_str()), 0);
  EXPECT_EQ(VitalsMapping(link.c_str()).page(), nullptr);
  ::unlink(link.c_str());
  const std::string fifo = std::string(file.path()) + ".fifo";
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  EXPECT_EQ(VitalsMapping(fifo.c_str()).page(), nullptr);  // and nobody is waited for
  ::unlink(fifo.c_str());
  ASSERT_EQ(::truncate(file.path(), Page::kBytes - 1), 0);
  EXPECT_EQ(VitalsMapping(file.path()).page(), nullptr);
}

TEST(OwnVitalsTest, APageOfAnotherVersionIsLeftAlone) {
  const PageFile file;
  file.page().version = Page::kVersion + 1;
  EXPECT_EQ(VitalsMapping(file.path()).page(), nullptr);
  EXPECT_EQ(file.page().pid, 0u);
}

TEST(OwnVitalsTest, APageOfAProcessThatLivesIsLeftAlone) {
  const PageFile file;
  file.page().version = Page::kVersion;
  file.page().pid = static_cast<uint64_t>(::getppid());
  EXPECT_EQ(VitalsMapping(file.path()).page(), nullptr);
  EXPECT_EQ(file.page().pid, static_cast<uint64_t>(::getppid()));
}

TEST(OwnVitalsTest, APageOfAProcessThatHasEndedIsTakenOverWithoutItsWords) {
  const PageFile file;
  const pid_t child = ::fork();
  if (child == 0) {
    const VitalsMapping mapping(file.path());
    mapping.page()->collectives_begun = 7;
    mapping.page()->device_peak_bytes = 8;
    ::_exit(0);
  }
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  ASSERT_EQ(file.page().collectives_begun, 7u);
  const VitalsMapping mapping(file.path());
  ASSERT_NE(mapping.page(), nullptr);
  EXPECT_EQ(file.page().pid, static_cast<uint64_t>(::getpid()));
  EXPECT_EQ(file.page().collectives_begun, 0u);
  EXPECT_EQ(file.page().device_peak_bytes, 0u);
  file.page().pid = ~uint64_t{0};  // no process's
  EXPECT_NE(VitalsMapping(file.path()).page(), nullptr);
}

TEST(OwnVitalsTest, TheVariableNamesThePage) {
  const PageFile file;
  ::setenv(fsdprun::contract::kEnvVitalsFile, file.path(), 1);
  ASSERT_NE(own_vitals(), nullptr);
  EXPECT_EQ(own_vitals(), own_vitals());
  EXPECT_EQ(file.page().version, Page::kVersion);
}

TEST(OwnVitalsTest, WithoutTheVariableThereIsNone) {
  ::unsetenv(fsdprun::contract::kEnvVitalsFile);
  EXPECT_EQ(own_vitals(), nullptr);
}

}  // namespace
}  // namespace fsdp
