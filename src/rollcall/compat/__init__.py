"""Every place where torch, gloo or CPython is patched, one file each.

gloo_exit      a gloo group is left without hanging
gloo_listener  gloo's listening thread yields instead of spinning
torch_dns      torch's sockets do not wait for a name server that does not answer
"""
