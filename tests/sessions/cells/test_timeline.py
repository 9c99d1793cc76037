"""Which cells a session's checkpoints come after."""

from __future__ import annotations

from sessions.cells.timeline import Timeline


def test_a_checkpoint_knows_the_last_cell_whose_effects_it_has() -> None:
    timeline = Timeline()
    timeline.keep("before", ())
    timeline.add(1)
    timeline.add(2)
    timeline.keep("after", ("before",))
    timeline.add(3)
    assert (timeline.last_of("before"), timeline.last_of("after"), timeline.last_of("other")) == (None, 2, None)
    timeline.return_to("after", oldest=1)
    timeline.add(4)
    timeline.keep("later", ("after",))
    assert (timeline.last_of("before"), timeline.last_of("after"), timeline.last_of("later")) == (None, 2, 4)
