#include "fsdp_runtime/src/engine/gather_buffer.h"

#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <utility>

#include "fsdp_runtime/src/engine/custom_memory.h"
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
      storage_(store.layout().numel() * static_cast<int64_t>(c10::elementSize(dtype)),
               store.device()) {
  const plan::GroupLayout& layout = store.layout();
  output_ = storage_.view(dtype_, 0, {layout.numel()});
  own_range_ = storage_.view(dtype_, comm_->rank() * layout.shard_numel, {layout.shard_numel});
}

at::Tensor GatherBuffer::view(size_t index) const {
  return storage_.view(dtype_, store_.layout().params[index].offset, store_.shape(index));
}

int64_t GatherBuffer::bytes_in_use() const {
  return (slot_ ? slot_->bytes : 0) + (part_ ? part_->bytes : 0) +
         (custom_memory_.defined() ? static_cast<int64_t>(custom_memory_.nbytes()) : 0);
}

void GatherBuffer::set_fqn(size_t index, const std::string& fqn) {
  storage_.set_name(dtype_, store_.layout().params[index].offset,
                    c10::multiply_integers(store_.shape(index)), "parameter " + fqn);
}

bool GatherBuffer::is_shard_itself() const {
  return comm_->size() == 1 && dtype_ == store_.dtype();
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
    } else if (store_.window()) {
      start_in_window(context, issue);
    } else {
      start_in_slot(context, issue);
    }
  } catch (...) {
    custom_stream_.reset();  // nobody has read the memory
    free_memory();
    throw;
  }
  state_ = State::kInFlight;
  RuntimeCounters& counters = context.counters_in_place();
  counters.gathers += 1;
  counters.gathered_bytes += storage_.bytes();
}

void GatherBuffer::start_in_slot(RunContext& context, const Issue& issue) {
  slot_ = context.acquire_parameter_slot(storage_.bytes());
  storage_.point_to(slot_->data());
  gather_.add(gathering().all_gather_into(output_, input_of_gather(own_range_), issue));
}

void GatherBuffer::start_in_custom_memory(RunContext& context, const Issue& issue) {
  const int64_t numel = store_.layout().numel();
  const int64_t part = store_.layout().shard_numel;
  custom_memory_ = checked_memory(custom_->allocate(numel, dtype_, store_.device()), numel,
                                  output_.options(), "AllGather");
  custom_stream_ = context.current_stream_behind_update();
  storage_.point_to(custom_memory_.data_ptr());
  const at::Tensor range = custom_memory_.view({numel}).narrow(0, comm_->rank() * part, part);
  gather_.add(checked_work(custom_->run(custom_memory_, input_of_gather(range), gathering(), issue),
                           "AllGather"));
}

at::Tensor GatherBuffer::input_of_gather(const at::Tensor& range) const {
  return part_ ? part_->as(dtype_) : store_.prepare_gather(range);
}

void GatherBuffer::start_in_window(RunContext& context, const Issue& issue) {
  GatherWindow& window = *store_.window();
  store_.publish(context.write_epoch());
  storage_.point_to(window.whole().data_ptr());
  gather_.add(window.issue(issue));
}

void GatherBuffer::wait() {
  if (state_ == State::kInFlight) {
    gather_.finish();
    state_ = State::kUnsharded;
  }
}

void GatherBuffer::reshard() {
  wait();
  part_.reset();
  free_whole();
}

void GatherBuffer::reshard_to_part(RunContext& context,
                                   const std::shared_ptr<Collectives>& part_comm) {
  wait();
  if (state_ == State::kUnsharded && !takes_no_memory() && (!part_ || part_comm_ != part_comm)) {
    at::NoGradGuard no_grad;
    part_.reset();
    SlotLease part = context.acquire_parameter_slot(storage_.bytes() / part_comm->size());
    const int64_t numel = store_.layout().numel() / part_comm->size();
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
  free_memory();
  if (store_.window()) {
    store_.window()->release();
  }
}

void GatherBuffer::free_memory() {
  storage_.poison();
  slot_.reset();
  if (const std::optional<c10::Stream> stream = std::exchange(custom_stream_, std::nullopt)) {
    wait_for_current(*stream);  // which may get the memory again
  }
  custom_memory_.reset();
}

}  // namespace fsdp
