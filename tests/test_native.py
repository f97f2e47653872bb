"""Where compiled parts lie, and when one is told to compile them. A small module stands for the real ones."""

import os
import shutil
from pathlib import Path

import pytest

from rollcall import native
from rollcall.torch_version import torch_version

MODULE = """\
#include <Python.h>
static PyObject* answer(PyObject*, PyObject*) { return PyLong_FromLong(42); }
static PyMethodDef methods[] = {{"answer", answer, METH_NOARGS, nullptr}, {nullptr, nullptr, 0, nullptr}};
static PyModuleDef module = {PyModuleDef_HEAD_INIT, "small", nullptr, -1, methods};
PyMODINIT_FUNC PyInit_small() { return PyModule_Create(&module); }
"""
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only C++ part of a package, for a user with an empty cache folder."""
    path = tmp_path / "package" / "small.cpp"
    path.parent.mkdir()
    path.write_text(MODULE)
    monkeypatch.setattr(native, "SOURCES", (path,))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("ROLLCALL_NATIVE", raising=False)
    return path


def _refuse_writing(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """As for a package that root has installed. Root, who may run these tests, can write everywhere."""
    can_access = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: path != folder and can_access(path, mode))


@needs_compiler
def test_it_lies_beside_its_source(source: Path) -> None:
    assert native.build(source).parent == source.parent
    assert native.load(source).answer() == 42


@needs_compiler
def test_it_lies_in_the_users_cache_where_the_package_cannot_be_written(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _refuse_writing(monkeypatch, source.parent)
    assert native.build(source).parent == tmp_path / "cache" / "rollcall"
    assert list(source.parent.iterdir()) == [source]
    assert native.load(source).answer() == 42


def test_a_file_for_another_torch_is_not_taken(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    beside, cached = native._targets(source)
    beside.touch()
    cached.parent.mkdir(parents=True)
    cached.touch()
    assert native.find(source) == beside
    monkeypatch.setattr(native, "torch_version", lambda: "2.9.0")
    assert native.find(source) is None


def test_a_file_of_other_headers_is_not_taken(source: Path) -> None:
    """A part of a module may be in a header beside its source."""
    header = source.with_name("part.h")
    header.write_text("constexpr int kAnswer = 42;")
    native._targets(source)[0].touch()
    assert native.find(source)
    header.write_text("constexpr int kAnswer = 43;")
    assert native.find(source) is None


def test_where_nothing_can_be_written_one_sentence_says_so(
    source: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _refuse_writing(monkeypatch, source.parent)
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null")
    monkeypatch.setenv("CXX", "true")
    assert native.main() == 1
    expected = f"rollcall: neither {source.parent} nor /dev/null/rollcall can be written: Not a directory\n"
    assert capsys.readouterr().err == expected


def test_without_a_compiler_one_sentence_says_so(
    source: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert native.main() == 1
    assert capsys.readouterr().err == "rollcall: there is no C++ compiler: install g++, or continue without\n"


def test_compiling_is_suggested_once(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Again only for another torch."""
    monkeypatch.setenv("CXX", "true")
    assert "python -m rollcall.native" in str(native.suggestion())
    assert native.suggestion() is None
    monkeypatch.setattr(native, "torch_version", lambda: "2.9.0")
    assert native.suggestion() is not None


@pytest.mark.parametrize("why_not", ["compiled", "no compiler", "switched off"])
def test_compiling_is_not_suggested_in_vain(source: Path, monkeypatch: pytest.MonkeyPatch, why_not: str) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler" if why_not == "no compiler" else "true")
    if why_not == "compiled":
        native._targets(source)[0].touch()
    if why_not == "switched off":
        monkeypatch.setenv("ROLLCALL_NATIVE", "0")
    assert native.suggestion() is None


def test_the_version_of_torch_is_that_of_the_loaded_one() -> None:
    """The compiled file is named by it: before and after torch is imported it must be the same name."""
    import torch

    assert torch_version() == torch.__version__
