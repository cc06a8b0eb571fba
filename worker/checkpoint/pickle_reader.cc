#include "worker/checkpoint/pickle_reader.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <utility>

#include "worker/checkpoint/error.h"

namespace fsdprun::worker::checkpoint {
namespace {

constexpr size_t kInputBytesMax = size_t{256} << 20;
constexpr size_t kStringBytesMax = size_t{64} << 20;
// A node takes about a hundred times the byte that may stand for it in the stream.
constexpr size_t kNodesMax = size_t{1} << 25;

std::string Printable(std::string_view text) {
  std::string out;
  for (const char c : text.substr(0, 200)) {
    out += c >= ' ' && c <= '~' ? c : '?';
  }
  return out;
}

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

/// The stack machine. One instance per stream.
class PickleReader {
 public:
  PickleReader(std::string_view input, std::span<const PickleGlobal> allowed,
               const std::string& what)
      : input_(input), allowed_(allowed), what_(what) {}

  PickleTree Run() {
    if (input_.size() > kInputBytesMax) {
      Fail("is larger than the bound of " + std::to_string(kInputBytesMax) + " bytes");
    }
    while (!stopped_) {
      Step(static_cast<uint8_t>(Take(1)[0]));
    }
    if (stack_.size() != 1 || !marks_.empty()) {
      Fail("does not end with one value");
    }
    if (position_ != input_.size()) {
      Fail("has bytes after its end");
    }
    tree_.root_ = stack_.back();
    return std::move(tree_);
  }

 private:
  [[noreturn]] void Fail(const std::string& problem) const {
    throw CheckpointError(what_ + ": the pickle " + problem + " (byte " +
                          std::to_string(position_) + " of " + std::to_string(input_.size()) + ")");
  }

  std::string_view Take(size_t byte_count) {
    if (byte_count > input_.size() - position_) {
      Fail("ends too early");
    }
    const std::string_view taken = input_.substr(position_, byte_count);
    position_ += byte_count;
    return taken;
  }

  uint64_t TakeUnsigned(int byte_count) {
    const std::string_view bytes = Take(static_cast<size_t>(byte_count));
    uint64_t value = 0;
    for (int i = 0; i < byte_count; ++i) {
      value |= static_cast<uint64_t>(static_cast<uint8_t>(bytes[i])) << (8 * i);
    }
    return value;
  }

  std::string_view TakeLine() {
    const size_t end = input_.find('\n', position_);
    if (end == std::string_view::npos) {
      Fail("ends too early");
    }
    const std::string_view line = input_.substr(position_, end - position_);
    position_ = end + 1;
    return line;
  }

  std::string_view TakeText(uint64_t byte_count) {
    if (byte_count > kStringBytesMax) {
      Fail("announces a string of " + std::to_string(byte_count) + " bytes, over the bound of " +
           std::to_string(kStringBytesMax));
    }
    return Take(byte_count);
  }

  PickleNode& Push(PickleKind kind) {
    if (tree_.nodes_.size() == kNodesMax) {
      Fail("has more than " + std::to_string(kNodesMax) + " values");
    }
    tree_.nodes_.emplace_back();
    tree_.nodes_.back().kind = kind;
    stack_.push_back(static_cast<uint32_t>(tree_.nodes_.size() - 1));
    return tree_.nodes_.back();
  }

  void PushInt(int64_t value) { Push(PickleKind::kInt).integer = value; }
  void PushText(PickleKind kind, std::string_view text) { Push(kind).text = text; }

  /// Values above the newest mark are the only ones an opcode without a mark may take.
  size_t Available() const { return stack_.size() - (marks_.empty() ? 0 : marks_.back()); }

  uint32_t Pop() {
    if (Available() == 0) {
      Fail("takes a value from an empty stack");
    }
    const uint32_t top = stack_.back();
    stack_.pop_back();
    return top;
  }

  PickleNode& Top() {
    if (Available() == 0) {
      Fail("takes a value from an empty stack");
    }
    return tree_.nodes_[stack_.back()];
  }

  std::vector<uint32_t> PopToMark() {
    if (marks_.empty()) {
      Fail("lacks a mark");
    }
    std::vector<uint32_t> items(stack_.begin() + static_cast<ptrdiff_t>(marks_.back()),
                                stack_.end());
    stack_.resize(marks_.back());
    marks_.pop_back();
    return items;
  }

