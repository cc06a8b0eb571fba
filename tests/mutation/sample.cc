// A made-up machine with a guard of every kind, and a test of it that overlooks some.
// guards_test.py knows which are found and which are noticed.

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#define SAMPLE_CHECK(condition) ((condition) ? void() : std::abort())
#define SAMPLE_ZERO 0

namespace fsdprun {

struct Door {
  bool is_open = false;
  bool IsShut() const { return !is_open; }
};

class Sample {
 public:
  void On(int value) {
    SAMPLE_CHECK(value < 1000 && value > -1000);
    if (value == SAMPLE_ZERO || (value > 100 && !door_.is_open)) {
      return;
    }
    values_.push_back(value);
  }

  void On(const Door& door) { door_ = door; }

  int Sum() const {
    int sum = 0;
    for (size_t i = 0; i < values_.size(); ++i) {
      sum += values_[i];
    }
    return sum < 0 ? 0 : sum;
  }

  int Absolute(int value) const {
    if (value == 0) {  // what follows gives the same
      return 0;
    }
    return value > 0 ? value : -value;
  }

  int First() const {
    if (const int* first = values_.empty() ? nullptr : values_.data()) {
      return *first;
    }
    return -1;
  }

  int Last() const {
    if (const size_t size = values_.size(); size > 0) {
      return values_[size - 1];
    }
    return -1;
  }

  uint64_t Rounds() const {
    uint64_t rounds = 0;
    do {
      rounds += 1;
    } while (rounds == 0);
    return rounds;
  }

  int Count() const {
    const auto is_counted = [](const auto& value) { return value > 10; };
    const bool any = !values_.empty();
    int count = 0;
    size_t i = 0;
    while (any && i < values_.size()) {
      count += is_counted(values_[i++]);
    }
    return count;
  }

  bool CheckInvariants() const { return values_.size() < 1000 && First() < 1000; }

 private:
  std::vector<int> values_;
  Door door_;
};

}  // namespace fsdprun

namespace {

void Expect(bool holds, const char* what) {
  if (!holds) {
    std::printf("FAILED: %s\n", what);
    std::exit(1);
  }
}

}  // namespace

int main() {
  fsdprun::Sample sample;
  Expect(sample.First() == -1, "without values there is no first");
  Expect(sample.Last() == -1, "without values there is no last");
  sample.On(5);
  sample.On(500);
  sample.On(20);
  Expect(sample.Sum() == 25, "values are summed");
  Expect(sample.First() == 5, "the first value");
  Expect(sample.Last() == 20, "the last value");
  Expect(sample.Rounds() == 1, "one round is enough");
  Expect(sample.Count() == 1, "values above ten are counted");
  Expect(sample.Absolute(-3) == 3 && sample.Absolute(3) == 3, "absolute values");
  Expect(sample.CheckInvariants(), "the invariants hold");
  return 0;
}
