// Phases of the program: those that it names itself, the forward of a DDP module, and the step of an optimizer.

#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <pthread.h>

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

#include <ATen/core/grad_mode.h>

#include "ask_python.h"
#include "ring.h"
#include "sites.h"
#include "state.h"

namespace rollcall {
namespace {

constexpr size_t kMostPhases = 64;

// The site of a phase that begins. It mostly begins where it did before; comparing the stack takes half the time.
int64_t phase_site_number(size_t place) {
  if (!pthread_equal(pthread_self(), state->main_thread)) return site_number();
  const Places& stack = state->named[place].stack;
  size_t seen = 0, size = stack.size();
  walk([&](PyObject* code, uintptr_t instruction) {
    bool is_same = seen < size && stack[seen] == reinterpret_cast<uintptr_t>(code) && stack[seen + 1] == instruction;
    seen = is_same ? seen + 2 : size + 1;
    return is_same && seen < size;
  });
  if (size && seen == size) return state->named[place].site;
  Places walked;
  int64_t site = site_number(&walked);  // may run Python, which may begin phases and change `named`
  if (site < 0 || place >= state->named.size()) return site;
  state->named[place].stack.swap(walked);
  state->named[place].site = site;
  return site;
}

void forget_phases() {
  std::vector<Phase> forgotten;
  forgotten.swap(state->named);
  for (auto& each : forgotten) Py_DECREF(each.name);
}

// The index of a phase in `named`; -1 with an exception set.
int64_t phase_place(PyObject* name) {
  for (size_t place = 0; place < state->named.size(); ++place)
    if (state->named[place].name == name) return place;
  int64_t number = ask("name_phase", name);
  if (number < 0) return -1;
  if (state->named.size() >= kMostPhases) forget_phases();  // a program that makes up new names all the time
  Py_INCREF(name);
  state->named.push_back({name, uint32_t(number), {}, 0});
  return state->named.size() - 1;
}

int64_t begin_phase(PyObject* name, int64_t op, int64_t expected) {
  if (!state->is_on) return kNoRecord;
  int64_t place = phase_place(name);
  uint32_t phase = place < 0 ? 0 : state->named[place].number;
  int64_t site = place < 0 ? -1 : phase_site_number(place), thread = site < 0 ? -1 : thread_number();
  if (thread < 0) {
    stop_recording();
    return kNoRecord;
  }
  Record record{};
  record.op = op;
  record.site = site;
  record.peer = -1;
  record.thread = thread;
  record.phase = phase;
  record.size_bytes = expected;
  int64_t mark;
  {
    std::lock_guard<std::mutex> lock(state->mutex);
    mark = write(record);
    if (mark != kNoRecord) {
      state->phases.emplace_back(mark, state->phase);
      state->phase = phase;
      state->phase_site = site;
    }
  }
  if (mark == kNoRecord) {
    raise_errno();
    stop_recording();
  }
  return mark;
}

void end_phase(int64_t mark) {
  if (mark == kNoRecord || !state->is_on) return;
  std::lock_guard<std::mutex> lock(state->mutex);
  for (size_t i = state->phases.size(); i-- > 0;) {  // mostly the newest
    if (state->phases[i].first != uint64_t(mark)) continue;
    state->phase = state->phases[i].second;
    state->phases.erase(state->phases.begin() + i);
    break;
  }
  at(mark)->completed_ns = now_ns();
}

// name; for a forward also: op, expected gradients
PyObject* py_begin_phase(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (count != 1 && count != 3) return PyErr_Format(PyExc_TypeError, "begin_phase takes a name, an op and a number");
  int64_t op = count == 1 ? state->phase_op : PyLong_AsLongLong(args[1]);
  int64_t expected = count == 1 ? 0 : PyLong_AsLongLong(args[2]);
  if ((op == -1 || expected == -1) && PyErr_Occurred()) return nullptr;
  return PyLong_FromLongLong(begin_phase(args[0], op, expected));
}

PyObject* py_end_phase(PyObject*, PyObject* mark) {
  int64_t place = PyLong_AsLongLong(mark);
  if (place == -1 && PyErr_Occurred()) return nullptr;
  end_phase(place);
  Py_RETURN_NONE;
}

// Whether the attribute is true; -1 with an exception set.
int is_true(PyObject* owner, PyObject* name) {
  PyObject* value = PyObject_GetAttr(owner, name);
  int is = value ? PyObject_IsTrue(value) : -1;
  Py_XDECREF(value);
  return is;
}

// How many gradients the reducer will average after this forward of a DDP module: 0 where it will not, or where a
// communication hook does; -1 with an exception set.
int64_t expected_gradients(PyObject* ddp) {
  static PyObject* const syncs = PyUnicode_InternFromString("require_backward_grad_sync");
  static PyObject* const hooks = PyUnicode_InternFromString("_comm_hooks");
  // Without a function that counts, buckets are not recorded: none are expected then.
  if (!state->count_gradients || !at::GradMode::is_enabled()) return 0;
  int does_sync = is_true(ddp, syncs), has_comm_hook = does_sync > 0 ? is_true(ddp, hooks) : 0;
  if (does_sync < 0 || has_comm_hook < 0) return -1;
  if (!does_sync || has_comm_hook) return 0;
  auto known = state->gradients.find(ddp);
  if (known != state->gradients.end()) return known->second;
  PyObject* answer = PyObject_CallOneArg(state->count_gradients, ddp);
  int64_t count = answer ? PyLong_AsLongLong(answer) : -1;
  Py_XDECREF(answer);
  if (count >= 0) state->gradients[ddp] = count;
  return count;
}

PyObject* py_begin_forward(PyObject*, PyObject* ddp) {
  static PyObject* const name = PyUnicode_InternFromString("forward");
  int64_t mark = kNoRecord;
  if (state->is_on) {
    int64_t expected = expected_gradients(ddp);
    if (expected < 0) stop_recording();
    else mark = begin_phase(name, state->forward_op, expected);
  }
  return PyLong_FromLongLong(mark);
}

// An optimizer's step, by the address of the optimizer.
PyObject* py_begin_step(PyObject*, PyObject* const* args, Py_ssize_t count) {
  static PyObject* const name = PyUnicode_InternFromString("step");
  if (count) state->steps[args[0]] = begin_phase(name, state->phase_op, 0);
  Py_RETURN_NONE;
}

PyObject* py_end_step(PyObject*, PyObject* const* args, Py_ssize_t count) {
  auto found = count ? state->steps.find(args[0]) : state->steps.end();
  if (found != state->steps.end()) {
    end_phase(found->second);
    state->steps.erase(found);
  }
  Py_RETURN_NONE;
}

}  // namespace
}  // namespace rollcall
