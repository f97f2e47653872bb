// The site of an op or phase, which is the user's frames that led to it: ../sites.py names it.

#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

// Up to this version we know the interpreter's own frames; reading them creates no frame objects.
#define HAS_INTERNAL_FRAMES (PY_VERSION_HEX < 0x030E0000)
#if HAS_INTERNAL_FRAMES
#define Py_BUILD_CORE 1
#include <internal/pycore_frame.h>
#undef Py_BUILD_CORE
#endif

#include <pthread.h>

#include <cstddef>
#include <cstdint>

#include "ask_python.h"
#include "state.h"

namespace rollcall {
namespace {

constexpr size_t kMostFrames = 8, kMostCodes = 100000;  // the last: sites.py
constexpr int kUserCode = 1, kEntryPoint = 2;  // kinds of code: sites.py

// Visits frames from the current one outwards, while `visit(code, instruction)` returns true.
#if HAS_INTERNAL_FRAMES
template <typename Visit>
void walk(Visit visit) {
#if PY_VERSION_HEX < 0x030D0000
  _PyInterpreterFrame* frame = PyThreadState_Get()->cframe->current_frame;
#else
  _PyInterpreterFrame* frame = PyThreadState_Get()->current_frame;
#endif
  for (; frame; frame = frame->previous) {
    if (_PyFrame_IsIncomplete(frame)) continue;
#if PY_VERSION_HEX < 0x030D0000
    auto* code = reinterpret_cast<PyObject*>(frame->f_code);
#else
    PyObject* code = frame->f_executable;
#endif
    if (!visit(code, uintptr_t(_PyInterpreterFrame_LASTI(frame) * int(sizeof(_Py_CODEUNIT))))) return;
  }
}
#else
template <typename Visit>
void walk(Visit visit) {
  PyFrameObject* frame = PyThreadState_GetFrame(PyThreadState_Get());
  bool wants_more = true;
  while (frame && wants_more) {
    PyCodeObject* code = PyFrame_GetCode(frame);
    wants_more = visit(reinterpret_cast<PyObject*>(code), uintptr_t(PyFrame_GetLasti(frame)));
    Py_DECREF(code);
    PyFrameObject* back = PyFrame_GetBack(frame);
    Py_DECREF(frame);
    frame = back;
  }
  Py_XDECREF(frame);
}
#endif

// The kind of code, as sites.py defines it; -1 with an exception set. Asks Python once per code object.
int kind_of(PyObject* code) {
  auto known = state->kinds.find(code);
  if (known != state->kinds.end()) return known->second;
  if (state->kinds.size() >= kMostCodes) return 0;  // a program that makes new code with every step
  int64_t kind = ask("kind_of_code", code);
  if (kind < 0) return -1;
  Py_INCREF(code);  // kept alive, so that no other object gets its address
  return state->kinds[code] = kind;
}

// The number of the site: the user's frames from the current one outwards, innermost first; without any, the outermost
// frame. All visited frames are added to `stack`, if it is given.
int64_t site_number(Places* stack = nullptr) {
  Places places;
  places.reserve(2 * kMostFrames);
  uintptr_t here[2] = {0, 0};
  bool has_failed = false;
  if (stack) stack->clear();
  walk([&](PyObject* code, uintptr_t instruction) {
    int kind = kind_of(code);
    has_failed = kind < 0;
    here[0] = reinterpret_cast<uintptr_t>(code);
    here[1] = instruction;
    if (stack) stack->insert(stack->end(), here, here + 2);
    if (kind == kUserCode) places.insert(places.end(), here, here + 2);
    bool is_entry_point = kind == kEntryPoint && !places.empty();
    return !has_failed && !is_entry_point && places.size() < 2 * kMostFrames;
  });
  if (has_failed) return -1;
  bool has_users = !places.empty();
  if (!has_users && here[0]) places.assign(here, here + 2);
  auto found = state->sites.find(places);
  if (found != state->sites.end()) return found->second;
  PyObject* tuple = PyTuple_New(places.size());
  if (!tuple) return -1;
  for (size_t i = 0; i < places.size(); ++i) PyTuple_SET_ITEM(tuple, i, PyLong_FromUnsignedLongLong(places[i]));
  int64_t number = ask("name_site", tuple);
  Py_DECREF(tuple);
  // A thread without a frame of the user's gets the site of the main thread, which changes: it is not kept.
  bool is_stable = pthread_equal(pthread_self(), state->main_thread) || has_users;
  if (state->sites.size() >= kMostCodes) state->sites.clear();  // Python knows their numbers
  if (number >= 0 && is_stable) state->sites[places] = number;
  return number;
}

PyObject* py_site(PyObject*, PyObject*) {
  int64_t number = site_number();
  return number < 0 ? nullptr : PyLong_FromLongLong(number);
}

}  // namespace
}  // namespace rollcall
