// DDP's buckets: the all_reduces that its reducer starts in C++, seen by torch's own hooks or by a kernel. A bucket is kept from
// its all_reduce to the end of backward, which waits for all of them.

#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <pthread.h>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/library.h>

#include "ask_python.h"
#include "device_clock.h"
#include "device_notes.h"
#include "ring.h"
#include "state.h"
#include "tensors.h"

namespace rollcall {
namespace {

// Fills in the numbers of the bucket's group and signature; asks Python once per bucket, without the mutex.
bool name_bucket(const at::Tensor& tensor, const c10d::ProcessGroup& group, Bucket& bucket) {
  {
    std::lock_guard<std::mutex> lock(state->mutex);
    bucket = {&group, state->pending.size(), tensor.numel(), tensor.scalar_type()};
    for (auto& known : state->buckets) {
      if (!known.matches(bucket)) continue;
      bucket = known;
      return true;
    }
  }
  std::string name;
  try {
    name = group.getGroupName();
  } catch (const std::exception&) {
  }
  if (name.empty()) return false;  // a group that was made without torch.distributed's functions need not have one
  Gil gil;
  PyObject* answer = nullptr;
  PyObject* wrapped = THPVariable_Wrap(tensor);
  if (wrapped) answer = PyObject_CallMethod(state->recorder, "name_bucket", "Ons", wrapped, Py_ssize_t(bucket.index), name.c_str());
  Py_XDECREF(wrapped);
  bool is_named = answer && PyArg_ParseTuple(answer, "II", &bucket.group_number, &bucket.signature);
  Py_XDECREF(answer);
  if (!is_named) {
    stop_recording();
    return false;
  }
  std::lock_guard<std::mutex> lock(state->mutex);
  state->buckets.push_back(bucket);
  return true;
}

// Empties the list of pending buckets and returns them.
std::vector<Pending> take_pending() {
  std::vector<Pending> taken;
  std::lock_guard<std::mutex> lock(state->mutex);
  taken.swap(state->pending);
  state->is_waiting = false;
  return taken;
}

// As note_on_device, for buckets, which are in a thread of autograd without the GIL.
void note_buckets(Marks marks, Moment moment) {
  if (marks.empty()) return;
  Gil gil;
  if (!note_on_device(std::move(marks), moment)) stop_recording();
}

void complete_buckets() {
  Marks on_device;
  uint64_t completed_ns = now_ns();
  for (auto& each : take_pending()) {
    if (each.tensor.is_cuda()) on_device.push_back(each.mark);
    else complete(each.mark, completed_ns);
  }
  note_buckets(std::move(on_device), Moment::kCompleted);
}

// Runs recording work in C++: an error ends recording, and does not reach the program. The mutex is free by then.
template <typename Work>
void guarded(Work work) {
  std::string text = "an unknown error";
  try {
    work();
    return;
  } catch (const std::exception& error) {
    text = error.what();
  } catch (...) {
  }
  take_pending();
  Gil gil;
  PyErr_SetString(PyExc_RuntimeError, text.substr(0, text.find('\n')).c_str());
  stop_recording();
}

// Callbacks run at the end of backward, in the order in which they were queued. This one runs before the reducer's own,
// which waits for all buckets; the callback that it queues runs after that.
void wait_for_buckets() {
  Marks on_device;
  {
    std::lock_guard<std::mutex> lock(state->mutex);
    uint64_t waited_ns = now_ns();
    for (auto& each : state->pending) {
      Record* record = at(each.mark);
      record->waited_ns = waited_ns;
      record->flags = each.flags | kWaited;
      record->version_waited = version(each.tensor);
      if (each.tensor.is_cuda()) on_device.push_back(each.mark);
    }
    state->is_waiting = !state->pending.empty();
    if (state->is_waiting) state->last_bucket = state->pending.size() - 1;
  }
  note_buckets(std::move(on_device), Moment::kWaited);
  torch::autograd::Engine::get_default_engine().queue_callback([] { guarded(complete_buckets); });
}

int64_t enter_bucket(const at::Tensor& tensor, const c10d::ProcessGroup& group) {
  Bucket bucket;
  if (!name_bucket(tensor, group, bucket)) return kNoRecord;
  int64_t thread = 0;
  if (!pthread_equal(pthread_self(), state->main_thread)) {
    Gil gil;
    thread = thread_number();
    if (thread < 0) {
      stop_recording();
      return kNoRecord;
    }
  }
  Record record{};
  record.op = state->all_reduce;
  record.flags = kAsync | kBucket;
  record.group = bucket.group_number;
  record.signature = bucket.signature;
  record.peer = -1;
  record.thread = thread;
  record.reduce = state->sum;
  record.version_issued = version(tensor);
  record.size_bytes = size_bytes(tensor);
  int64_t mark;
  bool is_timed;
  {
    std::lock_guard<std::mutex> lock(state->mutex);
    record.site = state->phase_site;  // where backward was called
    mark = write(record);
    is_timed = tensor.is_cuda() && (bucket.index == 0 || bucket.index == state->last_bucket);  // why: ../hooks/reducer.py
  }
  if (mark == kNoRecord) {
    Gil gil;
    raise_errno();
    stop_recording();
  } else if (is_timed) {
    note_buckets(Marks(1, mark), Moment::kArrived);
  }
  return mark;
}

// The all_reduce is under way: the bucket is kept until backward ends.
void follow_bucket(int64_t mark, const at::Tensor& tensor) {
  bool is_first;
  {
    std::lock_guard<std::mutex> lock(state->mutex);
    at(mark)->issued_ns = now_ns();
    is_first = state->pending.empty();
    state->pending.push_back({uint64_t(mark), kAsync | kBucket, tensor});
  }
  if (!is_first) return;
  try {
    torch::autograd::Engine::get_default_engine().queue_callback([] { guarded(wait_for_buckets); });
  } catch (const std::exception&) {  // not in a backward: there is no callback at its end
    take_pending();
  }
}

#ifdef C10D_BACKEND_HAS_HOOKS
// Torch's own hooks, which it has from 2.15 on: they run around every op of a group, in the thread that starts the op.
constexpr int64_t kHookId = 0x726f6c6c63616c6c;  // "rollcall": other users of the hooks have other numbers

struct Started {
  int64_t mark = kNoRecord;
  at::Tensor tensor;
};
thread_local Started started;  // the all_reduce between its two hooks

void watch_by_hooks(c10d::ProcessGroup& group) {
  group.registerPreHook(kHookId, [&group](const c10d::PreHookArgs& args) {  // the group owns its hooks
    started = Started();
    if (args.name != c10d::HookOpName::ALLREDUCE || args.input_tensors.empty() || is_in_op || !state->is_on) return;
    guarded([&] { started = {enter_bucket(args.input_tensors[0], group), args.input_tensors[0]}; });
  });
  group.registerPostHook(kHookId, [](const c10d::PostHookArgs&) {
    Started ended = std::exchange(started, Started());
    if (ended.mark != kNoRecord) guarded([&] { follow_bucket(ended.mark, ended.tensor); });
  });
}
#endif

// The kernel at the autograd key, which every all_reduce passes before it reaches its backend. In a rehearsal no op
// reaches one, so that hooks would not run there.
void all_reduce(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  auto below = keys & c10::after_autograd_keyset;
  if (is_in_op || !state->is_on) {
    op.redispatchBoxed(below, stack);
    return;
  }
  int64_t mark = kNoRecord;
  at::Tensor tensor;
  guarded([&] {
    size_t arguments = op.schema().arguments().size();
    tensor = torch::jit::peek(*stack, 0, arguments).toTensorList().get(0);
    mark = enter_bucket(tensor, *torch::jit::peek(*stack, 1, arguments).toCustomClass<c10d::ProcessGroup>());
  });
  op.redispatchBoxed(below, stack);
  if (mark != kNoRecord) guarded([&] { follow_bucket(mark, tensor); });
}

// From now on, the all_reduces of all groups pass our kernel.
void watch_by_kernel() {
  static std::vector<torch::Library>* libraries = nullptr;
  if (libraries) return;
  libraries = new std::vector<torch::Library>;
  for (auto key : {c10::DispatchKey::AutogradCPU, c10::DispatchKey::AutogradCUDA}) {
    libraries->emplace_back(torch::Library::IMPL, "c10d", key, __FILE__, __LINE__);
    libraries->back().impl("allreduce_", torch::CppFunction::makeFromBoxedFunction<&all_reduce>());
  }
}

void watch([[maybe_unused]] c10d::ProcessGroup& group) {
#ifdef C10D_BACKEND_HAS_HOOKS
  if (!is_rehearsed()) return watch_by_hooks(group);
#endif
  watch_by_kernel();
}

// The name of a DDP module's group, and a function that returns how many gradients a module averages.
PyObject* py_watch_reducer(PyObject*, PyObject* args) {
  const char* group_name;
  PyObject* count_gradients;
  if (!PyArg_ParseTuple(args, "sO", &group_name, &count_gradients)) return nullptr;
  Py_INCREF(count_gradients);
  Py_XSETREF(state->count_gradients, count_gradients);
  state->gradients.clear();  // a new module may have the address of one that was deleted
  try {
    watch(*c10d::resolve_process_group(group_name));
  } catch (const std::exception& error) {
    return PyErr_Format(PyExc_RuntimeError, "%s", error.what());
  }
  std::lock_guard<std::mutex> lock(state->mutex);
  state->buckets.clear();  // a new group may have the address of one that was destroyed
  Py_RETURN_NONE;
}

// Marks all pending buckets as failed: their backward has raised.
PyObject* py_fail_buckets(PyObject*, PyObject*) {
  for (auto& each : take_pending()) at(each.mark)->flags = each.flags | kFailed;
  Py_RETURN_NONE;
}

PyObject* py_is_waiting(PyObject*, PyObject*) { return PyBool_FromLong(state->is_waiting); }

}  // namespace
}  // namespace rollcall
