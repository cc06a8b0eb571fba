#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace fsdprun::worker::checkpoint {

/// Emits Python pickle protocol 2, opcode by opcode, without a memo: what Python's unpickler and
/// torch.load(weights_only=True) read. The caller is responsible for a balanced stack.
class PickleWriter {
 public:
  PickleWriter() : out_("\x80\x02", 2) {}

  void None() { out_ += 'N'; }
  void Bool(bool value) { out_ += value ? '\x88' : '\x89'; }
  void Int(int64_t value);
  void UInt(uint64_t value);
  void Float(double value);
  void String(std::string_view text);
  /// Pushes the Python object `module.name`, e.g. ("torch", "float32").
  void Global(std::string_view module, std::string_view name);
  void EmptyTuple() { out_ += ')'; }
  void EmptyList() { out_ += ']'; }
  void EmptyDict() { out_ += '}'; }
  /// Starts the items of the next Tuple, Appends or SetItems.
  void Mark() { out_ += '('; }
  void Tuple() { out_ += 't'; }
  /// Appends the items since Mark to the list below it.
  void Appends() { out_ += 'e'; }
  /// Puts the keys and values since Mark into the dict below it.
  void SetItems() { out_ += 'u'; }
  /// callable, argument tuple -> result.
  void Reduce() { out_ += 'R'; }
  /// class, argument tuple -> object.
  void NewObject() { out_ += '\x81'; }
  /// object, state -> object.
  void Build() { out_ += 'b'; }
  /// id -> the object the reader finds under this persistent id (torch: a storage).
  void PersistentId() { out_ += 'Q'; }

  /// Ends the stream and returns it. No other method may be called afterwards.
  std::string Finish();

 private:
  void LittleEndian(uint64_t value, int byte_count);

  std::string out_;
};

}  // namespace fsdprun::worker::checkpoint
