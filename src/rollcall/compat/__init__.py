"""Every place where torch, gloo, CPython or pytest is patched or a private name of theirs is used, one file each.

dynamo_frames   keeps torch.compile from tracing the recorder
gloo_exit       destroys a gloo group without a deadlock
gloo_listener   makes gloo's listening thread yield instead of spinning
kineto_thread   lets torch.profiler begin in a rank without an error
torch_dns       keeps torch from waiting for a name server that does not answer
torch_groups    all groups, the ranks of one, and one by its name
torch_timeouts  the time limits of a group
private_names/  what code elsewhere uses
patch           what each of them says of itself, and its self-check
patches         all of them

torch is imported inside functions: processes that have not imported it ask for the table, or for `torch_dns`.
"""
