#include "launcher/ssh/node_hello.h"

#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace fsdprun {
namespace {

constexpr absl::string_view kHelloWord = "fsdprun-node-is-here";
constexpr size_t kHelloWords = 3;

}  // namespace

std::string NodeHello(const BuildInfo& build) {
  return absl::StrCat(kHelloWord, " ", build.protocol, " ", build.release, "\n");
}

std::optional<BuildInfo> ReadNodeHello(absl::string_view line) {
  const std::vector<absl::string_view> words = absl::StrSplit(line, ' ');
  BuildInfo build;
  if (words.size() != kHelloWords || words[0] != kHelloWord ||
      !absl::SimpleAtoi(words[1], &build.protocol)) {
    return std::nullopt;
  }
  build.release = std::string(words[2]);
  return build;
}

std::string FramedOrder(absl::string_view order) { return absl::StrCat(order.size(), "\n", order); }

std::optional<size_t> ReadOrderSize(absl::string_view line) {
  size_t size = 0;
  const bool is_number = !line.empty() &&
                         absl::ascii_isdigit(static_cast<unsigned char>(line[0])) &&
                         absl::SimpleAtoi(line, &size);
  return is_number && size <= kLargestSshOrder ? std::optional(size) : std::nullopt;
}

}  // namespace fsdprun
