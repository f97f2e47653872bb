"""What to look for in a run, one file per sort of trouble. Each look takes the view and yields findings.

ends         ranks that failed, were killed or stopped, or left early
collectives  ranks that are in the same call and disagree
order        the same calls in another order
absences     calls that somebody does not come to
messages     sends and receives
handles      async ops: buffers that change, waits that are missing
ddp          modules that are wrapped in DDP
speed        ranks that keep the others waiting
"""
