// Has the clock of device_clock.h note when a GPU comes to the moments of ops, and asks torch for what that clock needs.

#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <cstdint>
#include <exception>
#include <iterator>
#include <memory>
#include <string>
#include <utility>

#include "cuda_driver.h"
#include "device_clock.h"
#include "ring.h"
#include "state.h"

namespace rollcall {
namespace {

constexpr uint64_t Record::*kTimes[] = {&Record::issued_ns, &Record::waited_ns, &Record::completed_ns};  // by Moment
static_assert(std::size(kTimes) == kMoments, "each moment has a field");

bool is_rehearsed() { return state->is_capturing == Py_None; }

// Returns false with an exception set.
bool find_handle(StreamQueue& stream) {
  stream.is_asked = true;
  PyObject* answer = PyObject_CallFunction(state->find_handle, "i", int(stream.stream.device_index()));
  if (answer && answer != Py_None) stream.handle = PyLong_AsVoidPtr(answer);
  Py_XDECREF(answer);
  return !PyErr_Occurred();
}

// Whether the current stream is being captured, as torch says; -1 with an exception set.
int is_capturing() {
  PyObject* answer = PyObject_CallNoArgs(state->is_capturing);
  Py_XDECREF(answer);
  return answer ? answer == Py_True : -1;
}

// The host has queued these ops; the GPU may come to this moment of them later. Needs the GIL; returns false with an
// exception set.
bool note_on_device(Marks marks, Moment moment) {
  // Nothing runs on a pretended device, nor in a capture: the graph runs when it is replayed.
  int is_over = is_rehearsed();
  if (!is_over) {
    StreamQueue& stream = state->clock->current_stream();
    if (!stream.is_asked && !find_handle(stream)) return false;
    Capture capture = stream.handle ? state->clock->driver->capture(*stream.handle) : Capture::kUnknown;
    is_over = capture == Capture::kUnknown ? is_capturing() : capture == Capture::kYes;
    if (is_over < 0) return false;
    if (!is_over) state->clock->note(stream, std::move(marks), moment, capture == Capture::kNo);
  }
  if (is_over && moment == Moment::kCompleted)
    for (uint64_t mark : marks) complete(mark, now_ns());
  return true;
}

// Like note_on_device; an error of CUDA is an exception of Python, too. `marks` may have one set already.
bool note(Marks marks, Moment moment) {
  if (PyErr_Occurred()) return false;
  try {
    return note_on_device(std::move(marks), moment);
  } catch (const std::exception& error) {
    PyErr_Format(PyExc_RuntimeError, "%s", error.what());
    return false;
  }
}

// A tuple of marks, the number of a moment
PyObject* py_note_on_device(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (count != 2 || !PyTuple_Check(args[0])) return PyErr_Format(PyExc_TypeError, "note_on_device takes a tuple of marks and a moment");
  Marks marks;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(args[0]); ++i)
    marks.push_back(PyLong_AsUnsignedLongLong(PyTuple_GET_ITEM(args[0], i)));
  size_t moment = PyLong_AsUnsignedLong(args[1]);
  if (!PyErr_Occurred() && moment >= kMoments) return PyErr_Format(PyExc_ValueError, "no moment %zu", moment);
  if (!note(std::move(marks), Moment(moment))) return nullptr;
  Py_RETURN_NONE;
}

// A function that tells whether the current stream is being captured, and one that finds the driver's handle of the current
// stream of a device; or None twice.
PyObject* py_follow_device(PyObject*, PyObject* args) {
  PyObject *is_capturing, *find_handle;
  if (!PyArg_ParseTuple(args, "OO", &is_capturing, &find_handle)) return nullptr;
  Py_INCREF(is_capturing);
  Py_XSETREF(state->is_capturing, is_capturing);
  Py_INCREF(find_handle);
  Py_XSETREF(state->find_handle, find_handle);
  Py_RETURN_NONE;
}

// The path of CUDA's driver.
PyObject* py_use_driver(PyObject*, PyObject* path) {
  const char* text = PyUnicode_AsUTF8(path);
  if (!text) return nullptr;
  try {
    state->clock->driver = std::make_unique<CudaDriver>(text);
  } catch (const std::exception& error) {
    return PyErr_Format(PyExc_OSError, "%s", error.what());
  }
  Py_RETURN_NONE;
}

// The age of a base.
PyObject* py_settle_device(PyObject*, PyObject* age) {
  uint64_t base_age_ns = PyLong_AsUnsignedLongLong(age);
  if (PyErr_Occurred()) return nullptr;
  DeviceClock* clock = state->clock;
  std::string text;
  Py_BEGIN_ALLOW_THREADS;
  try {
    clock->settle(base_age_ns);
  } catch (const std::exception& error) {
    text = error.what();
  }
  Py_END_ALLOW_THREADS;
  if (!text.empty()) return PyErr_Format(PyExc_RuntimeError, "%s", text.c_str());
  Py_RETURN_NONE;
}

PyObject* py_settle_in_ops(PyObject*, PyObject* age) {
  state->clock->settles_itself = PyLong_AsUnsignedLongLong(age);
  return PyErr_Occurred() ? nullptr : Py_NewRef(Py_None);
}

PyObject* py_first_device(PyObject*, PyObject*) { return PyLong_FromLong(state->clock->first_device()); }

}  // namespace
}  // namespace rollcall
