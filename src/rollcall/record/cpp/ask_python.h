// Asks Python for the numbers of names, and tells it of an error that ends recording. All of this needs the GIL, which Gil takes
// in a thread that may not hold it.

#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <pthread.h>

#include <cstdint>

#include "state.h"

namespace rollcall {
namespace {

// Returns a number, or -1 with an exception set.
int64_t ask(const char* method, PyObject* argument) {
  PyObject* answer = argument ? PyObject_CallMethod(state->recorder, method, "(O)", argument)
                              : PyObject_CallMethod(state->recorder, method, nullptr);
  if (!answer) return -1;
  int64_t number = PyLong_AsLongLong(answer);
  Py_DECREF(answer);
  return number;
}

// Takes the current exception and ends recording, so that the exception does not reach the program.
void stop_recording() {
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  PyErr_NormalizeException(&type, &value, &traceback);
  PyObject* done = PyObject_CallMethod(state->recorder, "stop_after", "(O)", value ? value : Py_None);
  if (!done) PyErr_Clear();
  Py_XDECREF(done);
  Py_XDECREF(type);
  Py_XDECREF(value);
  Py_XDECREF(traceback);
}

int64_t thread_number() {
  pthread_t self = pthread_self();
  if (pthread_equal(self, state->main_thread)) return 0;
  auto found = state->threads.find(self);
  if (found != state->threads.end()) return found->second;
  int64_t number = ask("name_thread", nullptr);
  if (number >= 0) state->threads[self] = number;
  return number;
}

struct Gil {
  PyGILState_STATE state = PyGILState_Ensure();
  ~Gil() { PyGILState_Release(state); }
};

}  // namespace
}  // namespace rollcall
