"""One cell in flight: its events, its end and its outputs; and the transcript of all cells."""
