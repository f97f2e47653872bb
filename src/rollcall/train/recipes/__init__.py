"""What `rollcall train` trains: the digits, or a recipe of the user's.

recipe   `Recipe`: model, optimizer, data
find     imports a recipe by its name
program  what every rank runs
"""
