"""What happened in a run, for the eye.

slices    a run as stretches of time on tracks, and arrows from those who came last to those who waited
perfetto  the same as a file for Perfetto and chrome://tracing
"""
