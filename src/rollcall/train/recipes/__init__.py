"""What `rollcall train` trains: the digits, or a recipe of the user's.

config   the options of `rollcall train`, and how they are handed to the ranks
recipe   `Recipe`: model, optimizer, data
find     imports a recipe by its name
program  what every rank runs
"""
