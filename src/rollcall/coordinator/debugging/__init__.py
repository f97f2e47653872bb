"""Serves who works with the ranks of a run: `breakpoint()`, `rollcall attach`, `rollcall profile`, `rollcall shell`.

debuggers       ranks that stand in a debugger, and whose turn it is
terminals       where somebody talks to a debugger
rank_questions  answers `rollcall attach` and `rollcall profile`
relay           passes bytes between ranks and the prompt of `rollcall shell`, or a client of debugpy
"""
