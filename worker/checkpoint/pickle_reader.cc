#include "worker/checkpoint/pickle_reader.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "worker/checkpoint/pickle_input.h"
#include "worker/checkpoint/pickle_machine.h"

namespace fsdprun::worker::checkpoint {
namespace {

constexpr size_t kInputBytesMax = size_t{256} << 20;

/// Reads the opcodes of one stream and executes them on the machine.
class PickleReader {
 public:
  PickleReader(std::string_view input, std::span<const PickleGlobal> allowed,
               const std::string& what)
      : input_(input, what), machine_(input_, allowed) {}

  PickleTree Run() {
    if (input_.size() > kInputBytesMax) {
      input_.Fail("is larger than the bound of " + std::to_string(kInputBytesMax) + " bytes");
    }
    while (!stopped_) {
      Step(static_cast<uint8_t>(input_.Take(1)[0]));
    }
    PickleTree tree = machine_.Finish();
    if (input_.left() != 0) {
      input_.Fail("has bytes after its end");
    }
    return tree;
  }

 private:
  void PushInt(int64_t value) { machine_.Push(PickleKind::kInt).integer = value; }
  void PushText(PickleKind kind, std::string_view text) { machine_.Push(kind).text = text; }
  void PushItems(PickleKind kind, std::vector<uint32_t> items) {
    machine_.Push(kind).items = std::move(items);
  }

  void Long(size_t byte_count) {
    const std::string_view bytes = input_.Take(byte_count);
    const bool is_negative = byte_count > 0 && (static_cast<uint8_t>(bytes.back()) & 0x80) != 0;
    if (byte_count > 9 || (byte_count == 9 && bytes.back() != 0)) {
      input_.Fail("has an integer of more than 64 bits");
    }
    uint64_t value = is_negative ? ~uint64_t{0} : 0;
    for (size_t i = 0; i < std::min<size_t>(byte_count, 8); ++i) {
      value &= ~(uint64_t{0xff} << (8 * i));
      value |= static_cast<uint64_t>(static_cast<uint8_t>(bytes[i])) << (8 * i);
    }
    const bool is_large = byte_count == 9 && (value >> 63) != 0;
    machine_.Push(is_large ? PickleKind::kUInt : PickleKind::kInt).integer =
        static_cast<int64_t>(value);
  }

  void BinFloat() {
    const std::string_view bytes = input_.Take(8);
    uint64_t bits = 0;
    for (const char byte : bytes) {
      bits = (bits << 8) | static_cast<uint8_t>(byte);
    }
    machine_.Push(PickleKind::kFloat).real = std::bit_cast<double>(bits);
  }

  void Protocol() {
    const uint64_t version = input_.TakeUnsigned(1);
    if (version < 2 || version > 5 || input_.position() != 2) {
      input_.Fail("has protocol " + std::to_string(version) + "; 2 to 5 are read");
    }
  }

  void Frame() {
    const uint64_t byte_count = input_.TakeUnsigned(8);
    if (byte_count > input_.left()) {
      input_.Fail("ends too early");
    }
  }

  void Step(uint8_t opcode) {
    if (input_.position() == 1 && opcode != 0x80) {
      input_.Fail("does not start with a protocol number");
    }
    if (!StepScalar(opcode) && !StepContainer(opcode)) {
      input_.Fail("has the opcode " + std::to_string(opcode) + ", which a checkpoint does not use");
    }
  }

  /// Opcodes that push one value from the stream.
  bool StepScalar(uint8_t opcode) {
    switch (opcode) {
      case 'N':
        machine_.Push(PickleKind::kNone);
        return true;
      case 0x88:
      case 0x89:
        machine_.Push(PickleKind::kBool).integer = opcode == 0x88;
        return true;
      case 'K':
        PushInt(static_cast<int64_t>(input_.TakeUnsigned(1)));
        return true;
      case 'M':
        PushInt(static_cast<int64_t>(input_.TakeUnsigned(2)));
        return true;
      case 'J':
        PushInt(static_cast<int32_t>(static_cast<uint32_t>(input_.TakeUnsigned(4))));
        return true;
      case 0x8a:
        Long(input_.TakeUnsigned(1));
        return true;
      case 'G':
        BinFloat();
        return true;
      case 'X':
        PushText(PickleKind::kString, input_.TakeText(input_.TakeUnsigned(4)));
        return true;
      case 0x8c:
        PushText(PickleKind::kString, input_.TakeText(input_.TakeUnsigned(1)));
        return true;
      case 0x8d:
        PushText(PickleKind::kString, input_.TakeText(input_.TakeUnsigned(8)));
        return true;
      case 'B':
        PushText(PickleKind::kBytes, input_.TakeText(input_.TakeUnsigned(4)));
        return true;
      case 'C':
        PushText(PickleKind::kBytes, input_.TakeText(input_.TakeUnsigned(1)));
        return true;
      case 'c': {
        const std::string_view module = input_.TakeLine();
        machine_.Global(module, input_.TakeLine());
        return true;
      }
      default:
        return false;
    }
  }

  /// Opcodes that work on the stack, the marks and the memo.
  bool StepContainer(uint8_t opcode) {
    switch (opcode) {
      case 0x80:
        Protocol();
        return true;
      case 0x95:
        Frame();
        return true;
      case '.':
        stopped_ = true;
        return true;
      case '(':
        machine_.Mark();
        return true;
      case ')':
        machine_.Push(PickleKind::kTuple);
        return true;
      case ']':
        machine_.Push(PickleKind::kList);
        return true;
      case '}':
        machine_.Push(PickleKind::kDict);
        return true;
      case 't':
        PushItems(PickleKind::kTuple, machine_.PopToMark());
        return true;
      case 0x85:
      case 0x86:
      case 0x87:
        PushItems(PickleKind::kTuple, machine_.PopCount(opcode - 0x84u));
        return true;
      case 'a':
        machine_.Extend(PickleKind::kList, machine_.PopCount(1));
        return true;
      case 'e':
        machine_.Extend(PickleKind::kList, machine_.PopToMark());
        return true;
      case 's':
        machine_.Extend(PickleKind::kDict, machine_.PopCount(2));
        return true;
      case 'u':
        machine_.Extend(PickleKind::kDict, machine_.PopToMark());
        return true;
      default:
        return StepObject(opcode);
    }
  }

  /// Opcodes of objects and of the memo.
  bool StepObject(uint8_t opcode) {
    switch (opcode) {
      case 0x93:
        machine_.StackGlobal();
        return true;
      case 'R':
        machine_.Call(PickleKind::kReduce);
        return true;
      case 0x81:
        machine_.Call(PickleKind::kObject);
        return true;
      case 'b':
        machine_.Build();
        return true;
      case 'Q':
        PushItems(PickleKind::kPersistentId, {machine_.Pop()});
        return true;
      case 0x94:
        machine_.PutNext();
        return true;
      case 'q':
        machine_.Put(input_.TakeUnsigned(1));
        return true;
      case 'r':
        machine_.Put(input_.TakeUnsigned(4));
        return true;
      case 'h':
        machine_.Get(input_.TakeUnsigned(1));
        return true;
      case 'j':
        machine_.Get(input_.TakeUnsigned(4));
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

const char* KindName(PickleKind kind) {
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

PickleTree ReadPickle(std::string_view input, std::span<const PickleGlobal> allowed,
                      const std::string& what) {
  return PickleReader(input, allowed, what).Run();
}

}  // namespace fsdprun::worker::checkpoint
