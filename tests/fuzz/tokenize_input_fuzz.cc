// Input of `fsdp-train tokenize`. The first byte says which: 'g' a gzip file, 'z' one of zstd, 'l'
// lines, 'j' a line of JSON with the key "text", 'u' a text that need not be UTF-8. What is read
// does not depend on how much is read at once; a line of JSON is read as a strict parser reads it,
// where that accepts it.

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "formats/json/strict_json.h"
#include "tests/fuzz/fuzz_support.h"
#include "worker/tokenize/byte_stream.h"
#include "worker/tokenize/document_reader.h"
#include "worker/tokenize/json_line.h"
#include "worker/tokenizers/utf8.h"

namespace fsdprun::worker {
namespace {

// A few bytes can stand for gigabytes.
constexpr size_t kMostContent = size_t{4} << 10;
// Of zstd: one of 128 MiB is allocated as a whole.
constexpr int kLargestWindowLog = 22;

/// Bytes in memory, so many at once.
class MemoryStream : public ByteStream {
 public:
  MemoryStream(std::string_view bytes, size_t most) : bytes_(bytes), most_(most) {}

  size_t Read(char* out, size_t capacity) override {
    const size_t count = std::min({capacity, most_, bytes_.size() - at_});
    std::copy_n(bytes_.data() + at_, count, out);
    at_ += count;
    return count;
  }
  int64_t file_bytes_read() const override { return static_cast<int64_t>(at_); }

