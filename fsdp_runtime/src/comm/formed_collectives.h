#pragma once

#include <fsdp/collectives.h>
#include <fsdp/export.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace fsdp {

/// Base of the groups from which others can be formed. Only who has made a group knows how that is
/// done, and tells it.
class FSDP_API FormedCollectives : public Collectives {
 public:
  /// Forms the group that all its ranks know as `part`, of the ranks `members` of this group, of
  /// which this one is number `rank`.
  using FormPart = std::function<std::shared_ptr<Collectives>(const std::string& part, int64_t rank,
                                                              const std::vector<int64_t>& members)>;
  void set_form_part(FormPart form_part) { form_part_ = std::move(form_part); }
  /// Does what shrink() promises.
  using FormShrunk = std::function<std::shared_ptr<Collectives>(
      const std::vector<int64_t>& ranks_to_exclude, std::chrono::milliseconds patience)>;
  void set_form_shrunk(FormShrunk form_shrunk) { form_shrunk_ = std::move(form_shrunk); }

  std::shared_ptr<Collectives> split(int64_t color) override;
  std::shared_ptr<Collectives> shrink(const std::vector<int64_t>& ranks_to_exclude,
                                      std::chrono::milliseconds patience) override;

 private:
  FormPart form_part_;
  FormShrunk form_shrunk_;
  int64_t splits_ = 0;  // the same on all ranks
};

}  // namespace fsdp
