"""Makes the import of torch in the agent shorter. Everything here saves time and changes nothing else.

begin         loads torch's libraries in a thread while Python imports other modules
code_cache    reads the code of torch's modules before they are imported
torch_import  avoids repeated work in torch's import
preload       which modules to import for the ranks, by the names that their program uses
"""
