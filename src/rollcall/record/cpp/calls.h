// Calls without a frame of Python. A hook of ../hooks is a few functions of Python around an original. Almost every op is an
// all_reduce that is waited for at once: for these, the calls below do what its hooks do. What is unusual is left to the hooks.

#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <cstddef>
#include <cstdint>
#include <exception>

#include <ATen/PythonTorchFunctionTLS.h>

#include "ops.h"
#include "ring.h"
#include "state.h"

namespace rollcall {
namespace {

// As the methods of torch it is a function of C++ that torch.compile knows not to trace.
struct HookedCall {
  PyMethodDef definition;
  PyObject *original, *hooked;  // torch's own, and that with the hook around it
  PyObject *after, *failed;  // the hook's functions
};

// What the hooks share with these calls.
struct Shared {
  PyTypeObject *group = nullptr, *work = nullptr;  // torch's own classes; subclasses may override their methods
  PyObject* batches = nullptr;  // by id of a group: ops that begin together later
  PyObject* unwaited = nullptr;  // by id: handles that have not been waited for, and the state of each
  PyObject* newest = nullptr;  // a list of one: the id of the newest handle of an op that is not async
  PyObject* report = nullptr;  // takes the name of a hook and its error
} shared;

// Whether the program sees what functions of torch are asked for: ../hooks/patching.py.
bool has_modes() { return at::impl::PythonTorchFunctionTLS::stack_len() > 0; }

// The error that is set goes to the guard of the hooks. Returns false if it is the program's, and set again.
bool report_error(const char* name) {
  if (!PyErr_ExceptionMatches(PyExc_Exception)) return false;
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  PyErr_NormalizeException(&type, &value, &traceback);
  if (traceback) PyException_SetTraceback(value, traceback);
  PyObject* done = PyObject_CallFunction(shared.report, "sO", name, value);
  for (PyObject* each : {type, value, traceback, done}) Py_XDECREF(each);
  return done;
}

// Calls a function of a hook. Returns false with the program's error set.
bool call_hook(const char* name, PyObject* function, PyObject* state, PyObject* result = nullptr) {
  PyObject* done = PyObject_CallFunctionObjArgs(function, state, result, nullptr);
  Py_XDECREF(done);
  return done || report_error(name);
}

// The original has raised: the hook is told, and the program gets that error.
void tell_failure(const char* name, PyObject* failed, PyObject* state) {
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  if (call_hook(name, failed, state)) PyErr_Restore(type, value, traceback);
  else for (PyObject* each : {type, value, traceback}) Py_XDECREF(each);
}

// As works.keep_until_next of the hooks, where it keeps nothing yet. Returns false with an exception set.
bool keep_until_next(PyObject* work, PyObject* state) {
  PyObject *key = PyLong_FromVoidPtr(work), *kept = key ? PyTuple_Pack(2, work, state) : nullptr;
  bool is_kept = kept && !PyDict_SetItem(shared.unwaited, key, kept) && !PyList_SetItem(shared.newest, 0, Py_NewRef(key));
  Py_XDECREF(key);
  Py_XDECREF(kept);
  return is_kept;
}

// Returns the mark of an all_reduce as torch's own function calls it; null without an exception where it is unusual.
PyObject* enter_all_reduce(PyObject* const* args, uint16_t& flags) {
  if (PyDict_GET_SIZE(shared.batches) || !PyList_CheckExact(args[1]) || PyList_GET_SIZE(args[1]) != 1) return nullptr;
  const auto* options = all_reduce_options(args[2]);
  auto group = options ? state->groups.find(args[0]) : state->groups.end();
  if (group == state->groups.end()) return nullptr;
  PlainOp called;
  called.op = state->all_reduce;
  called.flags = flags = options->asyncOp ? kAsync : 0;
  called.reduce = PyLong_AsLong(state->reduce_ops[size_t(options->reduceOp.op_)]);
  called.tensor = PyList_GET_ITEM(args[1], 0);
  try {
    uint32_t signature = plain_signature(called.tensor);
    return signature ? enter_plain(called, group->second, signature) : nullptr;
  } catch (const std::exception&) {  // a tensor that does not tell its size
    return nullptr;
  }
}

PyObject* run_all_reduce(PyObject* self, PyObject* const* args, Py_ssize_t count, PyObject* names) {
  static const char* const name = "all_reduce";
  auto* call = static_cast<HookedCall*>(PyCapsule_GetPointer(self, nullptr));
  bool is_usual = state->is_on && count == 3 && !names && Py_TYPE(args[0]) == shared.group && !has_modes();
  uint16_t flags = 0;
  PyObject* mark = is_usual ? enter_all_reduce(args, flags) : nullptr;
  if (!mark) {
    if (PyErr_Occurred() && !report_error(name)) return nullptr;
    return PyObject_Vectorcall(call->hooked, args, count, names);
  }
  PyObject* entered = Py_BuildValue("(Ni)", mark, int(flags));
  if (!entered) return nullptr;
  is_in_op = true;
  PyObject* result = PyObject_Vectorcall(call->original, args, count, nullptr);
  is_in_op = false;
  if (!result) {
    tell_failure(name, call->failed, entered);
  } else {
    bool is_first = !flags && Py_TYPE(result) == shared.work && !PyDict_GET_SIZE(shared.unwaited);
    bool is_well = is_first ? keep_until_next(result, entered) || report_error(name) : call_hook(name, call->after, entered, result);
    if (!is_well) Py_CLEAR(result);
  }
  Py_DECREF(entered);
  return result;
}

// Takes what is kept of a handle, where its op is not async; null without an exception where there is nothing.
PyObject* take_waited_for(PyObject* work) {
  PyObject *key = PyLong_FromVoidPtr(work), *kept = key ? PyDict_GetItemWithError(shared.unwaited, key) : nullptr;
  PyObject* entered = kept ? PyTuple_GET_ITEM(kept, 1) : nullptr;
  bool is_usual = entered && PyTuple_GET_SIZE(entered) == 2 && !PyLong_AsLong(PyTuple_GET_ITEM(entered, 1));
  PyObject* taken = is_usual ? Py_NewRef(entered) : nullptr;
  if (taken && PyDict_DelItem(shared.unwaited, key)) Py_CLEAR(taken);
  Py_XDECREF(key);
  return taken;
}

PyObject* run_wait(PyObject* self, PyObject* const* args, Py_ssize_t count, PyObject* names) {
  static const char* const name = "wait";
  auto* call = static_cast<HookedCall*>(PyCapsule_GetPointer(self, nullptr));
  bool is_usual = state->is_on && count == 1 && !names && Py_TYPE(args[0]) == shared.work && !has_modes();
  PyObject* entered = is_usual ? take_waited_for(args[0]) : nullptr;
  if (!entered) {
    if (PyErr_Occurred() && !report_error(name)) return nullptr;
    return PyObject_Vectorcall(call->hooked, args, count, names);
  }
  PyObject* result = PyObject_Vectorcall(call->original, args, count, nullptr);
  if (!result) tell_failure(name, call->failed, entered);
  else if (!complete_op(PyTuple_GET_ITEM(entered, 0)) && !report_error(name)) Py_CLEAR(result);
  Py_DECREF(entered);
  return result;
}

// Torch's own method, that with its hook around it, and the hook's two functions that follow: returns a method.
using Run = PyObject* (*)(PyObject*, PyObject* const*, Py_ssize_t, PyObject*);

PyObject* make_call(Run run, PyObject* args) {
  PyObject *original, *hooked, *after, *failed;
  if (!PyArg_ParseTuple(args, "O!OOO", &PyCFunction_Type, &original, &hooked, &after, &failed)) return nullptr;
  for (PyObject* kept : {original, hooked, after, failed}) Py_INCREF(kept);  // until the process ends, as the hooks
  const PyMethodDef* known = reinterpret_cast<PyCFunctionObject*>(original)->m_ml;
  auto* call = new HookedCall{
      {known->ml_name, reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(run)), METH_FASTCALL | METH_KEYWORDS, known->ml_doc},
      original, hooked, after, failed};
  PyObject* capsule = PyCapsule_New(call, nullptr, nullptr);
  PyObject* function = capsule ? PyCFunction_NewEx(&call->definition, capsule, reinterpret_cast<PyCFunctionObject*>(original)->m_module) : nullptr;
  PyObject* method = function ? PyInstanceMethod_New(function) : nullptr;
  Py_XDECREF(capsule);
  Py_XDECREF(function);
  return method;
}

PyObject* py_make_all_reduce(PyObject*, PyObject* args) { return make_call(run_all_reduce, args); }

PyObject* py_make_wait(PyObject*, PyObject* args) { return make_call(run_wait, args); }

PyObject* py_share(PyObject*, PyObject* args) {
  PyObject *group, *work, *batches, *unwaited, *newest, *report;
  if (!PyArg_ParseTuple(args, "O!O!O!O!O!O", &PyType_Type, &group, &PyType_Type, &work, &PyDict_Type, &batches, &PyDict_Type, &unwaited,
                        &PyList_Type, &newest, &report))
    return nullptr;
  for (PyObject* kept : {group, work, batches, unwaited, newest, report}) Py_INCREF(kept);  // until the process ends
  shared = {reinterpret_cast<PyTypeObject*>(group), reinterpret_cast<PyTypeObject*>(work), batches, unwaited, newest, report};
  Py_RETURN_NONE;
}

}  // namespace
}  // namespace rollcall
