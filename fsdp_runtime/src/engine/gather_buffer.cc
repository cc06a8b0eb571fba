#include "fsdp_runtime/src/engine/gather_buffer.h"

#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <utility>

#include "fsdp_runtime/src/engine/chunk_views.h"
#include "fsdp_runtime/src/engine/custom_memory.h"
#include "fsdp_runtime/src/engine/disk_memory.h"
#include "fsdp_runtime/src/engine/run_context.h"

namespace fsdp {
namespace {

/// `stream` waits for what the current one has been given.
void wait_for_current(const c10::Stream& stream) {
  c10::Event last(stream.device_type());
  last.record(c10::impl::VirtualGuardImpl(stream.device_type()).getStream(stream.device()));
  last.block(stream);
}

}  // namespace

GatherBuffer::GatherBuffer(ShardStore& store, std::shared_ptr<Collectives> comm,
                           at::ScalarType dtype)
    : store_(store),
      comm_(std::move(comm)),
      dtype_(dtype),
      window_(store.window() &&
                      (store.layout().copies_out() || store.window()->own().scalar_type() == dtype)
                  ? store.window()
                  : nullptr),
      storage_(store.layout().whole_numel() * static_cast<int64_t>(c10::elementSize(dtype)),
               store.device()) {
  const plan::GroupLayout& layout = store.layout();
  output_ = storage_.view(dtype_, 0, {layout.whole_numel()});
  if (!layout.copies_out()) {
    own_range_ = storage_.view(dtype_, comm_->rank() * layout.shard_numel, {layout.shard_numel});
    return;
  }
  for (size_t i = 0; i < store.size(); ++i) {
    pieces_.push_back(pieces_of(view(i), layout.chunks[i]));
  }
}

at::Tensor GatherBuffer::view(size_t index) const {
  return storage_.view(dtype_, store_.layout().params[index].offset, store_.shape(index));
}

int64_t GatherBuffer::bytes_in_use() const {
  return (slot_ ? slot_->bytes : 0) + (part_ ? part_->bytes : 0) +
         (gather_slot_ ? gather_slot_->bytes : 0) +
         (custom_memory_.defined() ? static_cast<int64_t>(custom_memory_.nbytes()) : 0);
}

void GatherBuffer::set_fqn(size_t index, const std::string& fqn) {
  storage_.set_name(dtype_, store_.layout().params[index].offset,
                    c10::multiply_integers(store_.shape(index)), "parameter " + fqn);
}

bool GatherBuffer::is_shard_itself() const {
  return comm_->size() == 1 && dtype_ == store_.dtype() && !store_.is_offloaded();
}

void GatherBuffer::start(RunContext& context, const std::string& purpose) {
  if (state_ != State::kSharded) {
    return;
  }
  if (is_shard_itself()) {
    storage_.point_to(store_.shard().data_ptr());
    state_ = State::kUnsharded;
    return;
  }
  at::NoGradGuard no_grad;
  const Issue issue(Lane::kGather, purpose);
  try {
    if (custom_) {
      start_in_custom_memory(context, issue);
    } else if (window_ && !part_) {
      start_in_window(context, issue);
    } else {
      start_in_slot(context, issue);
    }
  } catch (...) {
    gather_.drop();          // a copy to the device may write the memory
    custom_stream_.reset();  // nobody has read the memory
    free_memory();
    throw;
  }
  state_ = State::kInFlight;
  RuntimeCounters& counters = context.counters_in_place();
  counters.gathers += 1;
  counters.gathered_bytes +=
      gathered_.defined() ? static_cast<int64_t>(gathered_.nbytes()) : storage_.bytes();
}

void GatherBuffer::start_in_slot(RunContext& context, Issue issue) {
  if (copies_next()) {
    const plan::GroupLayout& layout = store_.layout();
    gather_slot_ = context.acquire_parameter_slot(layout.numel() *
                                                  static_cast<int64_t>(c10::elementSize(dtype_)));
    gathered_ = gather_slot_->as(dtype_);
    const int64_t begin = comm_->rank() * layout.shard_numel;
    const at::Tensor input = input_of_gather(gathered_.narrow(0, begin, layout.shard_numel), issue);
    gather_.add(gathering().all_gather_into(gathered_, input, std::move(issue)));
    return;
  }
  slot_ = context.acquire_parameter_slot(storage_.bytes());
  storage_.point_to(slot_->data());
  const at::Tensor input = input_of_gather(own_range_, issue);
  gather_.add(gathering().all_gather_into(output_, input, std::move(issue)));
}

void GatherBuffer::start_in_custom_memory(RunContext& context, Issue issue) {
  const plan::GroupLayout& layout = store_.layout();
  const int64_t numel = copies_next() ? layout.numel() : layout.whole_numel();
  custom_memory_ = checked_memory(custom_->allocate(numel, dtype_, store_.device()), numel,
                                  output_.options(), "AllGather");
  custom_stream_ = context.current_stream_behind_update();
  const at::Tensor flat = custom_memory_.view({numel});
  if (copies_next()) {
    gathered_ = flat;
  } else {
    storage_.point_to(custom_memory_.data_ptr());
  }
  const at::Tensor range =
      part_ ? at::Tensor() : flat.narrow(0, comm_->rank() * layout.shard_numel, layout.shard_numel);
  const at::Tensor input = input_of_gather(range, issue);
  if (issue.after) {
    issue.after->wait();  // it need only be behind the current stream
  }
  gather_.add(checked_work(custom_->run(custom_memory_, input, gathering(), std::move(issue)),
                           "AllGather"));
}

at::Tensor GatherBuffer::input_of_gather(const at::Tensor& range, Issue& issue) {
  if (part_) {
    return part_->as(dtype_);
  }
  if (store_.is_offloaded()) {
    issue.after = store_.copy_to_device(*comm_, range, issue.purpose);
    gather_.add(issue.after);
    return range;
  }
  return store_.prepare_gather(range);
}

void GatherBuffer::start_in_window(RunContext& context, const Issue& issue) {
  store_.publish(context.write_epoch());
  if (copies_out()) {
    gathered_ = window_->whole();
  } else {
    storage_.point_to(window_->whole().data_ptr());
  }
  gather_.add(window_->issue(issue));
}

void GatherBuffer::end_gather() {
  if (gather_) {
    gather_.finish();
    release_pages(store_.shard());
  }
}

void GatherBuffer::wait(RunContext& context) {
  if (state_ == State::kInFlight) {
    end_gather();
    if (gathered_.defined()) {
      copy_out(context);
    }
    state_ = State::kUnsharded;
  }
}

void GatherBuffer::copy_out(RunContext& context) {
  at::NoGradGuard no_grad;
  slot_ = context.acquire_parameter_slot(storage_.bytes());
  storage_.point_to(slot_->data());
  for (size_t i = 0; i < pieces_.size(); ++i) {
    copy_pieces(pieces_[i], pieces_in(gathered_, store_.layout(), i, store_.shape(i)));
  }
  free_gathered();
  if (window_) {
    window_->release();
  }
}

void GatherBuffer::free_gathered() {
  if (gathered_.defined()) {
    gathered_.reset();
    gather_slot_.reset();
    free_custom_memory();
  }
}

void GatherBuffer::reshard() {
  if (state_ == State::kInFlight) {
    end_gather();
    state_ = State::kUnsharded;
  }
  part_.reset();
  free_whole();
}

void GatherBuffer::reshard_to_part(RunContext& context,
                                   const std::shared_ptr<Collectives>& part_comm) {
  wait(context);
  if (state_ == State::kUnsharded && !takes_no_memory() && (!part_ || part_comm_ != part_comm)) {
    at::NoGradGuard no_grad;
    part_.reset();
    SlotLease part = context.acquire_parameter_slot(storage_.bytes() / part_comm->size());
    const int64_t numel = store_.layout().whole_numel() / part_comm->size();
    part->as(dtype_).copy_(output_.narrow(0, part_comm->rank() * numel, numel));
    part_ = std::move(part);
    part_comm_ = part_comm;
  }
  free_whole();
}

void GatherBuffer::free_whole() {
  if (state_ != State::kUnsharded) {
    return;
  }
  state_ = State::kSharded;  // whatever follows, nobody may take it for gathered
  if (is_shard_itself()) {
    release_pages(store_.shard());
  }
  free_memory();
  if (window_) {
    window_->release();
  }
}

void GatherBuffer::free_memory() {
  storage_.poison();
  slot_.reset();
  free_gathered();
  free_custom_memory();
}

void GatherBuffer::free_custom_memory() {
  if (const std::optional<c10::Stream> stream = std::exchange(custom_stream_, std::nullopt)) {
    wait_for_current(*stream);  // which may get the memory again
  }
  custom_memory_.reset();
}

}  // namespace fsdp
