#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>

#include "fsdpctl/doctor/checks/amounts.h"
#include "fsdpctl/doctor/checks/checks.h"
#include "tests/unit/fsdpctl/doctor/checks/finding_of.h"

namespace fsdprun::doctor {
namespace {

using ::testing::HasSubstr;

FolderFacts Shm(uint64_t total, uint64_t free) {
  return {.path = "/dev/shm", .is_writable = true, .type = "tmpfs", .total = total, .free = free};
}

FolderFacts Disk(const std::string& path) {
  return {.path = path,
          .is_writable = true,
          .type = "ext",
          .total = 100 * kGib,
          .free = 50 * kGib,
          .files_total = 1'000'000,
          .files_free = 900'000};
}

StorageFacts UsualFolders() {
  return {.temporary = Disk("/tmp"),
          .runtime = Disk("/run/user/1"),
          .runtime_path = "/run/user/1/fsdprun"};
}

TEST(CheckSharedMemoryTest, DockersIsTooSmall) {
  const std::vector<Finding> findings = CheckSharedMemory({.folder = Shm(64 * kMib, 64 * kMib)});
  const Finding shm = FindingOf(findings, "dev_shm");
  EXPECT_EQ(shm.severity, Severity::kProblem);
  EXPECT_THAT(shm.found, HasSubstr("64 MiB"));
  EXPECT_THAT(shm.what_to_do, HasSubstr("docker run --shm-size=8g"));
}

TEST(CheckSharedMemoryTest, SizeAndWhatIsFree) {
  const auto severity = [](const FolderFacts& folder) {
    return SeverityOf(CheckSharedMemory({.folder = folder}), "dev_shm");
  };
  EXPECT_EQ(severity(Shm(8 * kGib, 8 * kGib)), Severity::kOk);
  EXPECT_EQ(severity(Shm(512 * kMib, 512 * kMib)), Severity::kWarning);
  EXPECT_EQ(severity(Shm(8 * kGib, 100 * kMib)), Severity::kWarning);
  FolderFacts folder = Shm(8 * kGib, 8 * kGib);
  folder.type = "ext";
  EXPECT_EQ(severity(folder), Severity::kWarning);
  folder = Shm(8 * kGib, 8 * kGib);
  folder.is_writable = false;
  EXPECT_EQ(severity(folder), Severity::kProblem);
  EXPECT_EQ(severity({.path = "/dev/shm", .error = ENOENT}), Severity::kProblem);
}

TEST(CheckSharedMemoryTest, MemoryFiles) {
  const SharedMemoryFacts facts{.folder = Shm(8 * kGib, 8 * kGib), .memfd_error = EPERM};
  EXPECT_EQ(SeverityOf(CheckSharedMemory(facts), "memfd"), Severity::kProblem);
}

TEST(CheckStorageTest, UsualFoldersAreFine) {
  EXPECT_EQ(WorstOf(CheckStorage(UsualFolders())), Severity::kOk);
}

TEST(CheckStorageTest, WhatKeepsAFolderFromBeingUsed) {
  StorageFacts facts = UsualFolders();
  const auto severity = [&facts](const FolderFacts& folder) {
    facts.temporary = folder;
    ExpectAdvice(CheckStorage(facts));
    return SeverityOf(CheckStorage(facts), "temporary");
  };
  EXPECT_EQ(severity({.path = "/scratch", .error = ENOENT}), Severity::kProblem);
  EXPECT_EQ(severity({.path = "/scratch", .hangs = true}), Severity::kProblem);
  FolderFacts folder = Disk("/tmp");
  folder.is_writable = false;
  EXPECT_EQ(severity(folder), Severity::kProblem);
  folder = Disk("/tmp");
  folder.free = 500 * kMib;
  EXPECT_EQ(severity(folder), Severity::kWarning);
  folder.free = kMib;
  EXPECT_EQ(severity(folder), Severity::kProblem);
  folder = Disk("/tmp");
  folder.files_free = 10;
  EXPECT_EQ(severity(folder), Severity::kWarning);
  folder.files_free = 0;
  EXPECT_EQ(severity(folder), Severity::kProblem);
  folder.files_total = 0;  // No such limit.
  EXPECT_EQ(severity(folder), Severity::kOk);
}

TEST(CheckStorageTest, LogsThatWillBeMade) {
  StorageFacts facts = UsualFolders();
  facts.logs = Disk("/shared/logs/run");
  facts.logs->made_in = "/shared";
  const Finding logs = FindingOf(CheckStorage(facts), "logs");
  EXPECT_EQ(logs.severity, Severity::kOk);
  EXPECT_THAT(logs.found, HasSubstr("/shared/logs/run, to be made in /shared, has 50 GiB free"));
  facts.logs->is_writable = false;
  EXPECT_EQ(SeverityOf(CheckStorage(facts), "logs"), Severity::kProblem);
}

TEST(CheckStorageTest, LogsOnANetworkFileSystemAreANote) {
  StorageFacts facts = UsualFolders();
  facts.logs = Disk("/shared/logs");
  facts.logs->type = "nfs";
  facts.logs->is_network = true;
  const Finding logs = FindingOf(CheckStorage(facts), "logs");
  EXPECT_EQ(logs.severity, Severity::kNote);
  EXPECT_THAT(logs.found, HasSubstr("nfs"));
}

TEST(CheckStorageTest, PrivateFolder) {
  StorageFacts facts = UsualFolders();
  facts.runtime = {.path = "/run/user/1", .error = ENOENT};
  const Finding gone = FindingOf(CheckStorage(facts), "runtime");
  EXPECT_EQ(gone.severity, Severity::kWarning);
  EXPECT_THAT(gone.what_to_do, HasSubstr("XDG_RUNTIME_DIR"));
  facts = UsualFolders();
  facts.runtime_exists = true;
  EXPECT_EQ(SeverityOf(CheckStorage(facts), "runtime"), Severity::kWarning);
  facts.runtime_is_private = true;
  EXPECT_EQ(SeverityOf(CheckStorage(facts), "runtime"), Severity::kOk);
}

TEST(CheckProcessesTest, WhatTheKeeperNeeds) {
  EXPECT_EQ(WorstOf(CheckProcesses({})), Severity::kOk);
  const std::vector<Finding> findings =
      CheckProcesses({.has_proc = false, .pidfd_error = ENOSYS, .subreaper_error = EPERM});
  ExpectAdvice(findings);
  EXPECT_EQ(SeverityOf(findings, "proc"), Severity::kProblem);
  EXPECT_EQ(SeverityOf(findings, "pidfd"), Severity::kProblem);
  EXPECT_EQ(SeverityOf(findings, "subreaper"), Severity::kProblem);
}

TEST(CheckProcessesTest, TracingByYama) {
  const auto severity = [](int scope, bool may_trace) {
    return SeverityOf(CheckProcesses({.ptrace_scope = scope, .may_trace = may_trace}), "ptrace");
  };
  EXPECT_EQ(severity(0, false), Severity::kOk);
  EXPECT_EQ(severity(1, false), Severity::kNote);
  EXPECT_EQ(severity(2, true), Severity::kOk);
  EXPECT_EQ(severity(3, true), Severity::kNote);
}

}  // namespace
}  // namespace fsdprun::doctor
