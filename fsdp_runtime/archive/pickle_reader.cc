#include "fsdp_runtime/archive/pickle_reader.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "fsdp_runtime/archive/pickle_input.h"
#include "fsdp_runtime/archive/pickle_machine.h"

namespace fsdp::archive {
namespace {

constexpr size_t kInputBytesMax = size_t{256} << 20;

/// Reads the opcodes of one stream and executes them on the machine.
class PickleReader {
 public:
  PickleReader(std::string_view input, std::span<const PickleGlobal> allowed,
               const std::string& what)
      : input_(input, what), machine_(input_, allowed) {}

  PickleTree run() {
    if (input_.size() > kInputBytesMax) {
      input_.fail("is larger than the bound of " + std::to_string(kInputBytesMax) + " bytes");
    }
    while (!stopped_) {
      step(static_cast<uint8_t>(input_.take(1)[0]));
    }
    PickleTree tree = machine_.finish();
    if (input_.left() != 0) {
      input_.fail("has bytes after its end");
    }
    return tree;
  }

 private:
  void push_int(int64_t value) { machine_.push(PickleKind::kInt).integer = value; }
  void push_text(PickleKind kind, std::string_view text) { machine_.push(kind).text = text; }
  void push_items(PickleKind kind, std::vector<uint32_t> items) {
    machine_.push(kind).items = std::move(items);
  }

  void long_integer(size_t byte_count) {
    const std::string_view bytes = input_.take(byte_count);
    const bool is_negative = byte_count > 0 && (static_cast<uint8_t>(bytes.back()) & 0x80) != 0;
    if (byte_count > 9 || (byte_count == 9 && bytes.back() != 0)) {
      input_.fail("has an integer of more than 64 bits");
    }
    uint64_t value = is_negative ? ~uint64_t{0} : 0;
    for (size_t i = 0; i < std::min<size_t>(byte_count, 8); ++i) {
      value &= ~(uint64_t{0xff} << (8 * i));
      value |= static_cast<uint64_t>(static_cast<uint8_t>(bytes[i])) << (8 * i);
    }
    const bool is_large = byte_count == 9 && (value >> 63) != 0;
    machine_.push(is_large ? PickleKind::kUInt : PickleKind::kInt).integer =
        static_cast<int64_t>(value);
  }

  void binary_float() {
    const std::string_view bytes = input_.take(8);
    uint64_t bits = 0;
    for (const char byte : bytes) {
      bits = (bits << 8) | static_cast<uint8_t>(byte);
    }
    machine_.push(PickleKind::kFloat).real = std::bit_cast<double>(bits);
  }

  void protocol() {
    const uint64_t version = input_.take_unsigned(1);
    if (version < 2 || version > 5 || input_.position() != 2) {
      input_.fail("has protocol " + std::to_string(version) + "; 2 to 5 are read");
    }
  }

  void frame() {
    const uint64_t byte_count = input_.take_unsigned(8);
    if (byte_count > input_.left()) {
      input_.fail("ends too early");
    }
  }

  void step(uint8_t opcode) {
    if (input_.position() == 1 && opcode != 0x80) {
      input_.fail("does not start with a protocol number");
    }
    if (!step_scalar(opcode) && !step_container(opcode)) {
      input_.fail("has the opcode " + std::to_string(opcode) +
                  ", which torch.save does not use for tensors "
                  "and plain data");
    }
  }

