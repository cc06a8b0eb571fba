#include "fsdp_runtime/vitals/own_vitals.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <limits>

#include "proto/worker_contract.h"

namespace fsdp {
namespace {

using fsdprun::contract::VitalsPage;

VitalsPage* map(const char* path) {
  const int fd = ::open(path, O_RDWR | O_CLOEXEC | O_NOCTTY | O_NONBLOCK | O_NOFOLLOW);
  if (fd < 0) {
    return nullptr;
  }
  struct stat info {};
  void* data = MAP_FAILED;
  if (::fstat(fd, &info) == 0 && S_ISREG(info.st_mode) &&
      info.st_size >= static_cast<off_t>(VitalsPage::kBytes)) {
    data = ::mmap(nullptr, VitalsPage::kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  }
  ::close(fd);
  return data == MAP_FAILED ? nullptr : static_cast<VitalsPage*>(data);
}

bool has_ended(uint64_t pid) {
  return pid == 0 || pid > static_cast<uint64_t>(std::numeric_limits<pid_t>::max()) ||
         (::kill(static_cast<pid_t>(pid), 0) != 0 && errno == ESRCH);
}

/// Every word but `version` and `pid`.
void clear(VitalsPage& page) {
  for (VitalsPage::Word* word = &page.step; word != reinterpret_cast<VitalsPage::Word*>(&page + 1);
       ++word) {
    word->store(0, std::memory_order_relaxed);
  }
}

/// False: it is another process's, or of another layout.
bool claim(VitalsPage& page) {
  const uint64_t version = page.version.load(std::memory_order_acquire);
  if (version != 0 && version != VitalsPage::kVersion) {
    return false;
  }
  const auto own = static_cast<uint64_t>(::getpid());
  uint64_t owner = page.pid.load(std::memory_order_acquire);
  if (owner == own) {
    return true;  // another part of this process has claimed it
  }
  if (!has_ended(owner) ||
      !page.pid.compare_exchange_strong(owner, own, std::memory_order_acq_rel)) {
    return false;
  }
  clear(page);
  page.version.store(VitalsPage::kVersion, std::memory_order_release);
  return true;
}

}  // namespace

VitalsMapping::VitalsMapping(const char* path) {
  VitalsPage* const page = path == nullptr || *path == '\0' ? nullptr : map(path);
  if (page != nullptr && !claim(*page)) {
    ::munmap(page, VitalsPage::kBytes);
    return;
  }
  page_ = page;
}

VitalsMapping::~VitalsMapping() {
  if (page_ != nullptr) {
    ::munmap(page_, VitalsPage::kBytes);
  }
}

VitalsPage* own_vitals() {
  // Never unmapped: threads write until the process ends.
  static const VitalsMapping& mapping =
      *new VitalsMapping(std::getenv(fsdprun::contract::kEnvVitalsFile));
  return mapping.page();
}

}  // namespace fsdp
