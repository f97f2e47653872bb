"""The recorder's hand in C++: a tenth of the time for each phase of a DDP step, two thirds of it for an op.

Where it was not compiled (rollcall.native does that), Python does the same.

recorder.cpp     the hand itself
ring        the ring that it writes to
recorder    the recorder that moves it
"""

from pathlib import Path

from rollcall import native

pen = native.load(Path(__file__).with_name("recorder.cpp"))
