"""The conformance kit: what a lease store must do, as tests that any store can inherit.

In a test module of the store's own::

    import pytest
    from celery_singleton_lock.testing.conformance import LeaseStoreFacts

    class TestMyStore(LeaseStoreFacts):
        @pytest.fixture
        def open_again(self):
            return functools.partial(MyStore, "my://server", prefix=uuid.uuid4().hex)

`open_again` opens one more connection to the *same*, initially empty, set of records each time it is
called; it must be picklable, as some facts call it in other processes. Further kits, each with the
fixture it needs:

- `MemoryLossFacts`: ``lose_memory``, a function that makes the store forget everything;
- `RestartFacts`: ``restart_server``, a function that kills and restarts the server with its data;
- `NetworkFacts`: ``proxy``, a `TcpProxy` through which ``open_again`` connects.

In ``conftest.py``, call ``pytest.register_assert_rewrite("celery_singleton_lock.testing.conformance")``
first, to see what was compared when a fact does not hold.
"""

from .faults import MemoryLossFacts, NetworkFacts, RestartFacts
from .grants import GrantFacts
from .history import LastOwnerFacts, ParkFacts, PositionFacts
from .lists import BookFacts, ExpiryFacts
from .model import ModelFacts
from .people import BatchFacts, MeetingFacts, PeopleFacts
from .rivals import RivalFacts

__all__ = [
    "LeaseStoreFacts",
    "MemoryLossFacts",
    "NetworkFacts",
    "RestartFacts",
]


class LeaseStoreFacts(
    GrantFacts,
    PositionFacts,
    ParkFacts,
    LastOwnerFacts,
    ExpiryFacts,
    BookFacts,
    BatchFacts,
    MeetingFacts,
    PeopleFacts,
    RivalFacts,
    ModelFacts,
):
    """Everything that a store must do on a good day."""