 private:
  std::string_view bytes_;
  size_t most_;
  size_t at_ = 0;
};

/// Calls `read`; false if it throws the documented exception.
template <class Read>
bool IsAccepted(Read&& read) {
  try {
    read();
    return true;
  } catch (const ConfigError& error) {
    FSDPRUN_CHECK(fuzz::IsOneLine(error.what()), "error message is not one line");
    return false;
  }
}

struct Content {
  std::string bytes;
  bool is_whole = false;
  bool is_good = true;
};

Content ContentOf(std::string_view file, const std::string& name, size_t most, size_t capacity) {
  Content content;
  content.is_good = IsAccepted([&] {
    const auto stream = Decompressed(std::make_unique<MemoryStream>(file, most), name);
    std::string part(capacity, '\0');
    while (content.bytes.size() < kMostContent && !content.is_whole) {
      const size_t count = stream->Read(part.data(), part.size());
      FSDPRUN_CHECK(count <= part.size(), "more than there is room for");
      content.bytes.append(part, 0, count);
      content.is_whole = count == 0;
    }
  });
  return content;
}

void FuzzCompressed(std::string_view file, const std::string& name) {
  const Content at_once = ContentOf(file, name, file.size() + 1, kMostContent);
  const Content in_pieces = ContentOf(file, name, 3, 7);
  const size_t both = std::min(at_once.bytes.size(), in_pieces.bytes.size());
  FSDPRUN_CHECK(at_once.bytes.substr(0, both) == in_pieces.bytes.substr(0, both),
                "the content depends on the size of a read");
  if (at_once.is_whole || in_pieces.is_whole) {
    FSDPRUN_CHECK(
        at_once.is_whole == in_pieces.is_whole && at_once.bytes.size() == in_pieces.bytes.size(),
        "the end depends on the size of a read");
  }
}

bool HasLargeWindow(std::string_view file) {
  constexpr std::string_view kMagic = "\x28\xb5\x2f\xfd";
  for (size_t at = file.find(kMagic); at != std::string_view::npos;
       at = file.find(kMagic, at + 1)) {
    const std::string_view head = file.substr(at + kMagic.size());
    const bool is_single_segment = !head.empty() && (head[0] & 0x20) != 0;
    // One segment is as large as its content, whose size stands there in up to eight bytes.
    const bool is_large = is_single_segment
                              ? (static_cast<unsigned char>(head[0]) >> 6) > 1
                              : head.size() > 1 && (static_cast<unsigned char>(head[1]) >> 3) + 10 >
                                                       kLargestWindowLog;
    if (is_large) {
      return true;
    }
  }
  return false;
}

std::vector<std::string> LinesOf(std::string_view file, size_t most, size_t read_bytes) {
  ReadOptions options;
  options.format = InputFormat::kLines;
  options.read_bytes = read_bytes;
  options.open = [&](const std::string&) { return std::make_unique<MemoryStream>(file, most); };
  // A file whose size nobody knows.
  DocumentReader reader({"/dev/null"}, options);
  std::vector<std::string> lines;
  RawDocuments documents;
  while (reader.Next(documents)) {
    FSDPRUN_CHECK(documents.first_line == static_cast<int64_t>(lines.size()) + 1,
                  "lines are counted wrongly");
    lines.insert(lines.end(), documents.texts.begin(), documents.texts.end());
  }
  return lines;
}

void FuzzLines(std::string_view file) {
  std::vector<std::string> expected;
  for (std::string_view rest = file; !rest.empty();) {
    const size_t end = std::min(rest.find('\n'), rest.size());
    std::string_view line = rest.substr(0, end);
    line.remove_suffix(line.ends_with('\r') ? 1 : 0);
    expected.emplace_back(line);
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  FSDPRUN_CHECK(LinesOf(file, file.size() + 1, 4096) == expected, "other lines");
  FSDPRUN_CHECK(LinesOf(file, 2, 3) == expected, "lines depend on the size of a read");
}

/// What a strict parser says of the line: whether it accepts it, and the text, if it has one.
bool ReadStrictly(std::string_view line, std::optional<std::string>& text) {
  return IsAccepted([&] {
    const Json document = ParseStrictJson(line, "in:1");
    if (!document.is_object() || !document.contains("text")) {
      return;
    }
    const Json& value = document["text"];
    if (value.is_string()) {
      text = value.get<std::string>();
    } else if (value.is_null()) {
      text = "";
    }
  });
}

void FuzzJsonLine(std::string_view line) {
  std::optional<std::string> expected;
  const bool is_strict = ReadStrictly(line, expected);
  JsonLineText read;
  JsonLineText replaced;
  bool is_read = false;
  bool is_replaced = false;
  {
    const fuzz::MemoryBound bound((1 << 20) + 64 * line.size());
    is_read = IsAccepted([&] { read = ReadJsonLine(line, "text", false, "in:1"); });
    is_replaced = IsAccepted([&] { replaced = ReadJsonLine(line, "text", true, "in:1"); });
  }
  FSDPRUN_CHECK(!is_strict || is_read == expected.has_value(), "a line of JSON is read otherwise");
  FSDPRUN_CHECK(!is_strict || !is_read || read.text == *expected, "another text");
  FSDPRUN_CHECK(!is_read || (is_replaced && replaced.text == read.text && !replaced.is_replaced),
                "what needs nothing in its place gets it");
  FSDPRUN_CHECK(ValidUtf8Bytes(replaced.text) == replaced.text.size(), "a text that is not UTF-8");
}

void FuzzUtf8(std::string_view text) {
  const size_t valid = ValidUtf8Bytes(text);
  const std::string replaced = ReplaceInvalidUtf8(text);
  FSDPRUN_CHECK(ValidUtf8Bytes(replaced) == replaced.size(), "what is made is not UTF-8");
  FSDPRUN_CHECK(replaced.substr(0, valid) == text.substr(0, valid), "what is valid was changed");
  FSDPRUN_CHECK((replaced == text) == (valid == text.size()), "something else was replaced");
}

}  // namespace
}  // namespace fsdprun::worker

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace fsdprun::worker;  // NOLINT(google-build-using-namespace)
  const std::string_view input = fsdprun::fuzz::AsText(data, size);
  if (input.empty()) {
    return 0;
  }
  const std::string_view file = input.substr(1);
  switch (input.front()) {
    case 'g':
      FuzzCompressed(file, "a.gz");
      break;
    case 'z':
      if (!HasLargeWindow(file)) {
        FuzzCompressed(file, "a.zst");
      }
      break;
    case 'l':
      FuzzLines(file);
      break;
    case 'j':
      FuzzJsonLine(file);
      break;
    case 'u':
      FuzzUtf8(file);
      break;
    default:
      break;
  }
  return 0;
}