  std::vector<uint32_t> PopCount(size_t count) {
    if (Available() < count) {
      Fail("takes a value from an empty stack");
    }
    std::vector<uint32_t> items(stack_.end() - static_cast<ptrdiff_t>(count), stack_.end());
    stack_.resize(stack_.size() - count);
    return items;
  }

  void Extend(PickleKind kind, const std::vector<uint32_t>& items) {
    PickleNode& target = Top();
    if (target.kind != kind || (kind == PickleKind::kDict && items.size() % 2 != 0)) {
      Fail(std::string("adds items to ") + KindName(target.kind));
    }
    target.items.insert(target.items.end(), items.begin(), items.end());
  }

  void Global(std::string_view module, std::string_view name) {
    if (std::find(allowed_.begin(), allowed_.end(), PickleGlobal{module, name}) == allowed_.end()) {
      Fail("names the Python object " + Printable(module) + "." + Printable(name) +
           ", which has no place in a checkpoint; it was not resolved, and the file is refused");
    }
    PickleNode& node = Push(PickleKind::kGlobal);
    node.text = module;
    node.name = name;
  }

  void StackGlobal() {
    const std::vector<uint32_t> names = PopCount(2);
    const PickleNode& module = tree_.at(names[0]);
    const PickleNode& name = tree_.at(names[1]);
    if (module.kind != PickleKind::kString || name.kind != PickleKind::kString) {
      Fail("has a global whose name is no string");
    }
    Global(module.text, name.text);
  }

  void Call(PickleKind kind) {
    std::vector<uint32_t> items = PopCount(2);
    const PickleNode& callable = tree_.at(items[0]);
    const PickleNode& arguments = tree_.at(items[1]);
    if (callable.kind != PickleKind::kGlobal || arguments.kind != PickleKind::kTuple) {
      Fail("calls something that is not a named function with a tuple");
    }
    if (kind == PickleKind::kReduce && callable.name == "OrderedDict" && arguments.items.empty()) {
      Push(PickleKind::kDict);  // filled by SETITEMS like a plain dict
      return;
    }
    Push(kind).items = std::move(items);
  }

  void Build() {
    const uint32_t state = Pop();
    PickleNode& target = Top();
    if ((target.kind != PickleKind::kObject && target.kind != PickleKind::kReduce) ||
        target.items.size() != 2) {
      Fail(std::string("gives a state to ") + KindName(target.kind));
    }
    target.items.push_back(state);
  }

  void Long(size_t byte_count) {
    const std::string_view bytes = Take(byte_count);
    const bool is_negative = byte_count > 0 && (static_cast<uint8_t>(bytes.back()) & 0x80) != 0;
    if (byte_count > 9 || (byte_count == 9 && bytes.back() != 0)) {
      Fail("has an integer of more than 64 bits");
    }
    uint64_t value = is_negative ? ~uint64_t{0} : 0;
    for (size_t i = 0; i < std::min<size_t>(byte_count, 8); ++i) {
      value &= ~(uint64_t{0xff} << (8 * i));
      value |= static_cast<uint64_t>(static_cast<uint8_t>(bytes[i])) << (8 * i);
    }
    const bool is_large = byte_count == 9 && (value >> 63) != 0;
    Push(is_large ? PickleKind::kUInt : PickleKind::kInt).integer = static_cast<int64_t>(value);
  }

  void Put(uint64_t index) {
    // Every memo entry costs at least one byte, so a larger index is no work of a pickler.
    if (index > input_.size()) {
      Fail("has the memo index " + std::to_string(index) + ", over the bound of its own size");
    }
    Top();
    memo_[index] = stack_.back();
  }

  void Get(uint64_t index) {
    const auto found = memo_.find(index);
    if (found == memo_.end()) {
      Fail("refers to the memo index " + std::to_string(index) + ", which is not set");
    }
    stack_.push_back(found->second);
  }

  void BinFloat() {
    const std::string_view bytes = Take(8);
    uint64_t bits = 0;
    for (const char byte : bytes) {
      bits = (bits << 8) | static_cast<uint8_t>(byte);
    }
    Push(PickleKind::kFloat).real = std::bit_cast<double>(bits);
  }

  void Protocol() {
    const uint64_t version = TakeUnsigned(1);
    if (version < 2 || version > 5 || position_ != 2) {
      Fail("has protocol " + std::to_string(version) + "; 2 to 5 are read");
    }
  }

