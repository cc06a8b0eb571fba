#include "formats/tensors/stored_dtype.h"

#include <algorithm>

namespace fsdprun {

bool AreWeightsStoredIn(const TensorSource& source, const std::string& dtype,
                        const std::vector<std::string>& ignored_suffixes) {
  const std::map<std::string, std::string> weights = source.Weights();
  return std::all_of(weights.begin(), weights.end(), [&](const auto& weight) {
    const auto& [name, key] = weight;
    const bool is_ignored =
        std::any_of(ignored_suffixes.begin(), ignored_suffixes.end(),
                    [&of = name](const std::string& suffix) { return of.ends_with(suffix); });
    return is_ignored || source.tensors().at(key).dtype == dtype;
  });
}

}  // namespace fsdprun
