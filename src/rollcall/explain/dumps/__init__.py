"""Reads dumps of torch's Flight Recorder (pickles or JSON, of nccl, gloo and others) as if they were rings.

files     finds the dumps of a folder, and which rank wrote each
plain     unpickles plain data, and nothing that could run code
names     what backends call their ops
entries   one dump → the records of a ring
jobs      whether all dumps are of one job, and which groups it has
times     what all dumps together say about when ops began and ended, and which never did
read      a folder of dumps → rings

The format is that of torch 2.9 to 2.15, whose dumps call it version 2.7 to 2.10.
"""
