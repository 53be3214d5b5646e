"""Money: the metered call. Reserve, announce, send, settle, all of it in PostgreSQL.

It fails closed: when the budget cannot be read, nothing is sent, and a call whose process died
counts as charged.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from uuid import UUID

import dagster as dg
import sqlalchemy as sa

import sql
from resources.clock import Clock
from resources.database import Database, TenantTransaction
from resources.errors import BudgetExceeded, ConfigurationError, ForgettingError, GatewayError
from resources.gateway import Decision

QUERIES = sql.load("budget")

FORGET_DECIDE = "memory.forget.decide"

CEILINGS = {FORGET_DECIDE: Decimal("0.01")}
"""US dollars that one call of an operation may cost at most; an unpriced call counts as this."""

WINDOW = timedelta(days=30)
RESERVATION_LIFE = timedelta(seconds=120)
MILLION = Decimal(1_000_000)


@dataclass(frozen=True)
class Reservation:
    """The ceiling of one call, held from ``made_at`` until the call is settled."""

    id: UUID
    user_id: UUID
    operation: str
    model: str
    ceiling: Decimal
    made_at: datetime


@dataclass(frozen=True)
class Spend:
    """What a tenant may spend in the window, and what counts against it, in US dollars."""

    cap_usd: Decimal
    spent_usd: Decimal
    reserved_usd: Decimal


class Budget(dg.ConfigurableResource):  # type: ignore[type-arg]
    """What judging may cost: a tenant and the whole deployment, US dollars in a rolling 30 days.

    ``prices`` has US dollars per million input and output tokens by exact answer model. A model
    without a price is recorded as unpriced and counts at the operation's ceiling.
    """

    database: dg.ResourceDependency[Database]
    clock: dg.ResourceDependency[Clock]
    cap_usd: float = 10.0
    deployment_cap_usd: float = 100.0
    prices: dict[str, list[float]] = {}  # noqa: RUF012 - pydantic copies the default

    def metered(
        self, user_id: UUID, operation: str, model: str, send: Callable[[], Decision]
    ) -> Decision:
        """Send one call inside the budget.

        A row of usage is written at once for every call that the endpoint may charge, whatever
        became of it. Raises BudgetExceeded before anything is sent, and what ``send`` raises. After
        an error that is not ours nobody knows whether the call left: it stays announced, and
        ``book_lost`` counts it as sent.
        """
        held = self.reserve(user_id, operation, model)
        try:
            decision = send()
        except GatewayError as error:
            if error.billed:
                self._charge(held, model, None, None)
            else:
                self.release(held)
            raise
        except ForgettingError:
            self.release(held)
            raise
        self._charge(held, decision.model, decision.input_tokens, decision.output_tokens)
        return decision

    def reserve(self, user_id: UUID, operation: str, model: str) -> Reservation:
        """Hold the ceiling of one call and write the call down as announced, or BudgetExceeded."""
        if operation not in CEILINGS:
            raise ConfigurationError(f"The operation {operation} has no cost ceiling: register it.")
        ceiling = CEILINGS[operation]
        now = self.clock.now()
        with self.database.tenant(user_id) as tx:
            tx.rows(QUERIES["lock_budget"])
            spend = self.spend(tx, now, ceiling)
            if spend.spent_usd + spend.reserved_usd + ceiling > spend.cap_usd:
                raise BudgetExceeded(
                    f"Judging stops: {spend.spent_usd:.4f} of {spend.cap_usd:.4f} US dollars are "
                    f"spent and {spend.reserved_usd:.4f} reserved, and a call may cost "
                    f"{ceiling}. What was judged stays; raise FORGETTING_BUDGET_USD or the "
                    "tenant's cap_usd_override, or wait for the window to move."
                )
            self._commit_to_deployment(tx, ceiling, now)
            held: UUID = tx.one(QUERIES["insert_reservation"], estimate=ceiling, now=now).id
            tx.run(QUERIES["announce_call"], id=held, operation=operation, model=model, now=now)
        return Reservation(held, user_id, operation, model, ceiling, now)

    def spend(
        self, tx: TenantTransaction, now: datetime, ceiling: Decimal = CEILINGS[FORGET_DECIDE]
    ) -> Spend:
        """How the tenant's budget stands; an unpriced call counts as ``ceiling``."""
        row = tx.one(
            QUERIES["read_spend"],
            now=now,
            window_start=now - WINDOW,
            reserved_since=now - RESERVATION_LIFE,
            default_cap=Decimal(str(self.cap_usd)),
            ceiling=ceiling,
        )
        return Spend(row.cap_usd, row.spent_usd, row.reserved_usd)

    def committed_usd(self, connection: sa.Connection, now: datetime) -> Decimal:
        """US dollars that all tenants together spent or reserved on judging in the window."""
        committed: Decimal = connection.execute(
            QUERIES["read_deployment_spend"], {"first_day": (now - WINDOW).date()}
        ).scalar_one()
        return committed

    def release(self, held: Reservation) -> None:
        """Let go of what was held for a call that cannot have been charged."""
        with self.database.tenant(held.user_id) as tx:
            if self._end(tx, held):
                _adjust_deployment(tx, held, Decimal(0))

    def book_lost(self, user_id: UUID, operation: str) -> int:
        """Count the tenant's calls that never came back as sent, at an unknown cost; how many.

        Only for who holds the tenant's judging lock: nobody else may have such a call under way.
        """
        with self.database.tenant(user_id) as tx:
            return tx.run(QUERIES["book_lost_calls"], operation=operation)

    def cost(
        self, model: str, input_tokens: int | None, output_tokens: int | None
    ) -> Decimal | None:
        """US dollars of one call, or None where the model's price or the usage is not known."""
        price = self.prices.get(model)
        if price is None or input_tokens is None or output_tokens is None:
            return None
        per_input, per_output = (Decimal(str(each)) for each in price)
        return (input_tokens * per_input + output_tokens * per_output) / MILLION

    def _commit_to_deployment(self, tx: TenantTransaction, ceiling: Decimal, now: datetime) -> None:
        cap = Decimal(str(self.deployment_cap_usd))
        tx.rows(QUERIES["lock_deployment_budget"])
        committed = self.committed_usd(tx.connection, now)
        if committed + ceiling > cap:
            raise BudgetExceeded(
                f"Judging stops: {committed:.4f} of the deployment's {cap:.4f} US dollars are "
                f"spent or reserved, and a call may cost {ceiling}. What was judged stays; raise "
                "FORGETTING_DEPLOYMENT_BUDGET_USD, or wait for the window to move."
            )
        tx.run(QUERIES["commit_deployment_spend"], day=now.date(), usd=ceiling)

    def _charge(
        self,
        held: Reservation,
        model: str,
        input_tokens: int | None,
        output_tokens: int | None,
    ) -> None:
        """Write the usage of a call and let its reservation go, in one transaction."""
        cost = self.cost(model, input_tokens, output_tokens)
        with self.database.tenant(held.user_id) as tx:
            if not self._end(tx, held):
                return  # another run took it for lost and booked it at its ceiling
            if cost is not None:
                _adjust_deployment(tx, held, cost)
            tx.run(
                QUERIES["insert_usage"],
                operation=held.operation,
                model=model,
                input_tokens=input_tokens,
                output_tokens=output_tokens,
                cost_usd=cost,
                now=self.clock.now(),
            )

    @staticmethod
    def _end(tx: TenantTransaction, held: Reservation) -> bool:
        ended = tx.run(QUERIES["end_call"], id=held.id)
        tx.run(QUERIES["delete_reservation"], id=held.id)
        return ended == 1


def _adjust_deployment(tx: TenantTransaction, held: Reservation, cost: Decimal) -> None:
    """Put the cost of a call in the place of the ceiling that was committed for it."""
    tx.run(QUERIES["commit_deployment_spend"], day=held.made_at.date(), usd=cost - held.ceiling)
