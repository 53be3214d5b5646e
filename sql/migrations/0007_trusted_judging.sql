-- What makes judging safe with money and with what cannot be judged: calls written down before they
-- are sent, the spend of the whole deployment, one token rate for all runs, the items that got no
-- verdict, and the answers of the shadow questions.

CREATE TABLE forgetting.calls_under_way (
    user_id uuid NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    id uuid NOT NULL,
    operation text NOT NULL,
    model text NOT NULL,
    announced_at timestamptz NOT NULL,
    PRIMARY KEY (user_id, id)
);

CREATE TABLE forgetting.unjudged_items (
    id uuid PRIMARY KEY DEFAULT uuidv7(),
    run_date date NOT NULL,
    user_id uuid NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    memory_id uuid NOT NULL,
    newer_id uuid,
    input_digest text NOT NULL,
    model text NOT NULL,
    reason text NOT NULL CHECK (reason IN ('too_large', 'answer_rejected')),
    detail text NOT NULL,
    recorded_at timestamptz NOT NULL,
    FOREIGN KEY (user_id, memory_id) REFERENCES memories (user_id, id) ON DELETE CASCADE,
    FOREIGN KEY (user_id, newer_id) REFERENCES memories (user_id, id) ON DELETE CASCADE
);

CREATE INDEX unjudged_items_recorded_idx ON forgetting.unjudged_items (user_id, recorded_at);

CREATE TRIGGER refuse_episodic BEFORE INSERT OR UPDATE ON forgetting.unjudged_items
FOR EACH ROW EXECUTE FUNCTION forgetting.refuse_episodic('memory_id', 'newer_id');

CREATE TABLE forgetting.shadow_answers (
    user_id uuid NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    verdict_id uuid NOT NULL,
    same_matter double precision CHECK (same_matter BETWEEN 0 AND 1),
    one_outdated double precision CHECK (one_outdated BETWEEN 0 AND 1),
    PRIMARY KEY (user_id, verdict_id),
    FOREIGN KEY (user_id, verdict_id)
    REFERENCES forgetting.judged_verdicts (user_id, id) ON DELETE CASCADE
);

DO $$
DECLARE
    tenant_table regclass;
BEGIN
    FOREACH tenant_table IN ARRAY ARRAY[
        'forgetting.calls_under_way', 'forgetting.unjudged_items', 'forgetting.shadow_answers'
    ]::regclass[]
    LOOP
        EXECUTE format('ALTER TABLE %s ENABLE ROW LEVEL SECURITY', tenant_table);
        EXECUTE format('ALTER TABLE %s FORCE ROW LEVEL SECURITY', tenant_table);
        EXECUTE format(
            'CREATE POLICY tenant_isolation ON %s '
            'USING (user_id = nullif(current_setting(''app.user_id'', true), '''')::uuid) '
            'WITH CHECK (user_id = nullif(current_setting(''app.user_id'', true), '''')::uuid)',
            tenant_table
        );
    END LOOP;
END
$$;

-- Sums over all tenants, which no tenant's row may be read for: these two tables know of none.
CREATE TABLE forgetting.deployment_spend (
    day date PRIMARY KEY,
    committed_usd numeric(20, 12) NOT NULL CHECK (committed_usd >= 0)
);

-- What was spent before counts: known costs, and unknown ones at their ceiling of 0.01.
DO $$
DECLARE
    tenant uuid;
BEGIN
    FOR tenant IN SELECT id FROM users LOOP
        PERFORM set_config('app.user_id', tenant::text, true);
        INSERT INTO forgetting.deployment_spend AS d (day, committed_usd)
        SELECT (u.created_at AT TIME ZONE 'UTC')::date, sum(coalesce(u.cost_usd, 0.01))
        FROM llm_usage AS u
        WHERE u.user_id = tenant AND u.operation = 'memory.forget.decide'
        GROUP BY 1
        ON CONFLICT (day) DO UPDATE SET committed_usd = d.committed_usd + excluded.committed_usd;
    END LOOP;
    PERFORM set_config('app.user_id', '', true);
END
$$;

CREATE TABLE forgetting.token_rate (
    singleton boolean PRIMARY KEY DEFAULT TRUE CHECK (singleton),
    taken_until timestamptz NOT NULL
);

INSERT INTO forgetting.token_rate (taken_until) VALUES ('-infinity');

-- A verdict may be asked for again on purpose, and the earlier one stays.
ALTER TABLE forgetting.judged_verdicts
ADD COLUMN asking integer NOT NULL DEFAULT 1 CHECK (asking >= 1);

DO $$
DECLARE
    old name;
BEGIN
    SELECT conname INTO STRICT old FROM pg_constraint
    WHERE conrelid = 'forgetting.judged_verdicts'::regclass AND contype = 'u'
        AND cardinality(conkey) = 5;
    EXECUTE format('ALTER TABLE forgetting.judged_verdicts DROP CONSTRAINT %I', old);
END
$$;

ALTER TABLE forgetting.judged_verdicts
ADD CONSTRAINT judged_verdicts_once_key
UNIQUE (user_id, run_date, memory_id, input_digest, model, asking);

-- How many memories a tenant has, whatever a policy of the caller's or a missing setting hides from
-- it. A policy that binds the owner too hides from both; under a superuser's ownership none does. It
-- tells a number and no row; the caller may set app.user_id itself, so it learns nothing by this.
CREATE FUNCTION forgetting.count_as_owner(tenant uuid) RETURNS bigint
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, public, pg_temp
AS $$
DECLARE
    before text := current_setting('app.user_id', true);
    found_rows bigint;
