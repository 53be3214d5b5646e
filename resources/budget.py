"""Money: the metered call. Reserve, send, record, release, all of it in PostgreSQL.

It fails closed: when the budget cannot be read, nothing is sent.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from decimal import Decimal
from uuid import UUID

import dagster as dg

import sql
from resources.clock import Clock
from resources.database import Database
from resources.errors import BudgetExceeded, ConfigurationError, GatewayError
from resources.gateway import Decision

QUERIES = sql.load("budget")

FORGET_DECIDE = "memory.forget.decide"

CEILINGS = {FORGET_DECIDE: Decimal("0.01")}
"""US dollars that one call of an operation may cost at most; an unpriced call counts as this."""

WINDOW = timedelta(days=30)
RESERVATION_LIFE = timedelta(seconds=120)
MILLION = Decimal(1_000_000)


class Budget(dg.ConfigurableResource):  # type: ignore[type-arg]
    """What a tenant may spend on judging. Caps are US dollars in a rolling 30 days.

    ``prices`` has US dollars per million input and output tokens by exact answer model. A model
    without a price is recorded as unpriced and counts at the operation's ceiling.
    """

    database: dg.ResourceDependency[Database]
    clock: dg.ResourceDependency[Clock]
    cap_usd: float = 10.0
    prices: dict[str, list[float]] = {}  # noqa: RUF012 - pydantic copies the default

    def metered(
        self, user_id: UUID, operation: str, model: str, send: Callable[[], Decision]
    ) -> Decision:
        """Send one call inside the budget.

        A row of usage is written at once for every call that the endpoint may charge, whatever
        became of it. Raises BudgetExceeded before anything is sent, and what ``send`` raises.
        """
        with self.reserved(user_id, operation):
            try:
                decision = send()
            except GatewayError as error:
                if error.billed:
                    self._record(user_id, operation, model, None, None)
                raise
            self._record(
                user_id, operation, decision.model, decision.input_tokens, decision.output_tokens
            )
            return decision

    @contextmanager
    def reserved(self, user_id: UUID, operation: str) -> Iterator[None]:
        """Hold the ceiling of one call while it is under way. Raises BudgetExceeded."""
        if operation not in CEILINGS:
            raise ConfigurationError(f"The operation {operation} has no cost ceiling: register it.")
        ceiling = CEILINGS[operation]
        now = self.clock.now()
        with self.database.tenant(user_id) as tx:
            tx.rows(QUERIES["lock_budget"])
            spend = tx.one(
                QUERIES["read_spend"],
                now=now,
                window_start=now - WINDOW,
                reserved_since=now - RESERVATION_LIFE,
                default_cap=Decimal(str(self.cap_usd)),
                ceiling=ceiling,
            )
            if spend.spent_usd + spend.reserved_usd + ceiling > spend.cap_usd:
                raise BudgetExceeded(
                    f"Judging stops: {spend.spent_usd:.4f} of {spend.cap_usd:.4f} US dollars are "
                    f"spent and {spend.reserved_usd:.4f} reserved, and a call may cost "
                    f"{ceiling}. What was judged stays; raise FORGETTING_BUDGET_USD or the "
                    "tenant's cap_usd_override, or wait for the window to move."
                )
            held = tx.one(QUERIES["insert_reservation"], estimate=ceiling, now=now).id
        try:
            yield
        finally:
            with self.database.tenant(user_id) as tx:
                tx.run(QUERIES["delete_reservation"], id=held)

    def cost(
        self, model: str, input_tokens: int | None, output_tokens: int | None
    ) -> Decimal | None:
        """US dollars of one call, or None where the model's price or the usage is not known."""
        price = self.prices.get(model)
        if price is None or input_tokens is None or output_tokens is None:
            return None
        per_input, per_output = (Decimal(str(each)) for each in price)
        return (input_tokens * per_input + output_tokens * per_output) / MILLION

    def _record(
        self,
        user_id: UUID,
        operation: str,
        model: str,
        input_tokens: int | None,
        output_tokens: int | None,
    ) -> None:
        with self.database.tenant(user_id) as tx:
            tx.run(
                QUERIES["insert_usage"],
                operation=operation,
                model=model,
                input_tokens=input_tokens,
                output_tokens=output_tokens,
                cost_usd=self.cost(model, input_tokens, output_tokens),
                now=self.clock.now(),
            )
