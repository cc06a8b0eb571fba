#include "fsdp_runtime/src/optim/step_counters.h"

#include <optional>

namespace fsdp {

std::vector<size_t> split_counters(std::vector<size_t>& counter_of,
                                   const std::vector<uint8_t>& takes_part, size_t counters) {
  std::vector<uint8_t> rests(counters, 0);  // by counter, 1 if a parameter does not take part
  for (size_t i = 0; i < counter_of.size(); ++i) {
    if (takes_part[i] == 0) {
      rests[counter_of[i]] = 1;
    }
  }
  std::vector<size_t> copied_from;
  std::vector<std::optional<size_t>> copies(counters);
  for (size_t i = 0; i < counter_of.size(); ++i) {
    const size_t counter = counter_of[i];
    if (takes_part[i] == 0 || rests[counter] == 0) {
      continue;
    }
    if (!copies[counter]) {
      copies[counter] = counters + copied_from.size();
      copied_from.push_back(counter);
    }
    counter_of[i] = *copies[counter];
  }
  return copied_from;
}

}  // namespace fsdp