BEGIN
    -- An owner that is no superuser is bound by the same forced policy.
    PERFORM set_config('app.user_id', tenant::text, TRUE);
    SELECT count(*) INTO found_rows FROM memories AS m WHERE m.user_id = tenant;
    PERFORM set_config('app.user_id', coalesce(before, ''), TRUE);
    RETURN found_rows;
END
$$;

REVOKE ALL ON FUNCTION forgetting.count_as_owner(uuid) FROM public;

GRANT EXECUTE ON FUNCTION forgetting.count_as_owner(uuid) TO forgetting_runtime;
GRANT SELECT, INSERT, DELETE ON forgetting.calls_under_way TO forgetting_runtime;
GRANT SELECT, INSERT ON forgetting.unjudged_items, forgetting.shadow_answers TO forgetting_runtime;
GRANT SELECT, INSERT, UPDATE ON forgetting.deployment_spend TO forgetting_runtime;
GRANT SELECT, UPDATE ON forgetting.token_rate TO forgetting_runtime;

COMMENT ON TABLE forgetting.calls_under_way IS
'Calls that were announced and have not come back, one row a call. A row that outlives its run is of a '
'call that may have been charged: the tenant''s next run books it as usage of unknown cost.';
COMMENT ON COLUMN forgetting.calls_under_way.user_id IS 'The tenant the call is made for (users.id).';
COMMENT ON COLUMN forgetting.calls_under_way.id IS
'The reservation that holds its money (budget_reservations.id). While this row exists, that one counts.';
COMMENT ON COLUMN forgetting.calls_under_way.operation IS 'What the call is for, as in llm_usage.';
COMMENT ON COLUMN forgetting.calls_under_way.model IS 'The model that is asked.';
COMMENT ON COLUMN forgetting.calls_under_way.announced_at IS 'When it was written down, UTC.';

COMMENT ON TABLE forgetting.unjudged_items IS
'Items that were put to the judge and got no verdict, one row a time. An item that is too large, or '
'whose answers were rejected three times, is left alone until its memory changes or 30 days pass.';
COMMENT ON COLUMN forgetting.unjudged_items.id IS 'The record.';
COMMENT ON COLUMN forgetting.unjudged_items.run_date IS 'The UTC day that the partition judges.';
COMMENT ON COLUMN forgetting.unjudged_items.user_id IS 'The tenant the row belongs to (users.id).';
COMMENT ON COLUMN forgetting.unjudged_items.memory_id IS 'The memory; in a pair the older one.';
COMMENT ON COLUMN forgetting.unjudged_items.newer_id IS 'The newer of a pair; NULL = a single.';
COMMENT ON COLUMN forgetting.unjudged_items.input_digest IS
'SHA-256 of what the judge was shown, as in judged_verdicts.';
COMMENT ON COLUMN forgetting.unjudged_items.model IS 'The pinned model that was asked.';
COMMENT ON COLUMN forgetting.unjudged_items.reason IS
'too_large: no call can hold it. answer_rejected: the answer broke the contract.';
COMMENT ON COLUMN forgetting.unjudged_items.detail IS 'What was wrong, in a sentence without content.';
COMMENT ON COLUMN forgetting.unjudged_items.recorded_at IS 'When it happened, UTC.';

COMMENT ON TABLE forgetting.shadow_answers IS
'The judge''s answers to two yes/no questions beside a pair''s verdict, when FORGETTING_JUDGE_SHADOW is '
'on. Nothing but the eval reads them.';
COMMENT ON COLUMN forgetting.shadow_answers.user_id IS 'The tenant the row belongs to (users.id).';
COMMENT ON COLUMN forgetting.shadow_answers.verdict_id IS 'The verdict asked beside it.';
COMMENT ON COLUMN forgetting.shadow_answers.same_matter IS
'Probability that both memories are about the same matter, 0 to 1. NULL = no usable answer.';
COMMENT ON COLUMN forgetting.shadow_answers.one_outdated IS
'Probability that one of the two is out of date, 0 to 1. NULL = no usable answer.';

COMMENT ON TABLE forgetting.deployment_spend IS
'What the pass spent on judging for all tenants together, one row a UTC day. It names no tenant.';
COMMENT ON COLUMN forgetting.deployment_spend.day IS 'The UTC day on which the calls were announced.';
COMMENT ON COLUMN forgetting.deployment_spend.committed_usd IS
'US dollars: known costs, and the ceiling of each call that is under way, lost or unpriced.';

COMMENT ON TABLE forgetting.token_rate IS
'How far ahead the token rate that all runs share is taken, exactly one row.';
COMMENT ON COLUMN forgetting.token_rate.singleton IS 'Always TRUE: the table has one row.';
COMMENT ON COLUMN forgetting.token_rate.taken_until IS
'Tokens of every moment before this one are taken, UTC.';

COMMENT ON COLUMN forgetting.judged_verdicts.asking IS
'1 = the first verdict on this input in the partition; more = asked for again on purpose.';
COMMENT ON TABLE budget_reservations IS
'Money held for calls in flight, one row a call. Removed when the call ends. After 120 seconds a row left '
'behind no longer counts, unless its call is still in calls_under_way.';
