"""Python functions on ranks: `rollcall.spawn`, pytest, the lab.

api          the public function
pool         calls a function on ranks; keeps the fork server for the next call
worker       the fork server, and a rank that it forks
warm         takes a fork server from a process of `rollcall warm`
warm_server  that process
module_path  whether two values of sys.path lead to the same modules
__main__     starts the fork server, or the warm process
"""
