"""Draws what explain computed: a page in one HTML file, and a trace for Perfetto. It computes nothing itself.

write     `rollcall report`: gathers all that a page shows
page      the HTML; assets/ has its style and scripts
compare   the page about two runs
figures   the plots of the page, by bokeh
heat_map  who waits for whom, and which host sends to which, as a matrix
excerpt   the lines of the program around a site
logs      what each rank printed, line by line, with its time
facts     hosts, versions, command, outcome
slices    a run as intervals on tracks
rehearsed, rehearsed_figures  memory and traffic of a rehearsal
profiles  what torch.profiler has written beside the rings
perfetto  these tracks as a file for Perfetto and chrome://tracing
"""
