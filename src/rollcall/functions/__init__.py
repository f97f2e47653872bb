"""Python functions on ranks: `rollcall.spawn`, pytest, the lab.

api          the public function
pool         calls a function on ranks; keeps the fork server for the next call
worker       the fork server, and a rank that it forks
warm         takes a fork server from a process that `rollcall warm` keeps ready
warm_server  that process
module_path  whether modules are found alike on two paths
__main__     starts the fork server, or the process that is kept ready
"""