  void Frame() {
    const uint64_t byte_count = TakeUnsigned(8);
    if (byte_count > input_.size() - position_) {
      Fail("ends too early");
    }
  }

  void Step(uint8_t opcode) {
    if (position_ == 1 && opcode != 0x80) {
      Fail("does not start with a protocol number");
    }
    if (!StepScalar(opcode) && !StepContainer(opcode)) {
      Fail("has the opcode " + std::to_string(opcode) + ", which a checkpoint does not use");
    }
  }

  /// Opcodes that push one value from the stream.
  bool StepScalar(uint8_t opcode) {
    switch (opcode) {
      case 'N':
        Push(PickleKind::kNone);
        return true;
      case 0x88:
      case 0x89:
        Push(PickleKind::kBool).integer = opcode == 0x88;
        return true;
      case 'K':
        PushInt(static_cast<int64_t>(TakeUnsigned(1)));
        return true;
      case 'M':
        PushInt(static_cast<int64_t>(TakeUnsigned(2)));
        return true;
      case 'J':
        PushInt(static_cast<int32_t>(static_cast<uint32_t>(TakeUnsigned(4))));
        return true;
      case 0x8a:
        Long(TakeUnsigned(1));
        return true;
      case 'G':
        BinFloat();
        return true;
      case 'X':
        PushText(PickleKind::kString, TakeText(TakeUnsigned(4)));
        return true;
      case 0x8c:
        PushText(PickleKind::kString, TakeText(TakeUnsigned(1)));
        return true;
      case 0x8d:
        PushText(PickleKind::kString, TakeText(TakeUnsigned(8)));
        return true;
      case 'B':
        PushText(PickleKind::kBytes, TakeText(TakeUnsigned(4)));
        return true;
      case 'C':
        PushText(PickleKind::kBytes, TakeText(TakeUnsigned(1)));
        return true;
      case 'c': {
        const std::string_view module = TakeLine();
        Global(module, TakeLine());
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
        marks_.push_back(stack_.size());
        return true;
      case ')':
        Push(PickleKind::kTuple);
        return true;
      case ']':
        Push(PickleKind::kList);
        return true;
      case '}':
        Push(PickleKind::kDict);
        return true;
      case 't': {
        std::vector<uint32_t> items = PopToMark();
        Push(PickleKind::kTuple).items = std::move(items);
        return true;
      }
      case 0x85:
      case 0x86:
      case 0x87: {
        std::vector<uint32_t> items = PopCount(opcode - 0x84u);
        Push(PickleKind::kTuple).items = std::move(items);
        return true;
      }
      case 'a':
        Extend(PickleKind::kList, PopCount(1));
        return true;
      case 'e':
        Extend(PickleKind::kList, PopToMark());
        return true;
      case 's':
        Extend(PickleKind::kDict, PopCount(2));
        return true;
      case 'u':
        Extend(PickleKind::kDict, PopToMark());
        return true;
      default:
        return StepObject(opcode);
    }
  }

  /// Opcodes of objects and of the memo.
  bool StepObject(uint8_t opcode) {
    switch (opcode) {
      case 0x93:
        StackGlobal();
        return true;
      case 'R':
        Call(PickleKind::kReduce);
        return true;
      case 0x81:
        Call(PickleKind::kObject);
        return true;
      case 'b':
        Build();
        return true;
      case 'Q': {
        const uint32_t id = Pop();
        Push(PickleKind::kPersistentId).items = {id};
        return true;
      }
      case 0x94:
        Put(memo_.size());
        return true;
      case 'q':
        Put(TakeUnsigned(1));
        return true;
      case 'r':
        Put(TakeUnsigned(4));
        return true;
      case 'h':
        Get(TakeUnsigned(1));
        return true;
      case 'j':
        Get(TakeUnsigned(4));
        return true;
      default:
        return false;
    }
  }

  std::string_view input_;
  std::span<const PickleGlobal> allowed_;
  const std::string& what_;
  size_t position_ = 0;
  bool stopped_ = false;
  std::vector<uint32_t> stack_;
  std::vector<size_t> marks_;
  std::unordered_map<uint64_t, uint32_t> memo_;
  PickleTree tree_;
};

PickleTree ReadPickle(std::string_view input, std::span<const PickleGlobal> allowed,
                      const std::string& what) {
  return PickleReader(input, allowed, what).Run();
}

}  // namespace fsdprun::worker::checkpoint
