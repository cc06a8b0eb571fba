#include "worker/run/sample_tokenizer.h"

#include "worker/run/data_record.h"
#include "worker/run/folder_tokenizers.h"
#include "worker/run/run_description.h"

namespace fsdprun::worker {
namespace {

/// Of the tokenizer that has made the data; empty if nobody knows.
std::string DigestOfData(const Json& saved) {
  const auto data = saved.find("data");
  return data != saved.end() && HasDataRecord(*data) ? ParseDataRecord(*data).tokenizer : "";
}

/// Null if the folder has none with this digest.
std::unique_ptr<const Tokenizer> FindIn(const std::string& folder, const std::string& digest) {
  for (const FolderTokenizer& tokenizer : TokenizersIn(folder)) {
    if (tokenizer.digest == digest) {
      return OpenTokenizer(tokenizer.path.string());
    }
  }
  return nullptr;
}

std::unique_ptr<const Tokenizer> FindOrBytes(const std::string& digest, const Json& saved) {
  auto bytes = MakeByteTokenizer();
  if (digest.empty() || digest == bytes->identity().digest) {
    return bytes;
  }
  const std::string folder =
      HasRunDescription(saved) ? ParseRunDescription(saved).model_folder : std::string();
  auto found = FindIn(folder, digest);
  if (found == nullptr) {
    throw ConfigError("the checkpoint's model was trained on ids of a tokenizer with the digest " +
                      digest + ", which is not in " +
                      (folder.empty() ? "the model's folder" : folder) +
                      "; give it with --tokenizer FILE");
  }
  return found;
}

}  // namespace

std::unique_ptr<const Tokenizer> SampleTokenizer(const std::string& given, const Json& saved,
                                                 int64_t vocab_size) {
  const std::string digest = DigestOfData(saved);
  auto tokenizer = given.empty() ? FindOrBytes(digest, saved) : OpenTokenizer(given);
  if (!digest.empty() && tokenizer->identity().digest != digest) {
    throw ConfigError("--tokenizer " + given + ": its digest is " + tokenizer->identity().digest +
                      ", and the checkpoint's model was trained on ids of another one, with " +
                      digest + "; give that one");
  }
  if (tokenizer->vocab_size() > vocab_size) {
    throw ConfigError("the tokenizer has " + std::to_string(tokenizer->vocab_size()) +
                      " ids, and the model only " + std::to_string(vocab_size) +
                      "; give the one that it was trained with, by --tokenizer FILE");
  }
  return tokenizer;
}

}  // namespace fsdprun::worker
