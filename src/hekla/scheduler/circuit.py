"""When is a service that was silent asked again? After a few silences in a row not for a while, and for longer each time."""

from dataclasses import dataclass

SILENCES = 3
REST_S, MOST_REST_S = 5.0, 60.0


@dataclass
class Circuit:
    """What is known of one service. `now_s` is any clock that only grows."""

    silences: int = 0
    """In a row."""

    rest_s: float = 0.0
    open_until_s: float = 0.0
    words: str = ""
    """What the last silence was."""

    def may_ask(self, now_s: float) -> bool:
        """Whether it is worth a try."""
        return now_s >= self.open_until_s

    def answered(self) -> None:
        """It is well."""
        self.silences, self.rest_s, self.open_until_s, self.words = 0, 0.0, 0.0, ""

    def was_silent(self, now_s: float, words: str) -> float:
        """It was silent once more; how long it is left alone from now on, 0 if it is not."""
        self.silences, self.words = self.silences + 1, words
        if self.silences < SILENCES:
            return 0.0
        self.rest_s = min(self.rest_s * 2 or REST_S, MOST_REST_S)
        self.open_until_s = now_s + self.rest_s
        return self.rest_s

    def sentence(self, now_s: float) -> str:
        """Why it is not asked: `... cannot be reached: refused; silent 3 times in a row, it is not asked for 5 s`."""
        rest_s = max(self.open_until_s - now_s, 0.0)
        return f"{self.words}; silent {self.silences} times in a row, it is not asked for {rest_s:.0f} s"
