#include "worker/run/folder_tokenizers.h"

#include <system_error>

#include "formats/json/strict_json.h"
#include "worker/tokenizers/tokenizer.h"

namespace fsdprun::worker {
namespace {

constexpr size_t kMostTokenizerBytes = size_t{256} << 20;

}  // namespace

std::vector<FolderTokenizer> TokenizersIn(const std::filesystem::path& folder) {
  std::vector<FolderTokenizer> found;
  for (const char* name : {"tokenizer.json", "tokenizer.model"}) {
    const std::filesystem::path path = folder / name;
    std::error_code error;
    if (!folder.empty() && std::filesystem::is_regular_file(path, error)) {
      found.push_back({path, IdentityOf("", ReadSmallFile(path, kMostTokenizerBytes)).digest});
    }
  }
  return found;
}

}  // namespace fsdprun::worker
