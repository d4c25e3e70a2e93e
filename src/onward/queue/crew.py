"""The workers of one queue on one factory: they tell together that it is drained."""


class Crew:
    """How many jobs its workers have in their hands, and whether they had any since the queue was last drained."""

    def __init__(self) -> None:
        self.jobs = 0
        self.had_work = False

    def begin(self) -> None:
        """One more."""
        self.jobs += 1
        self.had_work = True

    def end(self) -> bool:
        """One less; whether it was the last."""
        self.jobs -= 1
        return self.jobs == 0

    def is_idle(self) -> bool:
        """Whether everything they had is done, and nobody was told yet."""
        return self.had_work and self.jobs == 0
