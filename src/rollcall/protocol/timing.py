"""Times that launcher and agents must agree on."""

PING_S = 2.0
# Silence after which a connection counts as lost. A cut of five seconds is over before: TCP's next try comes after
# 6.2 s, and the last ping was up to 2 s before.
SILENCE_S = 10.0
SETTLE_S = 0.3  # from the first failure until the other ranks are ended: ranks that fail meanwhile are reported, too
# For the agents of hosts that were started by hand to tell each other what they see of a hang: the launcher of each
# notices it by itself, within about three seconds on a machine that is not busy.
HANG_REPORTS_S = 20.0
