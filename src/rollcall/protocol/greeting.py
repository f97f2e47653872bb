"""The lines that an agent prints before it speaks in messages: a login shell may print other things first."""

GREETING = "rollcall> "  # begins a line that says how far the start has come
AGENT_SPEAKS = f"{GREETING}agent"
