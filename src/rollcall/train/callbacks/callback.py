"""`Callback`: a class with a method for each moment of a training. All of them are called on every rank."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, get_args

if TYPE_CHECKING:
    from rollcall.train.trainer import Trainer

CallbackEvent = Literal["fit_begin", "epoch_begin", "step_begin", "step_end", "metrics", "epoch_end", "save", "fit_end"]


class Callback:
    """Override what you need. One that has `state_dict` and `load_state_dict` is saved in snapshots."""

    def fit_begin(self, trainer: "Trainer") -> None:
        """Before the first step; a snapshot is loaded already."""

    def epoch_begin(self, trainer: "Trainer") -> None: ...

    def step_begin(self, trainer: "Trainer", batches: list[Any]) -> None:
        """Before the forward pass, with the batches of the step."""

    def step_end(self, trainer: "Trainer") -> None:
        """After the optimizer; `trainer.step` counts this step."""

    def metrics(self, trainer: "Trainer", metrics: dict[str, float]) -> None:
        """After an epoch, before its metrics are written: change them, or add some."""

    def epoch_end(self, trainer: "Trainer", metrics: dict[str, float]) -> None: ...

    def save(self, trainer: "Trainer") -> None:
        """Before a snapshot is taken."""

    def fit_end(self, trainer: "Trainer") -> None: ...


class Callbacks:
    """Calls what is overridden: a moment that nobody uses costs nothing in a step."""

    def __init__(self, callbacks: Sequence[Callback]) -> None:
        self._of: dict[str, list[Callable[..., None]]] = {
            moment: [getattr(each, moment) for each in callbacks if _overrides(each, moment)]
            for moment in get_args(CallbackEvent)
        }

    def call(self, moment: CallbackEvent, *args: Any) -> None:
        for function in self._of[moment]:
            function(*args)


def find_problem(callbacks: Sequence[Any]) -> str | None:
    for each in callbacks:
        if not isinstance(each, Callback):
            return f"a callback is a {type(each).__name__}: expected an object of a subclass of rollcall.Callback"
    return None


def named_states(callbacks: Sequence[Callback]) -> dict[str, Any]:
    """Those that are saved, by the name of their class; a second one of a class gets a number."""
    named: dict[str, Any] = {}
    for each in callbacks:
        if hasattr(each, "state_dict") and hasattr(each, "load_state_dict"):
            same = sum(name.startswith(f"callback {type(each).__name__}") for name in named)
            named[f"callback {type(each).__name__}{f' {same + 1}' if same else ''}"] = each
    return named


def _overrides(callback: Callback, moment: str) -> bool:
    return getattr(type(callback), moment) is not getattr(Callback, moment)
