"""A run as bars on rows of ranks: what the report page and the live page draw.

model   the bars
scene   what a page shows of them at one zoom
encode  the same as bytes for the browser
"""
