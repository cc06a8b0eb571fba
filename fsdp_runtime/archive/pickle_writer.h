#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace fsdp::archive {

/// Emits Python pickle protocol 2, opcode by opcode, without a memo: what Python's unpickler and
/// torch.load(weights_only=True) read. The caller is responsible for a balanced stack.
class PickleWriter {
 public:
  PickleWriter() : out_("\x80\x02", 2) {}

  void none() { out_ += 'N'; }
  void boolean(bool value) { out_ += value ? '\x88' : '\x89'; }
  void integer(int64_t value);
  void unsigned_integer(uint64_t value);
  void real(double value);
  void string(std::string_view text);
  /// Pushes the Python object `module.name`, e.g. ("torch", "float32").
  void global(std::string_view module, std::string_view name);
  void empty_tuple() { out_ += ')'; }
  void empty_list() { out_ += ']'; }
  void empty_dict() { out_ += '}'; }
  /// Starts the items of the next Tuple, Appends or SetItems.
  void mark() { out_ += '('; }
  void tuple() { out_ += 't'; }
  /// Appends the items since Mark to the list below it.
  void appends() { out_ += 'e'; }
  /// Puts the keys and values since Mark into the dict below it.
  void set_items() { out_ += 'u'; }
  /// callable, argument tuple -> result.
  void reduce() { out_ += 'R'; }
  /// class, argument tuple -> object.
  void new_object() { out_ += '\x81'; }
  /// object, state -> object.
  void build() { out_ += 'b'; }
  /// id -> the object the reader finds under this persistent id (torch: a storage).
  void persistent_id() { out_ += 'Q'; }

  /// Ends the stream and returns it. No other method may be called afterwards.
  std::string finish();

 private:
  void little_endian(uint64_t value, int byte_count);

  std::string out_;
};

}  // namespace fsdp::archive
