#include "worker/checkpoint/patience.h"

#include <poll.h>

namespace fsdprun::checkpoint {
namespace {

constexpr int kPauseMs = 500;

}  // namespace

void PauseAfterFault(int attempt) { ::poll(nullptr, 0, attempt * kPauseMs); }

}  // namespace fsdprun::checkpoint
