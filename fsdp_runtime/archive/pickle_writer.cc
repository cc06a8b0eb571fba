#include "fsdp_runtime/archive/pickle_writer.h"

#include <bit>
#include <limits>
#include <utility>

#include "fsdp_runtime/archive/error.h"

namespace fsdp::archive {

void PickleWriter::little_endian(uint64_t value, int byte_count) {
  for (int i = 0; i < byte_count; ++i) {
    out_ += static_cast<char>(value >> (8 * i));
  }
}

void PickleWriter::integer(int64_t value) {
  if (value >= 0 && value <= 0xff) {
    out_ += 'K';
    little_endian(static_cast<uint64_t>(value), 1);
  } else if (value >= std::numeric_limits<int32_t>::min() &&
             value <= std::numeric_limits<int32_t>::max()) {
    out_ += 'J';
    little_endian(static_cast<uint64_t>(value), 4);
  } else {
    out_ += '\x8a';
    out_ += '\x08';
    little_endian(static_cast<uint64_t>(value), 8);
  }
}

void PickleWriter::unsigned_integer(uint64_t value) {
  if (value <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
    integer(static_cast<int64_t>(value));
    return;
  }
  // LONG1 is two's complement: a ninth byte keeps the number positive.
  out_ += '\x8a';
  out_ += '\x09';
  little_endian(value, 8);
  little_endian(0, 1);
}

void PickleWriter::real(double value) {
  out_ += 'G';
  const auto bits = std::bit_cast<uint64_t>(value);
  for (int i = 7; i >= 0; --i) {
    out_ += static_cast<char>(bits >> (8 * i));
  }
}

void PickleWriter::string(std::string_view text) {
  if (text.size() > std::numeric_limits<uint32_t>::max()) {
    throw Error("cannot pickle a string of " + std::to_string(text.size()) +
                " bytes: protocol 2 ends at 4 GiB");
  }
  out_ += 'X';
  little_endian(text.size(), 4);
  out_ += text;
}

void PickleWriter::global(std::string_view module, std::string_view name) {
  out_ += 'c';
  out_ += module;
  out_ += '\n';
  out_ += name;
  out_ += '\n';
}

std::string PickleWriter::finish() {
  out_ += '.';
  return std::move(out_);
}

}  // namespace fsdp::archive
