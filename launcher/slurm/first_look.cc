#include "launcher/slurm/first_look.h"

#include <chrono>
#include <cstdint>

namespace fsdprun {
namespace {

/// A job that is over by then has no limit to look after.
constexpr Duration kEarliestLook = std::chrono::seconds(2);
/// Over so long the launchers are spread; a time limit is a minute at least.
constexpr Duration kLookSpread = std::chrono::seconds(10);
constexpr uint64_t kSpreadSteps = 10'000;
/// Of FNV-1a.
constexpr uint64_t kHashBasis = 0xcbf29ce484222325;
constexpr uint64_t kHashPrime = 0x100000001b3;

uint64_t HashOf(const std::string& text) {
  uint64_t hash = kHashBasis;
  for (const char c : text) {
    hash = (hash ^ static_cast<unsigned char>(c)) * kHashPrime;
  }
  return hash;
}

}  // namespace

Duration FirstLook(const std::string& job, const Environment& environment) {
  std::string place = job;
  for (const char* name : {"SLURM_STEP_ID", "SLURM_PROCID"}) {
    const auto found = environment.find(name);
    place += ".";
    place += found == environment.end() ? "" : found->second;
  }
  const auto step = static_cast<int64_t>(HashOf(place) % kSpreadSteps);
  return kEarliestLook + kLookSpread / static_cast<int64_t>(kSpreadSteps) * step;
}

}  // namespace fsdprun
