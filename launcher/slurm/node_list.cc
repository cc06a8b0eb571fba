#include "launcher/slurm/node_list.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace fsdprun {
namespace {

/// Of a host name (RFC 1035).
constexpr size_t kMaxNameBytes = 255;
/// Of the text that an error repeats.
constexpr size_t kShownBytes = 120;

// A list that is being read.
struct Reader {
  absl::string_view list;
  size_t position = 0;

  bool AtEnd() const { return position == list.size(); }
  char Next() const { return AtEnd() ? '\0' : list[position]; }
  bool Take(char wanted) {
    const bool is_there = !AtEnd() && Next() == wanted;
    position += is_there ? 1 : 0;
    return is_there;
  }
  absl::string_view TakeDigits() {
    const size_t begin = position;
    while (!AtEnd() && absl::ascii_isdigit(Next())) {
      ++position;
    }
    return list.substr(begin, position - begin);
  }
  absl::Status Error(absl::string_view expected) const {
    const absl::string_view shown = list.substr(0, kShownBytes);
    return absl::InvalidArgumentError(
        absl::StrCat("'", shown, shown.size() < list.size() ? "..." : "", "', at character ",
                     position + 1, ": ", expected));
  }
};

bool IsSeparator(char c) { return c == ',' || absl::ascii_isspace(c); }

// `7` or `01-03`, as texts: the first one's leading zeros count for all.
absl::Status ReadRange(Reader* reader, std::vector<std::string>* numbers) {
  const size_t begin = reader->position;
  const absl::string_view first = reader->TakeDigits();
  const absl::string_view last = reader->Take('-') ? reader->TakeDigits() : first;
  uint64_t low = 0;
  uint64_t high = 0;
  if (first.size() > kMaxNameBytes || !absl::SimpleAtoi(first, &low) ||
      !absl::SimpleAtoi(last, &high) || high < low) {
    reader->position = begin;
    return reader->Error("a number, or a range from a lower one to a higher one, belongs here");
  }
  if (high - low >= kMaxSlurmNames - std::min(numbers->size(), kMaxSlurmNames)) {
    reader->position = begin;
    return reader->Error(absl::StrCat("no list has more than ", kMaxSlurmNames, " names"));
  }
  for (uint64_t number = low;; ++number) {
    const std::string text = absl::StrCat(number);
    const size_t zeros = first.size() > text.size() ? first.size() - text.size() : 0;
    numbers->push_back(absl::StrCat(std::string(zeros, '0'), text));
    if (number == high) {
      return absl::OkStatus();
    }
  }
}

// What stands between `[` and `]`.
absl::StatusOr<std::vector<std::string>> ReadBracket(Reader* reader) {
  std::vector<std::string> numbers;
  do {
    RETURN_IF_ERROR(ReadRange(reader, &numbers));
  } while (reader->Take(','));
  if (!reader->Take(']')) {
    return reader->Error("',' or ']' belongs here");
  }
  return numbers;
}

// A piece of a name: its texts are the numbers of a bracket, or the one between two brackets.
struct Piece {
  bool is_bracket = false;
  std::vector<std::string> texts;
};

absl::StatusOr<Piece> ReadPiece(Reader* reader) {
  Piece piece{.is_bracket = reader->Take('[')};
  if (piece.is_bracket) {
    ASSIGN_OR_RETURN(piece.texts, ReadBracket(reader));
    return piece;
  }
  const size_t begin = reader->position;
  const size_t end = reader->list.find_first_of("[], \t\n\v\f\r", begin);
  if (end == begin) {
    return reader->Error("this bracket was not opened");
  }
  piece.texts.emplace_back(reader->list.substr(begin, end - begin));
  reader->position = std::min(end, reader->list.size());
  return piece;
}

// Slurm counts the last bracket first, then the others from the left.
std::vector<std::string> Combine(const std::vector<Piece>& pieces) {
  size_t last = pieces.size();
  for (size_t index = 0; index < pieces.size(); ++index) {
    last = pieces[index].is_bracket ? index : last;
  }
  std::vector<std::string> names{""};
  for (size_t index = 0; index < pieces.size(); ++index) {
    const std::vector<std::string>& texts = pieces[index].texts;
    std::vector<std::string> longer;
    longer.reserve(names.size() * texts.size());
    for (size_t n = 0; n < names.size() * texts.size(); ++n) {
      longer.push_back(index == last
                           ? absl::StrCat(names[n / texts.size()], texts[n % texts.size()])
                           : absl::StrCat(names[n % names.size()], texts[n / names.size()]));
    }
    names = std::move(longer);
  }
  return names;
}

// `a[1-2]b[3]`: all names of one element. `room`: how many there may be.
absl::StatusOr<std::vector<std::string>> ReadElement(Reader* reader, size_t room) {
  std::vector<Piece> pieces;
  size_t count = 1;
  size_t bytes = 0;
  while (!reader->AtEnd() && !IsSeparator(reader->Next())) {
    ASSIGN_OR_RETURN(Piece piece, ReadPiece(reader));
    count *= piece.texts.size();
    bytes += piece.texts.back().size();
    if (count > room) {
      return reader->Error(absl::StrCat("no list has more than ", kMaxSlurmNames, " names"));
    }
    if (bytes > kMaxNameBytes) {
      return reader->Error(absl::StrCat("no name has more than ", kMaxNameBytes, " characters"));
    }
    pieces.push_back(std::move(piece));
  }
  return Combine(pieces);
}

absl::Status ReadCount(Reader* reader, std::vector<int>* counts) {
  const size_t begin = reader->position;
  int count = 0;
  int times = 1;
  bool is_right = absl::SimpleAtoi(reader->TakeDigits(), &count);
  if (is_right && reader->Take('(')) {
    is_right = reader->Take('x') && absl::SimpleAtoi(reader->TakeDigits(), &times) && times >= 1 &&
               reader->Take(')');
  }
  if (!is_right) {
    reader->position = begin;
    return reader->Error("a number, or one as 2(x3) for three nodes, belongs here");
  }
  if (static_cast<size_t>(times) > kMaxSlurmNames - counts->size()) {
    reader->position = begin;
    return reader->Error(absl::StrCat("no list is of more than ", kMaxSlurmNames, " nodes"));
  }
  counts->insert(counts->end(), static_cast<size_t>(times), count);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<std::string>> ExpandNodeList(absl::string_view list) {
  Reader reader{list};
  std::vector<std::string> names;
  while (!reader.AtEnd()) {
    if (IsSeparator(reader.Next())) {
      ++reader.position;
      continue;
    }
    ASSIGN_OR_RETURN(const std::vector<std::string> more,
                     ReadElement(&reader, kMaxSlurmNames - names.size()));
    names.insert(names.end(), more.begin(), more.end());
  }
  return names;
}

absl::StatusOr<std::vector<int>> ExpandCounts(absl::string_view list) {
  Reader reader{list};
  std::vector<int> counts;
  do {
    RETURN_IF_ERROR(ReadCount(&reader, &counts));
  } while (reader.Take(','));
  if (!reader.AtEnd()) {
    return reader.Error("',' belongs here");
  }
  return counts;
}

}  // namespace fsdprun
