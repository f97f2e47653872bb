"""Used by train/strategies.py."""

from rollcall.compat.patch import Patch

PATCH = Patch(
    name="compiled_modules",
    purpose="compiles a model in place, also one whose forward is torch's own code",
    lost_without="rollcall.wrap(compile=True) fails",
    uses=("torch.nn:Module._call_impl", "torch.nn:Module._compiled_call_impl"),
)
