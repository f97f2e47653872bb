"""Shows a running job, and asks its ranks.

reader    reads what is new in the rings
state     what every rank does now, and its processor and memory
terminal  `rollcall watch`
server    `rollcall watch --web`
stacks    `rollcall stacks`
rate_limit  limits what is computed to a share of a core
metrics/    numbers for Prometheus and OpenTelemetry
attach      `rollcall attach`
profile     `rollcall profile`
questions   asks the launcher of a run
"""
