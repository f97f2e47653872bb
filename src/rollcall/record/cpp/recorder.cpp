// The C++ recorder: writes the record of every op, every phase and every DDP bucket, without running Python.
//
// Python does what happens once (files, names, sites): it is asked for a number when something is seen for the first
// time. ../ring.py and ../python_recorder.py do the same in Python, for machines without a compiler; ring_format.py
// defines the format.
//
// Two rules prevent deadlocks: the mutex is held for a few stores only, and no thread takes or releases the GIL while it
// holds the mutex. Releasing the last reference to a tensor may take the GIL, so it happens without the mutex.
//
// The parts are the headers beside this file: all are compiled together, with this file. Where the name of a function
// begins with py_, it is a function of the Python module: the table at the end says how Python calls it.

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <pthread.h>
#include <sys/stat.h>

#include <cstddef>
#include <cstdint>
#include <mutex>

#include "ask_python.h"
#include "buckets.h"
#include "calls.h"
#include "device_clock.h"
#include "device_notes.h"
#include "ops.h"
#include "phases.h"
#include "ring.h"
#include "sites.h"
#include "state.h"

namespace rollcall {
namespace {

PyObject* py_begin(PyObject*, PyObject* args) {
  PyObject *recorder, *map, *sorts;
  unsigned long long first, capacity, count_at, counters_at, counters_count_at, most_counters, record_bytes;
  int fd, phase_op, forward_op, all_reduce_op, sum;
  const char* path;
  if (!PyArg_ParseTuple(args, "OOisKKKKKKKO!iiii", &recorder, &map, &fd, &path, &first, &capacity, &record_bytes, &count_at, &counters_at,
                        &counters_count_at, &most_counters, &PyBytes_Type, &sorts, &phase_op, &forward_op, &all_reduce_op, &sum))
    return nullptr;
  if (record_bytes != sizeof(Record)) return PyErr_Format(PyExc_ValueError, "records of %llu bytes", record_bytes);
  Py_buffer view;  // never released: the map is written to until the process ends
  if (PyObject_GetBuffer(map, &view, PyBUF_WRITABLE)) return nullptr;
  take_pending();
  forget_phases();
  std::lock_guard<std::mutex> lock(state->mutex);
  Py_INCREF(recorder);
  state->recorder = recorder;
  state->map = static_cast<char*>(view.buf);
  // A new one for each ring, since marks belong to one; the sampler of the old ring may still use the old one.
  state->clock = new DeviceClock([map = state->map](uint64_t mark, Moment moment, uint64_t at_ns) {
    reinterpret_cast<Record*>(map + mark)->*kTimes[size_t(moment)] = at_ns;
  });
  state->fd = fd;
  state->path = path;
  if (fstat(fd, &state->file)) return PyErr_SetFromErrno(PyExc_OSError);
  state->first = state->reserved_end = first;
  state->capacity = capacity;
  state->count_at = count_at;
  state->counters_at = counters_at;
  state->counters_count_at = counters_count_at;
  state->most_counters = most_counters;
  auto* bytes = reinterpret_cast<const uint8_t*>(PyBytes_AS_STRING(sorts));
  state->sorts.assign(bytes, bytes + PyBytes_GET_SIZE(sorts));
  state->phase_op = phase_op;
  state->forward_op = forward_op;
  state->all_reduce = all_reduce_op;
  state->sum = sum;
  state->main_thread = pthread_self();
  state->count = state->phase = state->phase_site = state->failed_errno = 0;
  state->seqs.clear();
  state->channels.clear();
  state->counters.clear();
  state->phases.clear();
  state->sites.clear();  // numbers belong to one ring
  state->steps.clear();
  state->threads.clear();
  state->groups.clear();
  state->shapes.clear();
  state->buckets.clear();
  state->is_on = true;
  Py_RETURN_NONE;
}

PyObject* py_stop(PyObject*, PyObject*) {
  state->is_on = false;
  Py_RETURN_NONE;
}

#define FAST(name) reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(name))
PyMethodDef methods[] = {
    {"begin", py_begin, METH_VARARGS, "Write to this ring from now on."},
    {"stop", py_stop, METH_NOARGS, "Write no more."},
    {"watch_reducer", py_watch_reducer, METH_VARARGS, "Record the buckets of DDP."},
    {"set_in_op", py_set_in_op, METH_O, "Say whether this thread is in an op that is recorded already."},
    {"is_in_op", py_is_in_op, METH_NOARGS, "Whether it is."},
    {"write", FAST(py_write), METH_FASTCALL, "Write a record; returns its mark."},
    {"attach", py_attach, METH_VARARGS, "What the recorder in Python shares."},
    {"enter", FAST(py_enter), METH_FASTCALL, "Record an op that begins; returns its mark."},
    {"op_completed", FAST(py_op_completed), METH_FASTCALL, "Record that ops have completed."},
    {"note_on_device", FAST(py_note_on_device), METH_FASTCALL, "Have the time noted when the GPU comes to a moment of queued ops."},
    {"follow_device", py_follow_device, METH_VARARGS, "How to ask whether a CUDA graph is being captured."},
    {"use_driver", py_use_driver, METH_O, "Call CUDA's driver where most ops need it."},
    {"settle_device", py_settle_device, METH_O, "Record which ops a GPU has completed."},
    {"settle_in_ops", py_settle_in_ops, METH_O, "Do so with every op from now on."},
    {"first_device", py_first_device, METH_NOARGS, "The GPU that was used first, or -1."},
    {"name_group", py_name_group, METH_VARARGS, "The number and ranks of a group."},
    {"forget_group", py_forget_group, METH_VARARGS, "A group was destroyed."},
    {"name_shape", py_name_shape, METH_VARARGS, "The number of the signature of a tensor."},
    {"set_object_count", py_set_object_count, METH_O, "How many objects the collective of this thread is about."},
    {"all_reduce_options", py_all_reduce_options, METH_O, "The reduce op and flags of an all_reduce."},
    {"share", py_share, METH_VARARGS, "What the hooks share with calls."},
    {"make_all_reduce", py_make_all_reduce, METH_VARARGS, "An all_reduce that does what its hook does, mostly without Python."},
    {"make_wait", py_make_wait, METH_VARARGS, "The same, for the wait of a handle."},
    {"received_from", FAST(py_received_from), METH_FASTCALL, "Note whose message a receive from any rank has taken."},
    {"site", py_site, METH_NOARGS, "The number of the site of the caller."},
    {"completed", py_completed, METH_O, "Note that an op completed now."},
    {"begin_phase", FAST(py_begin_phase), METH_FASTCALL, "Begin a phase of the program; returns its mark."},
    {"end_phase", py_end_phase, METH_O, "End it."},
    {"begin_forward", py_begin_forward, METH_O, "Begin the forward of a DDP module; returns the mark of that phase."},
    {"begin_step", FAST(py_begin_step), METH_FASTCALL, "Begin the step of an optimizer."},
    {"end_step", FAST(py_end_step), METH_FASTCALL, "End it."},
    {"sleep", py_sleep, METH_VARARGS, "Let the sampler sleep until there is something to sample."},
    {"wake", py_wake, METH_NOARGS, "End that sleep."},
    {"fail_buckets", py_fail_buckets, METH_NOARGS, "Mark the buckets of this backward as failed."},
    {"is_waiting", py_is_waiting, METH_NOARGS, "Whether a backward waits for its buckets."},
    {"count", py_count, METH_NOARGS, "How many records have been written."},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef module = {PyModuleDef_HEAD_INIT, "recorder", "The C++ recorder.", -1, methods};

}  // namespace
}  // namespace rollcall

PyMODINIT_FUNC PyInit_recorder() { return PyModule_Create(&rollcall::module); }
