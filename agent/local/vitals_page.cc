#include "agent/local/vitals_page.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <iterator>
#include <limits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "agent/output/line_format.h"
#include "base/error_text.h"

namespace fsdprun {
namespace {

using Page = contract::VitalsPage;

/// How often a text that is being changed is read again.
constexpr int kTextReads = 4;
/// More is no step, and differences of steps are taken.
constexpr int64_t kStepMax = int64_t{1} << 62;

/// What the page's words were.
class PageWords {
 public:
  bool Take(const CarefulCopy& copy, const Page* page) {
    return copy.Copy(page, sizeof(bytes_), bytes_.data());
  }
  bool TakeTexts(const CarefulCopy& copy, const Page* page);

  uint64_t At(size_t offset) const {
    uint64_t word = 0;
    std::memcpy(&word, bytes_.data() + offset, sizeof(word));
    return word;
  }
  /// 0 for what is too much for a signed number.
  int64_t Count(size_t offset) const {
    const uint64_t word = At(offset);
    return word > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())
               ? 0
               : static_cast<int64_t>(word);
  }
  /// Of a time that was, and is not 0.
  int64_t Age(size_t offset, uint64_t now_ns) const {
    const uint64_t then = At(offset);
    return then == 0 || then > now_ns ? 0 : static_cast<int64_t>(now_ns - then);
  }
  double Number(size_t offset) const {
    double number = 0;
    std::memcpy(&number, bytes_.data() + offset, sizeof(number));
    return number;
  }
  std::string Text(size_t offset) const;

 private:
  alignas(uint64_t) std::array<char, sizeof(Page)> bytes_{};
};

bool PageWords::TakeTexts(const CarefulCopy& copy, const Page* page) {
  constexpr size_t kBegin = offsetof(Page, collective);
  constexpr size_t kBytes = sizeof(Page::collective) + sizeof(Page::unit);
  static_assert(offsetof(Page, unit) == kBegin + sizeof(Page::collective));
  for (int read = 0; read < kTextReads; ++read) {
    uint64_t before = 0;
    uint64_t after = 1;
    if (!copy.Copy(&page->text_lock, sizeof(before), &before)) {
      return false;
    }
    std::atomic_thread_fence(std::memory_order_acquire);
    if (!copy.Copy(&page->collective, kBytes, bytes_.data() + kBegin)) {
      return false;
    }
    std::atomic_thread_fence(std::memory_order_acquire);
    if (copy.Copy(&page->text_lock, sizeof(after), &after) && before == after && before % 2 == 0) {
      return true;
    }
  }
  return false;
}

std::string PageWords::Text(size_t offset) const {
  const char* const begin = bytes_.data() + offset;
  std::string text = ReplaceInvalidUtf8({begin, ::strnlen(begin, Page::kTextBytes)});
  for (char& c : text) {
    const auto code = static_cast<unsigned char>(c);
    c = code < 0x20 || code == 0x7f ? '?' : c;
  }
  return text;
}

const char* PhaseName(uint64_t phase, bool is_in_collective) {
  static constexpr const char* kNames[] = {"other",      "starting", "waiting_for_data",
                                           "forward",    "backward", "optimizer",
                                           "evaluating", "saving",   "loading"};
  const bool is_told = phase > 0 && phase < std::size(kNames);
  return is_told ? kNames[phase] : is_in_collective ? "collective" : kNames[0];
}

void FillSteps(const PageWords& words, uint64_t now_ns, v1::OwnVitals* own) {
  const bool has_steps = words.At(offsetof(Page, step_began_ns)) != 0;
  const auto step = static_cast<int64_t>(words.At(offsetof(Page, step)));
  own->set_step(has_steps ? std::clamp<int64_t>(step, -1, kStepMax) : -1);
  const int64_t total = words.Count(offsetof(Page, total));
  own->set_total(total == 0 ? -1 : total);
  own->set_step_age_ns(words.Age(offsetof(Page, step_began_ns), now_ns));
  const double loss = words.Number(offsetof(Page, loss));
  const bool says_loss = words.At(offsetof(Page, loss)) != 0;
  own->set_loss(says_loss && std::isfinite(loss) ? loss : std::numeric_limits<double>::quiet_NaN());
  own->set_has_bad_loss(says_loss && !std::isfinite(loss));
  const double speed = words.Number(offsetof(Page, tokens_per_second));
  own->set_tokens_per_second(std::isfinite(speed) && speed > 0 ? speed : 0);
  own->set_tokens(words.Count(offsetof(Page, tokens)));
  own->set_step_ns(words.Count(offsetof(Page, step_ns)));
  own->set_collective_wait_ns(words.Count(offsetof(Page, collective_wait_ns)));
  own->set_data_wait_ns(words.Count(offsetof(Page, data_wait_ns)));
  own->set_save_ns(words.Count(offsetof(Page, save_ns)));
}

}  // namespace

