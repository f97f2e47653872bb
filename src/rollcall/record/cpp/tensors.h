// What a record says of a tensor: its version, its size, and the number of its signature. ../tensors.py and ../signatures.py
// describe it in Python.

#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <cstdint>

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/python_variable.h>

#include "state.h"

namespace rollcall {
namespace {

uint32_t version(const at::Tensor& tensor) {
  if (tensor.is_inference()) return 0;
  if (tensor.is_view() && tensor._base().numel() > tensor.numel()) return 0;
  return tensor._version();
}

// As tensors.py computes it, for the layouts that DDP sends.
uint64_t size_bytes(const at::Tensor& tensor) {
  if (tensor.is_sparse()) return tensor._indices().nbytes() + tensor._values().nbytes();
  return tensor.layout() == at::kStrided ? tensor.nbytes() : 0;
}

// The number of the signature of one tensor that is alone in its op; 0 if Python has not named it yet.
uint32_t shape_number(const at::Tensor& tensor) {
  Shape& shape = state->shape;
  shape.assign(1, int64_t(tensor.scalar_type()));
  shape.insert(shape.end(), tensor.sizes().begin(), tensor.sizes().end());
  auto found = state->shapes.find(shape);
  return found == state->shapes.end() ? 0 : found->second;
}

// Whether the tensor has one block of memory and fixed sizes: Python describes the others.
bool is_plain(PyObject* tensor) {
  if (Py_TYPE(tensor) != reinterpret_cast<PyTypeObject*>(THPVariableClass)) return false;
  const at::Tensor& unpacked = THPVariable_Unpack(tensor);
  return unpacked.layout() == at::kStrided && !unpacked.is_nested() && !unpacked.unsafeGetTensorImpl()->has_symbolic_sizes_strides();
}

// tensor, number
PyObject* py_name_shape(PyObject*, PyObject* args) {
  PyObject* tensor;
  unsigned int number;
  if (!PyArg_ParseTuple(args, "OI", &tensor, &number)) return nullptr;
  try {
    if (number && is_plain(tensor) && !shape_number(THPVariable_Unpack(tensor))) state->shapes[state->shape] = number;
  } catch (const std::exception&) {  // it is described by Python each time
  }
  Py_RETURN_NONE;
}

}  // namespace
}  // namespace rollcall
