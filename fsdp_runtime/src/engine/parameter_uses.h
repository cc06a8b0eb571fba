#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace fsdp {

/// Which parameters of a group have contributed a gradient, not only zeros, to a reduction: those
/// have a `.grad` that is not None in PyTorch. Ranks may differ in what they use; in rounds, they
/// tell each other.
class ParameterUses {
 public:
  explicit ParameterUses(size_t params) : own_(params, 0), all_(params, 0) {}

  /// What the ranks have used is going to be asked, on all of them.
  void begin_round() { is_in_round_ = true; }
  bool is_in_round() const { return is_in_round_; }
  /// This rank has used parameter `index`.
  void add_own(size_t index) { own_[index] = 1; }
  /// By parameter, 1 if this rank has used it in this round.
  const std::vector<uint8_t>& own() const { return own_; }
  /// Ends the round. `uses`: by parameter, 1 if some rank has used it in this round.
  void end_round(const std::vector<uint8_t>& uses) {
    is_in_round_ = false;
    for (size_t i = 0; i < all_.size(); ++i) {
      all_[i] |= uses[i];
      own_[i] = 0;
    }
  }
  /// Whether some rank has used it in a round since clear().
  bool is_used(size_t index) const { return all_[index] != 0; }
  /// As if nobody had used it since clear(), in the rounds that have ended.
  void forget(size_t index) { all_[index] = 0; }
  /// As if nobody had used it since clear().
  void drop(size_t index) {
    own_[index] = 0;
    all_[index] = 0;
  }
  void clear() {
    is_in_round_ = false;
    own_.assign(own_.size(), 0);
    all_.assign(all_.size(), 0);
  }

 private:
  bool is_in_round_ = false;
  std::vector<uint8_t> own_;
  std::vector<uint8_t> all_;
};

}  // namespace fsdp
