#include "fsdp_runtime/src/engine/guard_pages.h"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <mutex>
#include <string_view>

namespace fsdp {
namespace {

constexpr std::string_view kExplanation =
    "fsdp: a parameter or gradient was read or written that is sharded now, and not gathered. The "
    "whole of it is there only while its unit runs. Call the unit in place of module->forward(), "
    "unshard() it, or use sharded_parameters() or full_parameter().\n";

struct Reservation {
  std::atomic<uintptr_t> begin{0};
  std::atomic<uintptr_t> end{0};
};

// Each is at least twice as large as the one before, so that there are never more than fit the
// address space. Read by the handler, hence atomic and never taken back.
std::array<Reservation, 40> reservations;
struct sigaction action_before;

bool is_guarded(uintptr_t address) {
  return std::any_of(reservations.begin(), reservations.end(), [&](const Reservation& each) {
    return each.begin <= address && address < each.end;
  });
}

// The instruction that faulted runs again when this returns, and faults for who was there before.
void explain_fault(int /*signal*/, siginfo_t* info, void* /*context*/) {
  if (is_guarded(reinterpret_cast<uintptr_t>(info->si_addr))) {
    (void)!::write(STDERR_FILENO, kExplanation.data(), kExplanation.size());
  }
  ::sigaction(SIGSEGV, &action_before, nullptr);
  if (info->si_code <= 0) {
    ::raise(SIGSEGV);  // It was sent: no instruction runs again.
  }
}

void explain_faults() {
  struct sigaction action {};
  action.sa_sigaction = explain_fault;
  // A stack that overflowed is no room for a handler.
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  ::sigemptyset(&action.sa_mask);
  ::sigaction(SIGSEGV, &action, &action_before);
}

}  // namespace

void* guarded_address(int64_t bytes) {
  static std::mutex mutex;
  static size_t count = 0;
  static void* address = nullptr;
  static int64_t reserved = 0;
  std::lock_guard<std::mutex> lock(mutex);
  if (bytes <= reserved) {
    return address;
  }
  // Doubling limits the number of outgrown reservations, which storages may still point to.
  const int64_t wanted = std::max({bytes, 2 * reserved, int64_t{1} << 30});
  void* mapped = ::mmap(nullptr, static_cast<size_t>(wanted), PROT_NONE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) {
    return nullptr;
  }
  if (count == 0) {
    explain_faults();
  }
  Reservation& reservation = reservations[count++ % reservations.size()];
  reservation.end = reinterpret_cast<uintptr_t>(mapped) + static_cast<uintptr_t>(wanted);
  reservation.begin = reinterpret_cast<uintptr_t>(mapped);
  address = mapped;
  reserved = wanted;
  return address;
}

}  // namespace fsdp
