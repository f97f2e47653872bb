"""Distributed programs from seeds, correct and with one planted bug each, to measure `rollcall explain`.

script     the text of a program, and what is known of each of its calls
parts      what programs are composed of: collectives, groups, sends and receives, training
programs   a correct program from a seed
guilt      what is known of a bug: which kinds, ranks and lines are a right answer
edits      how the text changes around one line
bugs       the mutations
mutations  chooses a mutation, a line and a rank for a program
server     the process that ranks are forked from
worlds     runs programs on warm ranks, several worlds at a time, and ends those that hang
activity   decides whether a world hangs
score      compares verdicts with what is known; prints the confusion matrix
kept       programs in files, with what is known of their bug
measure    runs the programs of many seeds, and counts
peers      what torch's own tools say of the same programs
__main__   the command: `make fuzz-explain N=200`
"""
