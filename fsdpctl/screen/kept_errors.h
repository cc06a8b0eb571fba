#pragma once

#include "base/unique_fd.h"

namespace fsdprun::top {

/// While it lives, what is written to standard error is kept from the terminal, and shown there
/// afterwards, also after a crash. If standard error is no terminal it is left alone.
class KeptErrors {
 public:
  KeptErrors();
  ~KeptErrors();
  KeptErrors(const KeptErrors&) = delete;
  KeptErrors& operator=(const KeptErrors&) = delete;

 private:
  UniqueFd terminal_;
  UniqueFd kept_;
};

}  // namespace fsdprun::top
