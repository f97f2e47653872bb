"""Processes as Linux sees them. Knows nothing of ranks, and imports nothing else of rollcall.

prctl          ties the lifetime of processes together
landlock       takes the right to change files outside of some folders
process_tree   all descendants of a process, and ending them
process_group  signals to a process and what it has started
process_title  the command line that ps shows
py_spy         the Python stack of another process, where py-spy is installed
child_process  a child that was started without the subprocess module
signals        signals that would end this process, noted for later
standard_streams  streams that are closed, or that cannot be written any more
fd_messages    JSON and open files over a Unix socket
private_folder a folder for sockets that only this user can open
warm_servers   the warm servers of this user, and what they answer
malloc         keeps freed memory for the next block
open_files     how many files this process may have open
process_state  what a process hands down to its children
"""