  /// Opcodes that push one value from the stream.
  bool step_scalar(uint8_t opcode) {
    switch (opcode) {
      case 'N':
        machine_.push(PickleKind::kNone);
        return true;
      case 0x88:
      case 0x89:
        machine_.push(PickleKind::kBool).integer = opcode == 0x88;
        return true;
      case 'K':
        push_int(static_cast<int64_t>(input_.take_unsigned(1)));
        return true;
      case 'M':
        push_int(static_cast<int64_t>(input_.take_unsigned(2)));
        return true;
      case 'J':
        push_int(static_cast<int32_t>(static_cast<uint32_t>(input_.take_unsigned(4))));
        return true;
      case 0x8a:
        long_integer(input_.take_unsigned(1));
        return true;
      case 'G':
        binary_float();
        return true;
      case 'X':
        push_text(PickleKind::kString, input_.take_text(input_.take_unsigned(4)));
        return true;
      case 0x8c:
        push_text(PickleKind::kString, input_.take_text(input_.take_unsigned(1)));
        return true;
      case 0x8d:
        push_text(PickleKind::kString, input_.take_text(input_.take_unsigned(8)));
        return true;
      case 'B':
        push_text(PickleKind::kBytes, input_.take_text(input_.take_unsigned(4)));
        return true;
      case 'C':
        push_text(PickleKind::kBytes, input_.take_text(input_.take_unsigned(1)));
        return true;
      case 'c': {
        const std::string_view module = input_.take_line();
        machine_.global(module, input_.take_line());
        return true;
      }
      default:
        return false;
    }
  }

  /// Opcodes that work on the stack, the marks and the memo.
  bool step_container(uint8_t opcode) {
    switch (opcode) {
      case 0x80:
        protocol();
        return true;
      case 0x95:
        frame();
        return true;
      case '.':
        stopped_ = true;
        return true;
      case '(':
        machine_.mark();
        return true;
      case ')':
        machine_.push(PickleKind::kTuple);
        return true;
      case ']':
        machine_.push(PickleKind::kList);
        return true;
      case '}':
        machine_.push(PickleKind::kDict);
        return true;
      case 't':
        push_items(PickleKind::kTuple, machine_.pop_to_mark());
        return true;
      case 0x85:
      case 0x86:
      case 0x87:
        push_items(PickleKind::kTuple, machine_.pop_count(opcode - 0x84u));
        return true;
      case 'a':
        machine_.extend(PickleKind::kList, machine_.pop_count(1));
        return true;
      case 'e':
        machine_.extend(PickleKind::kList, machine_.pop_to_mark());
        return true;
      case 's':
        machine_.extend(PickleKind::kDict, machine_.pop_count(2));
        return true;
      case 'u':
        machine_.extend(PickleKind::kDict, machine_.pop_to_mark());
        return true;
      default:
        return step_object(opcode);
    }
  }

  /// Opcodes of objects and of the memo.
  bool step_object(uint8_t opcode) {
    switch (opcode) {
      case 0x93:
        machine_.stack_global();
        return true;
      case 'R':
        machine_.call(PickleKind::kReduce);
        return true;
      case 0x81:
        machine_.call(PickleKind::kObject);
        return true;
      case 'b':
        machine_.build();
        return true;
      case 'Q':
        push_items(PickleKind::kPersistentId, {machine_.pop()});
        return true;
      case 0x94:
        machine_.put_next();
        return true;
      case 'q':
        machine_.put(input_.take_unsigned(1));
        return true;
      case 'r':
        machine_.put(input_.take_unsigned(4));
        return true;
      case 'h':
        machine_.get(input_.take_unsigned(1));
        return true;
      case 'j':
        machine_.get(input_.take_unsigned(4));
        return true;
      default:
        return false;
    }
  }

  PickleInput input_;
  PickleMachine machine_;
  bool stopped_ = false;
};

}  // namespace

const char* kind_name(PickleKind kind) {
  switch (kind) {
    case PickleKind::kNone:
      return "None";
    case PickleKind::kBool:
      return "a bool";
    case PickleKind::kInt:
    case PickleKind::kUInt:
      return "an integer";
    case PickleKind::kFloat:
      return "a float";
    case PickleKind::kString:
      return "a string";
    case PickleKind::kBytes:
      return "bytes";
    case PickleKind::kTuple:
      return "a tuple";
    case PickleKind::kList:
      return "a list";
    case PickleKind::kDict:
      return "a dict";
    case PickleKind::kGlobal:
      return "a class or function";
    case PickleKind::kReduce:
    case PickleKind::kObject:
      return "an object";
    case PickleKind::kPersistentId:
      return "a persistent id";
  }
  return "an unknown value";
}

PickleTree read_pickle(std::string_view input, std::span<const PickleGlobal> allowed,
                       const std::string& what) {
  return PickleReader(input, allowed, what).run();
}

}  // namespace fsdp::archive
