"""Numbers of a running job, for Prometheus and OpenTelemetry. A process of its own computes and serves them.

monitor     the process: collects now and then, answers scrapes, prints stragglers for the launcher
collector   reads the numbers from the files of the run
metric      one number or several of a name, by labels
prometheus  the text that Prometheus scrapes, and the server for it
otlp        export to OpenTelemetry, where it is installed
"""
