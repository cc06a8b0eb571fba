#include "formats/tokens/megatron_index.h"

#include <array>
#include <cstring>
#include <limits>
#include <string_view>

#include "formats/tokens/number_array.h"

namespace fsdprun {
namespace {

using std::to_string;

constexpr std::string_view kMegatronMagic{"MMIDIDX\0\0", 9};
constexpr std::string_view kLegacyMagic{"TNTIDX\0\0", 8};
constexpr int64_t kIndexVersionOffset = 9;
constexpr int64_t kDtypeOffset = 17;
constexpr int64_t kSequencesOffset = 18;
constexpr int64_t kDocumentsOffset = 26;
constexpr int64_t kIndexHeaderBytes = 34;
/// Of a sequence: int32 length, int64 pointer.
constexpr int64_t kSequenceBytes = 12;
constexpr char kAgain[] = "; make the data set again";

uint64_t NumberAt(const std::array<char, kIndexHeaderBytes>& head, int64_t offset) {
  uint64_t number = 0;
  std::memcpy(&number, head.data() + offset, sizeof number);
  return number;
}

TokenDtype DtypeOf(uint8_t code, const std::string& source) {
  switch (code) {
    case 1:
      return TokenDtype::kUint8;
    case 2:
      return TokenDtype::kInt8;
    case 3:
      return TokenDtype::kInt16;
    case 4:
      return TokenDtype::kInt32;
    case 5:
      return TokenDtype::kInt64;
    case 8:
      return TokenDtype::kUint16;
    default:
      throw ConfigError(source + ": dtype code = " + to_string(int{code}) + " at offset " +
                        to_string(kDtypeOffset) +
                        ": expected one of integers, 1 to 5 or 8; tokens are integers");
  }
}

/// Counts and the places of the three arrays.
struct Layout {
  TokenDtype dtype = TokenDtype::kUint16;
  int64_t sequences = 0;
  int64_t documents = 0;

  int64_t pointers() const { return kIndexHeaderBytes + 4 * sequences; }
  int64_t document_indices() const { return kIndexHeaderBytes + kSequenceBytes * sequences; }
  int64_t end() const { return document_indices() + 8 * documents; }
};

void CheckMagic(const std::array<char, kIndexHeaderBytes>& head, const std::string& source) {
  const std::string_view text(head.data(), head.size());
  if (text.starts_with(kLegacyMagic)) {
    throw ConfigError(source +
                      ": an index of Megatron's older format (TNTIDX), which has no pointers of "
                      "sequences; make the data set again with a newer Megatron-LM");
  }
  if (!text.starts_with(kMegatronMagic)) {
    throw ConfigError(source +
                      ": not an index of Megatron-LM, which begins with MMIDIDX at offset 0");
  }
}

Layout ReadLayout(const fsdp::archive::ByteSource& file, const std::string& source) {
  const int64_t size = file.size();
  if (size < kIndexHeaderBytes) {
    throw ConfigError(source + ": truncated: " + to_string(size) +
                      " bytes are too few for an index of Megatron-LM");
  }
  std::array<char, kIndexHeaderBytes> head{};
  file.read(0, head.data(), kIndexHeaderBytes);
  CheckMagic(head, source);
  if (NumberAt(head, kIndexVersionOffset) != 1) {
    throw ConfigError(source + ": version = " + to_string(NumberAt(head, kIndexVersionOffset)) +
                      " at offset " + to_string(kIndexVersionOffset) + ": expected 1");
  }
  Layout layout{DtypeOf(static_cast<uint8_t>(head[kDtypeOffset]), source), 0, 0};
  const uint64_t sequences = NumberAt(head, kSequencesOffset);
  const uint64_t documents = NumberAt(head, kDocumentsOffset);
  const auto room = static_cast<uint64_t>(size - kIndexHeaderBytes);
  if (sequences > room / kSequenceBytes) {
    throw ConfigError(source + ": sequence_count = " + to_string(sequences) + " at offset " +
                      to_string(kSequencesOffset) + ": a file of " + to_string(size) +
                      " bytes has no room for so many; it was cut short" + kAgain);
  }
  if (documents > (room - sequences * kSequenceBytes) / 8) {
    throw ConfigError(source + ": document_count = " + to_string(documents) + " at offset " +
                      to_string(kDocumentsOffset) + ": a file of " + to_string(size) +
                      " bytes has no room for so many; it was cut short" + kAgain);
  }
  layout.sequences = static_cast<int64_t>(sequences);
  layout.documents = static_cast<int64_t>(documents);
  // A mode of one byte for each sequence may follow.
  const int64_t rest = size - layout.end();
  if (rest != 0 && rest != layout.sequences) {
    throw ConfigError(source + ": " + to_string(size) + " bytes, where its counts at offset " +
                      to_string(kSequencesOffset) + " need " + to_string(layout.end()) + " or " +
                      to_string(layout.end() + layout.sequences) + kAgain);
  }
  return layout;
}

/// The documents' array, as the sequences are gone through.
class Documents {
 public:
  Documents(const fsdp::archive::ByteSource& file, const Layout& layout, const std::string& source,
            std::vector<int64_t>* ends)
      : numbers_(file, layout.document_indices(), layout.documents),
        count_(layout.documents),
        source_(source),
        ends_(ends) {
    Advance(0, 0);
  }

