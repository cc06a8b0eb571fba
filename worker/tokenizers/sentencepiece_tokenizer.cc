#include <dlfcn.h>

#include <filesystem>
#include <system_error>
#include <utility>

#include "worker/tokenizers/sentencepiece/library.h"
#include "worker/tokenizers/sentencepiece_check.h"
#include "worker/tokenizers/tokenizer.h"

namespace fsdprun::worker {
namespace {

// The library counts in int, and a character takes it some ten bytes of work.
constexpr size_t kMaxPieceTextBytes = size_t{256} << 20;
constexpr int kLargestPieceCount = 1 << 24;

// The runtimes of sanitizers must come first; no test that is built with them has both libraries.
#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define FSDPRUN_IS_SANITIZED
#endif
#elif defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define FSDPRUN_IS_SANITIZED
#endif
#ifdef FSDPRUN_IS_SANITIZED
constexpr int kHowToLoad = RTLD_NOW | RTLD_LOCAL;
#else
constexpr int kHowToLoad = RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND;
#endif

/// In a folder of builds, and where the program says that its libraries are.
void* LoadSentencePiece() {
  std::error_code error;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
  const std::filesystem::path beside =
      program.parent_path().parent_path() / "lib" / kSentencePieceFile;
  if (!error && std::filesystem::exists(beside, error)) {
    return dlopen(beside.c_str(), kHowToLoad);
  }
  return dlopen(kSentencePieceFile, kHowToLoad);
}

const SentencePieceLibrary& LoadLibrary() {
  void* const loaded = LoadSentencePiece();
  const auto entry =
      loaded == nullptr
          ? nullptr
          : reinterpret_cast<GetSentencePieceLibrary>(dlsym(loaded, kSentencePieceEntry));
  if (entry == nullptr) {
    const char* cause = dlerror();
    throw ConfigError(std::string("cannot load SentencePiece: ") +
                      (cause != nullptr ? cause : "it is another version") +
                      "; install fsdp-train with its libraries, and libsentencepiece0");
  }
  return *entry();
}

/// Loaded once, and never unloaded.
const SentencePieceLibrary& Library() {
  static const SentencePieceLibrary& library = LoadLibrary();
  return library;
}

void AppendText(void* context, const char* bytes, size_t count) {
  static_cast<std::string*>(context)->append(bytes, count);
}

/// What a call fills, or why it does not.
struct PieceIds {
  std::vector<uint32_t>* ids;
  std::string error;
};

void AppendIds(void* context, const int* ids, size_t count) {
  auto& target = *static_cast<PieceIds*>(context)->ids;
  target.insert(target.end(), ids, ids + count);
}

void AppendError(void* context, const char* bytes, size_t count) {
  static_cast<PieceIds*>(context)->error.append(bytes, count);
}

class SentencePieceTokenizer : public Tokenizer {
 public:
  SentencePieceTokenizer(void* model, TokenizerIdentity identity)
      : Tokenizer(Library().piece_count(model), std::move(identity)), model_(model) {}
  ~SentencePieceTokenizer() override { Library().close(model_); }

  void Encode(std::string_view text, SpecialTokens special,
              std::vector<uint32_t>& ids) const override {
    CheckIsUtf8(text);
    if (text.size() > kMaxPieceTextBytes) {
      throw ConfigError("the text has " + std::to_string(text.size()) +
                        " bytes; SentencePiece takes at most " +
                        std::to_string(kMaxPieceTextBytes) + " at once: divide it");
    }
    if (special == SpecialTokens::kAdded && Library().bos_id(model_) >= 0) {
      ids.push_back(static_cast<uint32_t>(Library().bos_id(model_)));
    }
    PieceIds pieces{&ids, ""};
    if (!Library().encode(model_, text.data(), text.size(), &pieces, AppendIds, AppendError)) {
      throw ConfigError("SentencePiece cannot encode the text: " + pieces.error);
    }
  }

  std::string Decode(const std::vector<uint32_t>& ids) const override {
    CheckIds(ids);
    const std::vector<int> numbers(ids.begin(), ids.end());
    std::string text;
    if (!Library().decode(model_, numbers.data(), numbers.size(), &text, AppendText, AppendText)) {
      throw ConfigError("SentencePiece cannot decode ids: " + text);
    }
    return text;
  }

  std::optional<uint32_t> FindToken(std::string_view token) const override {
    return IdOrNone(Library().find(model_, token.data(), token.size()));
  }
  std::optional<uint32_t> document_end() const override {
    return IdOrNone(Library().eos_id(model_));
  }

 private:
  static std::optional<uint32_t> IdOrNone(int id) {
    return id >= 0 ? std::optional(static_cast<uint32_t>(id)) : std::nullopt;
  }

  void* model_;
};

}  // namespace

std::unique_ptr<const Tokenizer> MakeSentencePieceTokenizer(std::string_view content,
                                                            const std::string& source) {
  CheckSentencePieceModel(content, source);
  std::string error = "it is empty";
  if (!content.empty()) {
    error.clear();
    if (void* const model = Library().open(content.data(), content.size(), &error, AppendText)) {
      auto tokenizer = std::make_unique<const SentencePieceTokenizer>(
          model, IdentityOf("sentencepiece", content));
      if (tokenizer->vocab_size() > 0 && tokenizer->vocab_size() <= kLargestPieceCount) {
        return tokenizer;
      }
      error = "it has " + std::to_string(tokenizer->vocab_size()) + " pieces";
    }
  }
  throw ConfigError(source + ": not a model of SentencePiece: " + error);
}

}  // namespace fsdprun::worker
