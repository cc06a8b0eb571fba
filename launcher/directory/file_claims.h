#pragma once

#include <optional>
#include <string>
#include <utility>

#include "base/mono_time.h"
#include "launcher/directory/claim_store.h"

namespace fsdprun {

/// A claim in a file on a file system that all nodes share.
//
// Note [Claims in files]
// A claim is written under a temporary name and appears complete: by link(), which does not
// replace, where there was none; by rename() in the place of one whose holder has ended. Who
// replaces has the lock, a second link, and looks under it whether what it replaces is still there.
// Nobody holds the lock for longer than that takes: one that stays for seconds was left by a
// launcher that died. The answers of link() and rename() may be lost on the way from an NFS server,
// so what counts is what is there afterwards. An older claim that a client still has in its cache
// is found out by that, or by its holder, which is gone.
class FileClaims : public ClaimStore {
 public:
  /// `path` is the claim's file. Without `trusts_others`, a file of another user is refused: its
  /// token would be theirs.
  FileClaims(std::string path, bool trusts_others)
      : path_(std::move(path)), trusts_others_(trusts_others) {}

  absl::StatusOr<std::optional<Claim>> Read() override;
  absl::StatusOr<bool> Replace(const std::optional<Claim>& found, const Claim& mine) override;
  absl::Status Release(const Claim& mine, const std::optional<Claim>& last) override;
  std::string Where() const override { return path_; }

 private:
  absl::StatusOr<std::string> WriteTemporary(const Claim& claim) const;
  absl::StatusOr<bool> Create(const std::string& temporary, const Claim& mine);
  absl::StatusOr<bool> ReplaceUnderLock(const std::string& temporary, const Claim& found,
                                        const Claim& mine);
  void BreakOldLock(const std::string& lock);

  const std::string path_;
  const bool trusts_others_;
  /// The lock that was seen last, by inode, and since when.
  uint64_t lock_inode_ = 0;
  MonoTime lock_seen_at_{};
};

}  // namespace fsdprun
