"""The launcher's part of `breakpoint()`, `rollcall attach`, `rollcall profile` and `rollcall shell`.

debuggers       ranks that are stopped in a debugger, and which of them has the terminal
terminals       the terminals of debuggers
rank_questions  answers `rollcall attach` and `rollcall profile`
relay           passes bytes between ranks and the prompt of `rollcall shell`, or a client of debugpy
"""
