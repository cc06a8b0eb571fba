#include <c10/util/Exception.h>
#include <fsdp/activation_checkpoint.h>

#include <algorithm>
#include <utility>

namespace fsdp {

std::function<bool(const std::string&)> keep_results_of(std::vector<std::string> ops) {
  return [ops = std::move(ops)](const std::string& op) {
    return std::find(ops.begin(), ops.end(), op) != ops.end();
  };
}

namespace detail {

void refuse_result_of_reentrant() {
  TORCH_CHECK(false,
              "activation_checkpoint: use_reentrant needs a body that returns one tensor; "
              "leave it false for other results");
}

}  // namespace detail
}  // namespace fsdp
