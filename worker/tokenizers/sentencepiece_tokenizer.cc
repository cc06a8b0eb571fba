#include <sentencepiece_processor.h>

#include <utility>

#include "worker/tokenizers/tokenizer.h"

namespace fsdprun::worker {
namespace {

// The library counts in int, and a character takes it some ten bytes of work.
constexpr size_t kMaxPieceTextBytes = size_t{256} << 20;
constexpr int kLargestPieceCount = 1 << 24;

class SentencePieceTokenizer : public Tokenizer {
 public:
  SentencePieceTokenizer(std::unique_ptr<sentencepiece::SentencePieceProcessor> processor,
                         TokenizerIdentity identity)
      : Tokenizer(processor->GetPieceSize(), std::move(identity)),
        processor_(std::move(processor)) {}

  void Encode(std::string_view text, SpecialTokens special,
              std::vector<uint32_t>& ids) const override {
    CheckIsUtf8(text);
    if (text.size() > kMaxPieceTextBytes) {
      throw ConfigError("the text has " + std::to_string(text.size()) +
                        " bytes; SentencePiece takes at most " +
                        std::to_string(kMaxPieceTextBytes) + " at once: divide it");
    }
    std::vector<int> pieces;
    const sentencepiece::util::Status status = processor_->Encode(text, &pieces);
    if (!status.ok()) {
      throw ConfigError(std::string("SentencePiece cannot encode the text: ") +
                        status.error_message());
    }
    if (special == SpecialTokens::kAdded && processor_->bos_id() >= 0) {
      ids.push_back(static_cast<uint32_t>(processor_->bos_id()));
    }
    ids.insert(ids.end(), pieces.begin(), pieces.end());
  }

  std::string Decode(const std::vector<uint32_t>& ids) const override {
    CheckIds(ids);
    std::string text;
    const sentencepiece::util::Status status =
        processor_->Decode(std::vector<int>(ids.begin(), ids.end()), &text);
    if (!status.ok()) {
      throw ConfigError(std::string("SentencePiece cannot decode ids: ") + status.error_message());
    }
    return text;
  }

  std::optional<uint32_t> FindToken(std::string_view token) const override {
    const int id = processor_->PieceToId(token);
    // What it does not know is the unknown piece.
    return id >= 0 && processor_->IdToPiece(id) == token ? std::optional(static_cast<uint32_t>(id))
                                                         : std::nullopt;
  }

  std::optional<uint32_t> document_end() const override {
    const int id = processor_->eos_id();
    return id >= 0 ? std::optional(static_cast<uint32_t>(id)) : std::nullopt;
  }

 private:
  std::unique_ptr<const sentencepiece::SentencePieceProcessor> processor_;
};

}  // namespace

std::unique_ptr<const Tokenizer> MakeSentencePieceTokenizer(std::string_view content,
                                                            const std::string& source) {
  auto processor = std::make_unique<sentencepiece::SentencePieceProcessor>();
  const sentencepiece::util::Status status =
      content.empty()
          ? sentencepiece::util::Status(sentencepiece::util::StatusCode::kDataLoss, "it is empty")
          : processor->LoadFromSerializedProto(content);
  if (!status.ok()) {
    throw ConfigError(source + ": not a model of SentencePiece: " + status.error_message());
  }
  const int pieces = processor->GetPieceSize();
  if (pieces <= 0 || pieces > kLargestPieceCount) {
    throw ConfigError(source + ": a model of SentencePiece with " + std::to_string(pieces) +
                      " pieces: expected 1 to " + std::to_string(kLargestPieceCount));
  }
  return std::make_unique<const SentencePieceTokenizer>(std::move(processor),
                                                        IdentityOf("sentencepiece", content));
}

}  // namespace fsdprun::worker
