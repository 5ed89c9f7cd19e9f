"""What all engines' views count, added up for a scrape. Pure."""

import msgspec

from app.engines.tallies import plus
from app.engines.views import ViewStatus

EVENT_TYPES = {"Stored": "stored", "Removed": "removed", "Cleared": "cleared"}


class EngineTotals(msgspec.Struct):
    """Sums over views. `quarantined` is of those that are there; all else only grows."""

    events: dict[str, int] = msgspec.field(
        default_factory=lambda: dict.fromkeys(EVENT_TYPES.values(), 0)
    )
    frames: int = 0
    repeated_frames: int = 0
    refused_frames: int = 0
    other_rank_frames: int = 0
    gaps: int = 0
    lost_frames: int = 0
    epochs: int = 0
    skipped_events: int = 0
    unattributed: int = 0
    salted_unknown: int = 0
    wrong_block_size: int = 0
    unplaced: int = 0
    beyond_limits: int = 0
    unclear: int = 0
    # Another one's, by why. Never changed in place: copies share it.
    left_out: dict[str, int] = msgspec.field(default_factory=dict)
    index_full: int = 0
    quarantined: int = 0
    quarantine_dropped: int = 0

    def add(self, status: ViewStatus, *, gone: bool = False) -> None:
        """Count a view in; of one that is `gone` nothing waits any more."""
        for name, count in status.events.items():
            self.events[EVENT_TYPES[name]] += count
        self.frames += status.frames
        self.repeated_frames += status.repeated_frames
        self.refused_frames += status.refused_frames
        self.other_rank_frames += status.other_rank_frames
        self.gaps += status.gaps
        self.lost_frames = plus(self.lost_frames, status.lost_frames)
        self.epochs += status.epoch
        self.skipped_events += sum(status.skipped_types.values())
        tallies = status.tallies
        self.unattributed += tallies.unattributed
        self.salted_unknown += tallies.salted_unknown
        self.wrong_block_size += tallies.wrong_block_size
        self.unplaced += tallies.unplaced
        self.beyond_limits += tallies.beyond_limits
        self.unclear += tallies.unclear
        self.left_out = self.left_out | {
            reason: plus(self.left_out.get(reason, 0), count)
            for reason, count in status.left_out.items()
        }
        self.index_full += status.index_full
        self.quarantined += 0 if gone else status.quarantined
        self.quarantine_dropped += status.quarantine_dropped
