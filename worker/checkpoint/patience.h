#pragma once

#include <functional>
#include <string>

#include "formats/checkpoint/file_system.h"
#include "worker/checkpoint/checkpoint.h"
#include "worker/checkpoint/exchange.h"

namespace fsdprun::checkpoint {

// Note [Faults of reading]
// A file system that is out of reach for a moment, or memory that is short, says nothing against a
// checkpoint: to take the older one would do its steps again. So it is tried again, and then the
// process ends, whose next start tries once more. Only EIO that stays is damage: a broken sector
// stays for ever, while the older checkpoint may be good.
constexpr int kReadAttemptsMax = 3;

/// Between the attempts; no event tells when a fault has passed.
void PauseAfterFault(int attempt);

/// What `read` returns; it is called again after what may pass, which `warn` is told.
template <typename Read>
auto ReadPatiently(const std::function<void(const std::string&)>& warn, const Read& read) {
  for (int attempt = 1;; ++attempt) {
    try {
      return read();
    } catch (const CheckpointError& error) {
      if (attempt == kReadAttemptsMax || !MayPass(error.error_number())) {
        throw;
      }
      warn(std::string(error.what()) + "; trying again");
    }
    PauseAfterFault(attempt);
  }
}

/// The same on all ranks, where `read` throws alike on all, or on none. Collective if `read` is.
template <typename Read>
auto ReadPatiently(const Group& group, const Read& read) {
  const std::function<void(const std::string&)> warn = [&group](const std::string& text) {
    EmitWarning(group, text);
  };
  return ReadPatiently(warn, read);
}

}  // namespace fsdprun::checkpoint
