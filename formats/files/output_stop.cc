#include "formats/files/output_stop.h"

#include <atomic>
#include <cerrno>

#include "fsdp_runtime/archive/error.h"

namespace fsdprun {
namespace {

std::atomic<bool> is_stopped = false;
std::atomic<int> begun_outputs = 0;
static_assert(std::atomic<bool>::is_always_lock_free && std::atomic<int>::is_always_lock_free);

}  // namespace

bool StopOutputs() {
  is_stopped = true;
  return begun_outputs > 0;
}

BegunOutput::BegunOutput() { ++begun_outputs; }

BegunOutput::~BegunOutput() { --begun_outputs; }

bool OutputsAreStopped() { return is_stopped; }

void CheckOutputsGoOn(const std::string& action, const std::string& path) {
  if (is_stopped) {
    throw fsdp::archive::Error(
        "cannot " + action + " " + path + ": interrupted; what was written is removed", EINTR);
  }
}

}  // namespace fsdprun
