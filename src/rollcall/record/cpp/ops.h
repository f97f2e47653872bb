// Ops that the hooks of Python see: records those of one plain tensor, and leaves the others to ../python_recorder.py.

#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <mutex>
#include <utility>
#include <vector>

#include <pybind11/pybind11.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include "ask_python.h"
#include "device_clock.h"
#include "device_notes.h"
#include "ring.h"
#include "sites.h"
#include "state.h"
#include "tensors.h"

namespace rollcall {
namespace {

// What Python does where this does not: an op that is not of one plain tensor, or that names something new.
PyObject* enter_slowly(PyObject* const* args) {
  static PyObject* const name = PyUnicode_InternFromString("enter_slowly");
  PyObject* words[] = {state->recorder, args[0], args[1], args[2]};
  return PyObject_VectorcallMethod(name, words, 4 | PY_VECTORCALL_ARGUMENTS_OFFSET, nullptr);
}

// What an op of one plain tensor is called with. `peer` is a rank of the group.
struct PlainOp {
  uint16_t op = 0, flags = 0, reduce = 0;
  int32_t peer = -1, tag = 0;
  PyObject* tensor = nullptr;
};

// The number of its signature; 0 where Python has to describe the op.
uint32_t plain_signature(PyObject* tensor) {
  return is_plain(tensor) && !has_objects ? shape_number(THPVariable_Unpack(tensor)) : 0;
}

// Records the op, whose signature is known. What torch may throw comes before the record is written.
PyObject* enter_plain(const PlainOp& called, const Group& group, uint32_t signature) {
  const at::Tensor& tensor = THPVariable_Unpack(called.tensor);
  Record record{};
  record.signature = signature;
  record.flags = called.flags;
  record.op = called.op;
  record.group = group.number;
  record.peer = called.peer;
  if (record.peer >= 0 && size_t(record.peer) < group.ranks.size()) record.peer = group.ranks[record.peer];
  record.tag = called.tag;
  record.reduce = called.reduce;
  record.size_bytes = tensor.nbytes();
  bool is_cuda = tensor.is_cuda(), is_watched = record.flags & kAsync || is_cuda;
  if (is_watched) record.version_issued = version(tensor);
  int64_t thread = thread_number(), site = thread < 0 ? -1 : site_number();
  if (site < 0) return nullptr;
  record.thread = thread;
  record.site = site;
  int64_t mark;
  {
    std::lock_guard<std::mutex> lock(state->mutex);
    mark = write(record);
  }
  if (mark == kNoRecord) return raise_errno();
  if (is_cuda && !note(Marks(1, mark), Moment::kArrived)) return nullptr;
  PyObject* result = PyLong_FromLongLong(mark);
  if (!is_watched || !result) return result;
  // A program may never use the result of a functional collective: its input is not kept for that.
  PyObject* kept = record.flags & kWaited ? PyWeakref_NewRef(called.tensor, nullptr) : Py_NewRef(called.tensor);
  PyObject* facts = kept ? Py_BuildValue("(iNO)", int(record.flags), kept, is_cuda ? Py_True : Py_False) : nullptr;
  int failed = facts ? PyDict_SetItem(state->watched, result, facts) : -1;
  Py_XDECREF(facts);
  if (!failed) return result;
  Py_DECREF(result);
  return nullptr;
}

PyObject* enter(PyObject* const* args) {
  PyObject *call = args[2], *tensors = PyTuple_GET_ITEM(call, 0);
  auto group = state->groups.find(args[1]);
  bool is_usual = group != state->groups.end() && PyTuple_GET_SIZE(tensors) == 1 && PyTuple_GET_SIZE(PyTuple_GET_ITEM(call, 4)) == 0;
  uint32_t signature = is_usual ? plain_signature(PyTuple_GET_ITEM(tensors, 0)) : 0;
  long flags = PyLong_AsLong(PyTuple_GET_ITEM(call, 5));
  if (!signature || flags & kBucket) return enter_slowly(args);
  PlainOp called;
  called.op = PyLong_AsLong(args[0]);
  called.flags = flags;
  called.peer = PyLong_AsLong(PyTuple_GET_ITEM(call, 1));
  called.tag = PyLong_AsLong(PyTuple_GET_ITEM(call, 2));
  called.reduce = PyLong_AsLong(PyTuple_GET_ITEM(call, 3));
  called.tensor = PyTuple_GET_ITEM(tensors, 0);
  return PyErr_Occurred() ? nullptr : enter_plain(called, group->second, signature);
}

// op, group, CallArgs: tensors, peer, tag, reduce, splits, flags
PyObject* py_enter(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (count != 3) return PyErr_Format(PyExc_TypeError, "enter takes an op, a group and its arguments");
  if (!state->is_on) return PyLong_FromLongLong(kNoRecord);
  try {
    return enter(args);
  } catch (const std::exception&) {  // a tensor that does not tell its size
    return enter_slowly(args);
  }
}

// The usual op of a GPU: not async, and nothing else is waited for. The host has queued it.
bool is_queued(PyObject* mark) {
  PyObject* facts = PyDict_GetItemWithError(state->watched, mark);
  return facts && PyTuple_GET_ITEM(facts, 2) == Py_True && !PySet_GET_SIZE(state->waited_for) && state->is_on;
}

bool complete_queued(PyObject* mark) {
  Marks marks(1, PyLong_AsUnsignedLongLong(mark));
  return !PyDict_DelItem(state->watched, mark) && note(std::move(marks), Moment::kCompleted);
}

PyObject* complete_slowly(PyObject* const* marks, Py_ssize_t count) {
  static PyObject* const name = PyUnicode_InternFromString("complete_slowly");
  std::vector<PyObject*> words(1, state->recorder);
  words.insert(words.end(), marks, marks + count);
  return PyObject_VectorcallMethod(name, words.data(), words.size(), nullptr);
}

// Returns false with an exception set.
bool complete_op(PyObject* mark) {
  if (!PyDict_GET_SIZE(state->watched) && !PySet_GET_SIZE(state->waited_for)) {
    int64_t number = PyLong_AsLongLong(mark);
    if (number == -1 && PyErr_Occurred()) return false;
    if (number != kNoRecord && state->is_on) complete(number, now_ns());
    return true;
  }
  if (is_queued(mark)) return complete_queued(mark);
  if (PyErr_Occurred()) return false;
  PyObject* done = complete_slowly(&mark, 1);
  Py_XDECREF(done);
  return done;
}

// marks: Python follows the ends of async ops, and of those on a GPU.
PyObject* py_op_completed(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (count != 1) return complete_slowly(args, count);
  if (!complete_op(args[0])) return nullptr;
  Py_RETURN_NONE;
}

// group, number, ranks
PyObject* py_name_group(PyObject*, PyObject* args) {
  PyObject *group, *ranks;
  unsigned int number;
  if (!PyArg_ParseTuple(args, "OIO!", &group, &number, &PyList_Type, &ranks)) return nullptr;
  Group named{number, {}};
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(ranks); ++i) named.ranks.push_back(PyLong_AsLong(PyList_GET_ITEM(ranks, i)));
  if (PyErr_Occurred()) return nullptr;
  state->groups[group] = std::move(named);
  Py_RETURN_NONE;
}

// The address of a group that was destroyed, and the weak reference to it, whose callback this is.
PyObject* py_forget_group(PyObject*, PyObject* args) {
  PyObject *address, *reference;
  if (!PyArg_ParseTuple(args, "OO", &address, &reference)) return nullptr;
  void* group = PyLong_AsVoidPtr(address);
  if (!group && PyErr_Occurred()) return nullptr;
  state->groups.erase(static_cast<PyObject*>(group));
  Py_RETURN_NONE;
}

PyObject* py_set_in_op(PyObject*, PyObject* value) {
  is_in_op = value == Py_True;
  Py_RETURN_NONE;
}

PyObject* py_is_in_op(PyObject*, PyObject*) { return PyBool_FromLong(is_in_op); }

PyObject* py_set_object_count(PyObject*, PyObject* count) {
  has_objects = PyLong_AsLong(count) > 0;
  Py_RETURN_NONE;
}

// The options of an all_reduce; null where they are not a plain object of torch's. pybind11 takes a microsecond for them; here
// they are read from the object that it wraps.
const c10d::AllreduceOptions* all_reduce_options(PyObject* options) {
  auto* instance = reinterpret_cast<pybind11::detail::instance*>(options);
  if (Py_TYPE(options) != state->options_type || !instance->simple_layout) return nullptr;
  auto* value = static_cast<const c10d::AllreduceOptions*>(instance->simple_value_holder[0]);
  return value && size_t(value->reduceOp.op_) < state->reduce_ops.size() ? value : nullptr;
}

// The reduce op of an all_reduce, and its flags.
PyObject* py_all_reduce_options(PyObject*, PyObject* options) {
  static PyObject* const name = PyUnicode_InternFromString("read_options");
  static PyObject* const flags[] = {PyLong_FromLong(0), PyLong_FromLong(kAsync)};
  const auto* value = all_reduce_options(options);
  if (value) return PyTuple_Pack(2, state->reduce_ops[size_t(value->reduceOp.op_)], flags[value->asyncOp]);
  return PyObject_CallMethodOneArg(state->recorder, name, options);
}

// The recorder's `watched` and `waited_for`, the type of an all_reduce's options, and numbers of reduce ops.
PyObject* py_attach(PyObject*, PyObject* args) {
  PyObject *watched, *waited_for, *type, *reduce_ops;
  if (!PyArg_ParseTuple(args, "O!O!O!O!", &PyDict_Type, &watched, &PySet_Type, &waited_for, &PyType_Type, &type, &PyTuple_Type, &reduce_ops))
    return nullptr;
  for (PyObject* kept : {watched, waited_for, type, reduce_ops}) Py_INCREF(kept);  // until the process ends
  state->watched = watched;
  state->waited_for = waited_for;
  state->options_type = reinterpret_cast<PyTypeObject*>(type);
  state->reduce_ops.clear();
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(reduce_ops); ++i) state->reduce_ops.push_back(PyTuple_GET_ITEM(reduce_ops, i));
  Py_RETURN_NONE;
}

}  // namespace
}  // namespace rollcall
