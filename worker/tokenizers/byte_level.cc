#include "worker/tokenizers/byte_level.h"

#include <array>
#include <cstdint>

#include "worker/tokenizers/utf8.h"

namespace fsdprun::worker {
namespace {

// Above what is printable in Latin-1 come the other bytes, in their order.
constexpr uint32_t kCodePoints = 256 + 68;

struct ByteTable {
  std::array<uint16_t, 256> code_point_of{};
  std::array<int16_t, kCodePoints> byte_of{};
};

constexpr bool IsPrintable(uint32_t byte) {
  return (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
}

constexpr ByteTable MakeByteTable() {
  ByteTable table;
  for (int16_t& byte : table.byte_of) {
    byte = -1;
  }
  uint32_t next = 256;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    const uint32_t code_point = IsPrintable(byte) ? byte : next++;
    table.code_point_of[byte] = static_cast<uint16_t>(code_point);
    table.byte_of[code_point] = static_cast<int16_t>(byte);
  }
  return table;
}

constexpr ByteTable kByteTable = MakeByteTable();

}  // namespace

std::optional<std::string> BytesOfToken(std::string_view token) {
  std::string bytes;
  while (!token.empty()) {
    const Utf8Character character = FirstCharacter(token);
    if (character.code_point >= kCodePoints || kByteTable.byte_of[character.code_point] < 0) {
      return std::nullopt;
    }
    bytes += static_cast<char>(kByteTable.byte_of[character.code_point]);
    token.remove_prefix(character.byte_count);
  }
  return bytes;
}

std::string TokenOfBytes(std::string_view bytes) {
  std::string token;
  for (const char c : bytes) {
    const uint16_t code_point = kByteTable.code_point_of[static_cast<unsigned char>(c)];
    if (code_point < 0x80) {
      token += static_cast<char>(code_point);
    } else {
      token += static_cast<char>(0xc0 | (code_point >> 6));
      token += static_cast<char>(0x80 | (code_point & 0x3f));
    }
  }
  return token;
}

}  // namespace fsdprun::worker