  /// The sequences before `sequence` have `tokens` tokens.
  void Reach(int64_t sequence, int64_t tokens) {
    while (next_ == sequence) {
      End(tokens);
      Advance(sequence, sequence);
    }
  }
  /// There are `sequences` sequences.
  void Finish(int64_t sequences, int64_t tokens) {
    Reach(sequences, tokens);
    if (next_ >= 0) {
      Refuse("expected at most the number of sequences, " + to_string(sequences));
    }
    End(tokens);
  }

 private:
  void End(int64_t tokens) {
    if (ends_ != nullptr && tokens > (ends_->empty() ? 0 : ends_->back())) {
      ends_->push_back(tokens);
    }
  }
  void Advance(int64_t low, int64_t first) {
    if (numbers_.position() == count_) {
      next_ = -1;
      return;
    }
    next_ = numbers_.Next();
    if (next_ < low || (numbers_.position() == 1 && next_ != first)) {
      Refuse(numbers_.position() == 1 ? "expected 0" : "expected at least the one before");
    }
  }
  [[noreturn]] void Refuse(const std::string& why) const {
    throw ConfigError(source_ + ": " + numbers_.Describe("document_indices", next_) + ": " + why +
                      kAgain);
  }

  NumberArray<int64_t> numbers_;
  const int64_t count_;
  const std::string& source_;
  std::vector<int64_t>* const ends_;
  /// The sequence with which the next document begins; -1: there is none.
  int64_t next_ = -1;
};

}  // namespace

MegatronIndex ReadMegatronIndex(const fsdp::archive::ByteSource& file, const std::string& source,
                                bool wants_documents) {
  const Layout layout = ReadLayout(file, source);
  const int64_t token_bytes = TokenBytes(layout.dtype);
  MegatronIndex index{layout.dtype, 0, {}};
  NumberArray<int32_t> lengths(file, kIndexHeaderBytes, layout.sequences);
  NumberArray<int64_t> pointers(file, layout.pointers(), layout.sequences);
  Documents documents(file, layout, source, wants_documents ? &index.document_ends : nullptr);
  for (int64_t i = 0; i < layout.sequences; ++i) {
    documents.Reach(i, index.tokens);
    const int64_t pointer = pointers.Next();
    if (pointer != index.tokens * token_bytes) {
      throw ConfigError(source + ": " + pointers.Describe("sequence_pointers", pointer) +
                        ": expected " + to_string(index.tokens * token_bytes) +
                        ", where the sequence before it ends" + kAgain);
    }
    const int32_t length = lengths.Next();
    if (length < 0) {
      throw ConfigError(source + ": " + lengths.Describe("sequence_lengths", length) +
                        ": expected a number of tokens" + kAgain);
    }
    // At most 2^31 for each 12 bytes of the file: the sum cannot overflow.
    index.tokens += length;
  }
  if (index.tokens > std::numeric_limits<int64_t>::max() / token_bytes) {
    throw ConfigError(source + ": its sequences have " + to_string(index.tokens) +
                      " tokens, more than a file can hold" + kAgain);
  }
  documents.Finish(layout.sequences, index.tokens);
  return index;
}

}  // namespace fsdprun