CarefulCopy::CarefulCopy() : scratch_(::memfd_create("fsdprun-vitals", MFD_CLOEXEC)) {
  if (scratch_.valid() && ::ftruncate(scratch_.get(), kMaxBytes) == 0) {
    void* const data = ::mmap(nullptr, kMaxBytes, PROT_READ, MAP_SHARED, scratch_.get(), 0);
    data_ = data == MAP_FAILED ? nullptr : data;
  }
}

CarefulCopy::~CarefulCopy() {
  if (data_ != nullptr) {
    ::munmap(data_, kMaxBytes);
  }
}

// The kernel reads the memory, and says EFAULT.
bool CarefulCopy::Copy(const volatile void* from, size_t bytes, void* to) const {
  if (data_ == nullptr || bytes > kMaxBytes ||
      ::pwrite(scratch_.get(), const_cast<const void*>(from), bytes, 0) !=
          static_cast<ssize_t>(bytes)) {
    return false;
  }
  std::memcpy(to, data_, bytes);
  return true;
}

absl::StatusOr<VitalsView> VitalsView::Make(const std::string& path) {
  ::unlink(path.c_str());
  const UniqueFd file(
      ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file.valid()) {
    return absl::InternalError(absl::StrCat("make ", path, ": ", ErrorText(errno)));
  }
  // Not a hole: a worker would die of a disk that has no room for it.
  const std::array<char, Page::kBytes> zeros{};
  const ssize_t written = ::write(file.get(), zeros.data(), zeros.size());
  absl::StatusOr<VitalsView> view =
      written == static_cast<ssize_t>(zeros.size())
          ? Map(file.get(), path)
          : absl::InternalError(
                absl::StrCat("write ", path, ": ", ErrorText(written < 0 ? errno : ENOSPC)));
  if (!view.ok()) {
    ::unlink(path.c_str());
  }
  return view;
}

absl::StatusOr<VitalsView> VitalsView::Open(const std::string& path) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!file.valid()) {
    return absl::InternalError(absl::StrCat("open ", path, ": ", ErrorText(errno)));
  }
  return Map(file.get(), path);
}

absl::StatusOr<VitalsView> VitalsView::Map(int fd, const std::string& path) {
  struct stat info {};
  if (::fstat(fd, &info) != 0 || !S_ISREG(info.st_mode) ||
      info.st_size < static_cast<off_t>(Page::kBytes)) {
    return absl::InternalError(absl::StrCat("map ", path, ": not a worker's page"));
  }
  const void* const data = ::mmap(nullptr, Page::kBytes, PROT_READ, MAP_SHARED, fd, 0);
  if (data == MAP_FAILED) {
    return absl::InternalError(absl::StrCat("map ", path, ": ", ErrorText(errno)));
  }
  return VitalsView(static_cast<const Page*>(data));
}

VitalsView::VitalsView(VitalsView&& other) noexcept : page_(std::exchange(other.page_, nullptr)) {}

VitalsView& VitalsView::operator=(VitalsView&& other) noexcept {
  std::swap(page_, other.page_);
  return *this;
}

VitalsView::~VitalsView() {
  if (page_ != nullptr) {
    ::munmap(const_cast<Page*>(page_), Page::kBytes);
  }
}

pid_t VitalsView::Writer(const CarefulCopy& copy) const {
  uint64_t pid = 0;
  const bool is_read = page_ != nullptr && copy.Copy(&page_->pid, sizeof(pid), &pid);
  return is_read && pid <= static_cast<uint64_t>(std::numeric_limits<pid_t>::max())
             ? static_cast<pid_t>(pid)
             : 0;
}

std::optional<v1::OwnVitals> VitalsView::Read(const CarefulCopy& copy, uint64_t now_ns) const {
  PageWords words;
  if (page_ == nullptr || !words.Take(copy, page_) ||
      words.At(offsetof(Page, version)) != Page::kVersion) {
    return std::nullopt;
  }
  v1::OwnVitals own;
  FillSteps(words, now_ns, &own);
  own.set_collectives_begun(words.At(offsetof(Page, collectives_begun)));
  own.set_collectives_ended(words.At(offsetof(Page, collectives_ended)));
  const bool is_in_collective = words.At(offsetof(Page, collective_began_ns)) != 0;
  if (is_in_collective) {
    own.set_collective_age_ns(words.Age(offsetof(Page, collective_began_ns), now_ns));
    own.set_collective_bytes(words.Count(offsetof(Page, collective_bytes)));
    if (words.TakeTexts(copy, page_)) {
      own.set_collective(words.Text(offsetof(Page, collective)));
      own.set_unit(words.Text(offsetof(Page, unit)));
    }
  }
  own.set_device_bytes(words.Count(offsetof(Page, device_bytes)));
  own.set_device_peak_bytes(words.Count(offsetof(Page, device_peak_bytes)));
  own.set_phase(PhaseName(words.At(offsetof(Page, phase)), is_in_collective));
  return own;
}

}  // namespace fsdprun
