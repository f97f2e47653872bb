"""From the files of a run to one table of the ops of all ranks.

rings         reads one ring file: records, and what they name by number
cut           the records of a ring as they were at one moment
table         the records of all ranks on one clock, a column per field
lost_records  which records are missing: overwritten, or never written
stored_lines  the lines of the program as they were
gpus          what was noted of the GPUs of each host
load          the rings and run.json of one attempt, or dumps → a Run
"""
