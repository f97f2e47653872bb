"""Serves who debugs a run: `breakpoint()`, `rollcall attach` and `rollcall profile`.

debuggers       ranks that stand in a debugger, and whose turn it is
terminals       where somebody talks to a debugger
rank_questions  answers `rollcall attach` and `rollcall profile`
"""
