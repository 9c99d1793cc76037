"""Which cells a session's variables and files come from: a return to a checkpoint undoes the cells after it. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection

#: numbers of cells, in ascending ranges that do not meet
Cells = tuple[range, ...]


class Timeline:
    """The cells of one session whose effects are there now, and those that were there at each of its checkpoints."""

    def __init__(self) -> None:
        self._present: Cells = ()
        #: the cells whose effects each checkpoint has, by the id of the checkpoint's image
        self._moments: dict[str, Cells] = {}

    def add(self, number: int) -> None:
        """Count a new cell, whose number is higher than all earlier ones."""
        *earlier, last = self._present or (range(number, number),)
        if last.stop != number:  # the cells between were undone
            earlier, last = [*earlier, last], range(number, number)
        self._present = (*earlier, range(last.start, number + 1))

    def keep(self, image: str, others: Collection[str]) -> None:
        """Remember the present moment.

        Args:
            image: id of the image of a new checkpoint.
            others: ids of the images of all other checkpoints that the session still has.
        """
        known = {other: self._moments[other] for other in others if other in self._moments}
        self._moments = known | {image: self._present}

    def last_of(self, image: str) -> int | None:
        """Return the number of the last cell whose effects a checkpoint has.

        Args:
            image: id of the checkpoint's image.

        Returns:
            the number. None if no cell had run, or an earlier gateway has taken the checkpoint.
        """
        moment = self._moments.get(image)
        return moment[-1].stop - 1 if moment else None

    def return_to(self, image: str, oldest: int) -> None:
        """Return to a checkpoint: the effects of all cells after it are undone.

        Args:
            image: id of the checkpoint's image. If an earlier gateway has taken the checkpoint, all cells are undone.
            oldest: number of the oldest cell that is of interest. Older ones are forgotten.
        """
        self._present = tuple(cells for cells in self._moments.get(image, ()) if cells.stop > oldest)

    def has(self, number: int) -> bool:
        """Return whether the effects of the cell with this number are there, and were not undone."""
        place = bisect_right(self._present, number, key=lambda cells: cells.start)
        return place > 0 and number in self._present[place - 1]
