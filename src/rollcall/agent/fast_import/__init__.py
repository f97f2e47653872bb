"""A shorter import of torch, in the agent. Everything here saves time and changes nothing else.

begin         loads torch's libraries in a thread while Python imports other modules
code_cache    reads the code of torch's modules before they are imported
torch_import  spares torch's import some repeated work
preload       what ranks will import sooner or later, by what their program names
"""
