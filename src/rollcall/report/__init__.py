"""What explain knows, as pictures: a page of its own, and live. The files:

timeline   ops of all ranks → bars of waiting and communicating, each with its call
matrix     who waited for whom, and what if nobody had had to wait for one rank
traffic    what went over the network: by op, by site, by size
logs       what each rank printed, line by line, with the time at which it came
excerpt    the lines of the program around a site
facts      hosts, versions, command, outcome
pack       columns of numbers → a short text that a page can hold
figures    bokeh's part of the page
page       all of it in one HTML file, which needs nothing else; assets/ has its style and script
write      `rollcall report`
live       the rings while they are written; now: what each rank does, usage: what it takes of the machine
watch      that in a terminal; web: the page in a browser, while the run goes on
slices     a run as stretches of time on tracks; perfetto: the same as a file for Perfetto and chrome://tracing
"""
