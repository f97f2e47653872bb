"""Watches the ranks of this host while they run.

output           passes on what ranks print
hang_detector    notices ranks that make no progress
hang_report      what the agent of another host can know of these ranks while the run stands still
idle_ranks       tells ranks that wait from ranks that compute
sleeping_ranks   notices ranks in which every thread waits for a lock
stopped_ranks    notices ranks that were stopped by a signal
stack_requests   asks ranks for their stacks
stack_collection finds out where ranks are without that their program notices
rank_requests    has ranks do something while their program runs
ring_upload      sends rings to a launcher that does not see this disk
gpu_samples      notes what the GPUs do, beside the rings
nccl_ras         asks NCCL's own service about a run that stands still
flight_recorder  has nccl write its own record to the run's folder
"""
