"""Watches the ranks of this host while they run.

output           passes on what ranks print
hang_detector    notices ranks that make no progress
hang_report      what agents of hosts that were started by hand tell each other when no rank makes progress
idle_ranks       tells ranks that wait from ranks that compute
sleeping_ranks   notices ranks in which every thread waits for a lock
stopped_ranks    notices ranks that were stopped by a signal
stack_requests   asks ranks for their stacks
thread_states    what the threads of a process do, as the kernel tells it
stack_collection reads the stacks of ranks without a signal to them
rank_requests    asks ranks to do something while their program runs
ring_upload      sends rings to a launcher that does not see this disk
gpu_samples      writes what the GPUs do to a file beside the rings
nccl_ras         asks NCCL's RAS service about a run that makes no progress
flight_recorder  makes nccl write its dumps to the run's folder
"""
