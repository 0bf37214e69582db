"""What the shop does when somebody orders."""

from __future__ import annotations

from sqlalchemy.orm import Session

from celery_singleton_lock import outbox

from .models import Order, OrderChange, Payment
from .tasks import send_order_email


def place_order(session: Session, region: str, customer: str, cents: int) -> Order:
    """The order and the message that will send its e-mail commit together, or neither does."""
    order = Order(region=region, customer=customer, cents=cents)
    session.add(order)
    session.flush()
    session.add(Payment(order_id=order.id, cents=cents))
    session.add(OrderChange(order_id=order.id, what="placed"))
    outbox.send(session, send_order_email, args=(order.id,), key=f"order:{order.id}")
    return order
