"""Signs of progress that all ranks see, for a wait in which a slower rank may take long.

They are a counter in the rendezvous store, which costs no collective.
"""

from __future__ import annotations

import time

from torch.distributed import Work
from torch.distributed.distributed_c10d import Store

from trainer import phase

KEY = "orchestrate/beats"
TELL_S = 0.5  # between two signs of one rank, or two looks for them: the store has to serve all
FIRST_PAUSE_S, LAST_PAUSE_S = 0.001, 0.05  # between two looks at the collective


class SharedBeats:
    """One rank's part. store: the rendezvous store, shared by all ranks."""

    def __init__(self, store: Store) -> None:
        self._store, self._heard, self._told_at = store, 0, time.monotonic()

    def tell(self) -> None:
        """This rank makes progress; the others hear of it now and then."""
        phase.beat()
        if time.monotonic() - self._told_at >= TELL_S:
            self._store.add(KEY, 1)
            self._told_at = time.monotonic()

    def wait(self, work: Work) -> None:
        """Wait for a collective, as long as it lasts; progress of any rank is progress of this one.

        Raises what the collective raises, which has a time limit of its own.
        """
        pause_s, look_at = FIRST_PAUSE_S, time.monotonic()
        while not work.is_completed():
            if time.monotonic() >= look_at:
                self._hear()
                look_at = time.monotonic() + TELL_S
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, LAST_PAUSE_S)
        work.wait()

    def _hear(self) -> None:
        heard = self._store.add(KEY, 0)  # unlike get it does not wait for the key
        if heard != self._heard:
            self._heard = heard
            phase.beat()
