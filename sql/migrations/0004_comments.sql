-- Says what analysts read beside each table and each column.

COMMENT ON TABLE forgetting.schema_version IS
'The version of the schema, one row. The migration runner (alembic) makes and keeps it.';
COMMENT ON COLUMN forgetting.schema_version.version_num IS 'The last migration applied.';

COMMENT ON TABLE users IS 'The accounts. One user is one tenant. No row-level security.';
COMMENT ON COLUMN users.id IS 'The user, and the tenant: every user_id refers to it.';
COMMENT ON COLUMN users.email IS 'The email address of the account, unique.';
COMMENT ON COLUMN users.created_at IS 'When the row was written, UTC.';
COMMENT ON COLUMN users.updated_at IS 'When the row was last changed, UTC.';

COMMENT ON TABLE tenants IS
'The users the pass knows: the slug of each and what each opted in to. No row-level security.';
COMMENT ON COLUMN tenants.slug IS
'The name of the tenant, and its partition key. Small letters, digits, _ and -, at most 63 characters.';
COMMENT ON COLUMN tenants.user_id IS 'The user the slug stands for (users.id). One slug a user.';
COMMENT ON COLUMN tenants.judgment_enabled IS
'TRUE when the tenant opted in to judgment. Read immediately before every call to the judge. FALSE by '
'default.';
COMMENT ON COLUMN tenants.archival_enabled IS
'TRUE when the tenant opted in to the archival sweep. FALSE by default.';
COMMENT ON COLUMN tenants.retired_at IS
'When the tenant was retired, UTC. NULL = in service. A retired tenant is skipped, never deleted.';

COMMENT ON TABLE memories IS
'What the agents remember, one row a memory. Live = status ''active'' and valid_to IS NULL. Archived = '
'status ''archived''. Superseded = valid_to set. The pass itself never changes or deletes one. Accepting a '
'proposal may archive or supersede it.';
COMMENT ON COLUMN memories.id IS 'The memory.';
COMMENT ON COLUMN memories.user_id IS 'The tenant the row belongs to (users.id).';
COMMENT ON COLUMN memories.memory_type IS
'One of decision, commitment, blocker, fact, preference, pattern, note, event. The judge sees only '
'decision, preference, blocker and fact. Event and note are episodic: never a candidate, never judged, '
'never proposed.';
COMMENT ON COLUMN memories.topic IS 'What the memory is about, a short text.';
COMMENT ON COLUMN memories.content IS 'The text of the memory. The pass never changes it.';
COMMENT ON COLUMN memories.scope IS
'The area the memory belongs to, such as personal or work. Only memories of one scope are paired.';
COMMENT ON COLUMN memories.project IS
'The project the memory belongs to. NULL = no project. The sides of a pair have the same project, or both '
'have none.';
COMMENT ON COLUMN memories.status IS
'active or archived. A superseded memory stays active: its valid_to is set instead.';
COMMENT ON COLUMN memories.tags IS 'Labels, a JSON array.';
COMMENT ON COLUMN memories.embedding IS
'The vector of the memory, 1536 numbers, from which cosine similarity is computed. NULL = not embedded, so '
'in no pair.';
COMMENT ON COLUMN memories.content_hash IS
'SHA-256 of content, in hex. Unique in a tenant among memories whose valid_to IS NULL.';
COMMENT ON COLUMN memories.valid_from IS 'Since when the memory holds, UTC.';
COMMENT ON COLUMN memories.valid_to IS
'When the memory was superseded, UTC. NULL = not superseded. Never before valid_from.';
COMMENT ON COLUMN memories.recorded_at IS 'When the store took the memory in, UTC.';
COMMENT ON COLUMN memories.created_at IS
'When the row was written, UTC. The newer side of a pair is the one with the greater (created_at, id).';
COMMENT ON COLUMN memories.updated_at IS
'When the memory was last changed, UTC. Freshness = the later of updated_at and last_reviewed_at. The pass '
'never touches it.';
COMMENT ON COLUMN memories.last_reviewed_at IS
'When a user last reaffirmed the memory, UTC. NULL = never. The pass never touches it.';
COMMENT ON COLUMN memories.search_tsv IS 'Search words of topic and content, made by the database.';

COMMENT ON TABLE memory_edges IS 'Links between two memories of a tenant, from the newer to the older.';
COMMENT ON COLUMN memory_edges.id IS 'The edge.';
COMMENT ON COLUMN memory_edges.user_id IS 'The tenant the row belongs to (users.id).';
COMMENT ON COLUMN memory_edges.from_id IS 'The newer memory (memories.id).';
COMMENT ON COLUMN memory_edges.to_id IS 'The older memory (memories.id).';
COMMENT ON COLUMN memory_edges.edge_type IS
'What the newer does to the older: supersedes, updates, extends or derives. Two memories with an edge of '
'any type, in either direction, are not paired.';
COMMENT ON COLUMN memory_edges.created_by IS 'Who or what made the edge.';
COMMENT ON COLUMN memory_edges.created_at IS 'When the edge was made, UTC.';

COMMENT ON TABLE memory_events IS
'The audit trail: one row for each change of a memory. Rows are only ever added.';
COMMENT ON COLUMN memory_events.id IS 'The event.';
COMMENT ON COLUMN memory_events.user_id IS 'The tenant the row belongs to (users.id).';
COMMENT ON COLUMN memory_events.memory_id IS 'The memory that changed (memories.id).';
COMMENT ON COLUMN memory_events.event_kind IS
'What happened: create, revise, supersede, resolve, unresolve, archive, import or embed_failed.';
COMMENT ON COLUMN memory_events.actor_kind IS 'What kind of actor made the change.';
COMMENT ON COLUMN memory_events.payload IS 'Details of the change, a JSON object. Empty = none.';
COMMENT ON COLUMN memory_events.created_at IS 'When the event was recorded, UTC.';

COMMENT ON TABLE consolidation_proposals IS
'Edges proposed by similarity, made outside this pass. A pair named here, in any status, is not paired '
'again by the pass.';
COMMENT ON COLUMN consolidation_proposals.id IS 'The proposal.';
COMMENT ON COLUMN consolidation_proposals.user_id IS 'The tenant the row belongs to (users.id).';
COMMENT ON COLUMN consolidation_proposals.from_id IS 'The newer memory (memories.id).';
COMMENT ON COLUMN consolidation_proposals.to_id IS 'The older memory (memories.id).';
COMMENT ON COLUMN consolidation_proposals.edge_type IS
'The edge proposed: supersedes, updates, extends or derives.';
COMMENT ON COLUMN consolidation_proposals.memory_type IS
'The type of the memories when the proposal was made.';
COMMENT ON COLUMN consolidation_proposals.similarity IS
'Cosine similarity of the two memories, -1 to 1. Not a probability.';
COMMENT ON COLUMN consolidation_proposals.rationale IS 'Why the edge was proposed. NULL = no reason given.';
COMMENT ON COLUMN consolidation_proposals.status IS
'proposed = open, applied = accepted, rejected = declined.';
COMMENT ON COLUMN consolidation_proposals.decided_at IS
'When the proposal was decided, UTC. NULL = not decided.';
COMMENT ON COLUMN consolidation_proposals.created_at IS 'When the proposal was made, UTC.';

COMMENT ON TABLE retention_proposals IS
'What the judge says to do with a memory, for a person to accept or reject. At most one open proposal a '
'memory. A keep, or a verdict below its threshold, is stored as dismissed.';
COMMENT ON COLUMN retention_proposals.id IS
'The proposal. Equals forgetting.judged_verdicts.id of the verdict it came from.';
COMMENT ON COLUMN retention_proposals.user_id IS 'The tenant the row belongs to (users.id).';
COMMENT ON COLUMN retention_proposals.memory_id IS
'The memory the verdict is about (memories.id). For a pair, the older side.';
COMMENT ON COLUMN retention_proposals.action IS
'keep, archive, supersede (the related memory replaces this one) or conflict (the two contradict, and a '
'person must choose). Accepting a conflict changes no memory.';
COMMENT ON COLUMN retention_proposals.related_memory_id IS
'The newer memory named by supersede or conflict (memories.id). NULL = the action is keep or archive.';
COMMENT ON COLUMN retention_proposals.probability IS
'The probability the judge gave the answer it chose, 0 to 1. Compared with the threshold of the action.';
COMMENT ON COLUMN retention_proposals.probabilities IS
'The probability of every answer offered, a JSON object of answer key and number, 0 to 1. Rounded by the '
'judge, so the sum is about 1.';
COMMENT ON COLUMN retention_proposals.model IS 'The pinned judge model.';
COMMENT ON COLUMN retention_proposals.status IS
'proposed = open, applied = accepted, rejected = a reviewer said no, dismissed = set by the pass and never '
'listed for review. A keep is never proposed or applied.';
COMMENT ON COLUMN retention_proposals.decided_at IS 'When the proposal was decided, UTC. NULL = not decided.';
COMMENT ON COLUMN retention_proposals.created_at IS 'When the proposal was written, UTC.';

COMMENT ON TABLE evidence IS
'What sessions left behind, one row an entry. Entries are archived by age and lack of use, never deleted by '
'the pass. An archived entry is not retrieved, but is still reached by id, with the same bytes.';
COMMENT ON COLUMN evidence.id IS 'The entry.';
COMMENT ON COLUMN evidence.user_id IS 'The tenant the row belongs to (users.id).';
COMMENT ON COLUMN evidence.session_id IS 'The session that produced the entry.';
COMMENT ON COLUMN evidence.kind IS
'Episodic: trace, log, tool_input, tool_output, step_outcome. Only these may be archived. Never archived: '
'lesson, rule, mental_model, fact, observation, handoff, archive_block.';
COMMENT ON COLUMN evidence.content IS 'The text of the entry. The sweep never changes it.';
COMMENT ON COLUMN evidence.occurred_at IS 'When it happened, UTC. NULL = no known time, never archived.';
COMMENT ON COLUMN evidence.recorded_at IS 'When the store took the entry in, UTC.';
COMMENT ON COLUMN evidence.success_count IS
'How many good outcomes were credited to the entry. Above 0 = never archived.';
COMMENT ON COLUMN evidence.reinforcement_count IS
'How many times the entry was reinforced. Above 0 = never archived.';
COMMENT ON COLUMN evidence.last_retrieved_at IS
'When the entry was last retrieved, UTC. NULL = no retrieval recorded. A retrieval restarts the wait.';
COMMENT ON COLUMN evidence.last_outcome_at IS
'When an outcome last touched the entry, UTC. NULL = no outcome recorded. An outcome restarts the wait.';
COMMENT ON COLUMN evidence.archived_at IS
'When the entry was moved to the archive tier, UTC. The only marker of that tier. NULL = hot. Set back to '
'NULL when the entry is revived.';
COMMENT ON COLUMN evidence.archived_run_date IS
'The UTC day of the partition that archived the entry. NULL = hot.';

COMMENT ON TABLE memory_evidence IS 'Which evidence a memory cites, one row a citation.';
COMMENT ON COLUMN memory_evidence.user_id IS 'The tenant the row belongs to (users.id).';
COMMENT ON COLUMN memory_evidence.memory_id IS 'The memory that cites (memories.id).';
COMMENT ON COLUMN memory_evidence.evidence_id IS 'The entry cited (evidence.id).';

COMMENT ON TABLE llm_usage IS
'What each call to a model used, one row a call. Rows are only ever added. Counted against the budget.';
COMMENT ON COLUMN llm_usage.id IS 'The record of the call.';
COMMENT ON COLUMN llm_usage.user_id IS 'The tenant the call was made for (users.id).';
COMMENT ON COLUMN llm_usage.operation IS
'What the call was for. The judge is memory.forget.decide. Each operation has a cost ceiling.';
COMMENT ON COLUMN llm_usage.model IS 'The model the call is booked under.';
COMMENT ON COLUMN llm_usage.input_tokens IS 'Tokens sent, as the endpoint counted them. NULL = not known.';
COMMENT ON COLUMN llm_usage.output_tokens IS
'Tokens answered, as the endpoint counted them. NULL = not known.';
COMMENT ON COLUMN llm_usage.cost_usd IS
'The cost in US dollars. NULL = unpriced, counted at the ceiling of the operation. 0 = free.';
COMMENT ON COLUMN llm_usage.created_at IS
'When the use was recorded, UTC. It places the call in the budget window.';

COMMENT ON TABLE user_budgets IS
'Budgets that differ from the configured default, at most one row a tenant. No row = the default holds.';
COMMENT ON COLUMN user_budgets.user_id IS 'The tenant the budget is for (users.id).';
COMMENT ON COLUMN user_budgets.cap_usd_override IS
'The most the tenant may spend in a window, in US dollars. NULL = the configured default.';
COMMENT ON COLUMN user_budgets.period_start IS
'Start of the budget window, UTC. NULL = the configured default.';
COMMENT ON COLUMN user_budgets.period_end IS
'End of the budget window, UTC, after period_start. NULL = the configured default.';

COMMENT ON TABLE budget_reservations IS
'Money held for calls in flight, one row a call. Removed when the call ends. After 120 seconds a row left '
'behind no longer counts.';
COMMENT ON COLUMN budget_reservations.id IS 'The reservation.';
COMMENT ON COLUMN budget_reservations.user_id IS 'The tenant the call is made for (users.id).';
COMMENT ON COLUMN budget_reservations.estimated_cost_usd IS 'The estimated cost of the call, in US dollars.';
COMMENT ON COLUMN budget_reservations.created_at IS 'When the money was reserved, UTC.';

COMMENT ON TABLE forgetting.deployment IS 'Facts about this database, exactly one row.';
COMMENT ON COLUMN forgetting.deployment.singleton IS 'Always TRUE: the table has one row.';
COMMENT ON COLUMN forgetting.deployment.demo IS
'TRUE marks a database where the scripted judge may run. FALSE, the default = it refuses to run.';

COMMENT ON TABLE forgetting.embedding_models IS
'Tells which model made the vector of a memory. No row = not known.';
COMMENT ON COLUMN forgetting.embedding_models.user_id IS 'The tenant the row belongs to (users.id).';
COMMENT ON COLUMN forgetting.embedding_models.memory_id IS 'The memory (memories.id).';
COMMENT ON COLUMN forgetting.embedding_models.embedding_model IS
'The model that made memories.embedding. The similarity floor is set for each model.';

COMMENT ON TABLE forgetting.conflict_pairs IS
'Pairs of live memories that may conflict, found by similarity, one row a pair and partition. Similarity '
'only selects: the judge decides. A memory is in at most one pair of a partition. Running a partition again '
'replaces its rows.';
COMMENT ON COLUMN forgetting.conflict_pairs.run_date IS 'The UTC day the partition judges.';
COMMENT ON COLUMN forgetting.conflict_pairs.user_id IS 'The tenant the row belongs to (users.id).';
COMMENT ON COLUMN forgetting.conflict_pairs.rank IS
'The place of the pair in the partition, from 1. Pairs with a stale older side first, then the higher '
'similarity.';
COMMENT ON COLUMN forgetting.conflict_pairs.older_id IS 'The older side (memories.id).';
COMMENT ON COLUMN forgetting.conflict_pairs.newer_id IS
'The newer side (memories.id): the one with the greater (created_at, id).';
COMMENT ON COLUMN forgetting.conflict_pairs.memory_type IS
'The type of both sides: decision, preference or fact.';
COMMENT ON COLUMN forgetting.conflict_pairs.similarity IS
'Cosine similarity of the two sides, -1 to 1, never below floor.';
COMMENT ON COLUMN forgetting.conflict_pairs.older_is_stale IS
'TRUE when the older side was stale on run_date: not fresh within the stale window (30 days by default).';
COMMENT ON COLUMN forgetting.conflict_pairs.embedding_model IS
'The model that made the vectors compared. NULL = not known.';
COMMENT ON COLUMN forgetting.conflict_pairs.floor IS
'The least cosine similarity that made a pair in this run, -1 to 1. Set for each embedding model.';

COMMENT ON TABLE forgetting.stale_candidates IS
'Live memories nobody changed or reaffirmed within the stale window (30 days by default), one row a memory '
'and partition. Running a partition again replaces its rows.';
COMMENT ON COLUMN forgetting.stale_candidates.run_date IS 'The UTC day the partition judges.';
COMMENT ON COLUMN forgetting.stale_candidates.user_id IS 'The tenant the row belongs to (users.id).';
COMMENT ON COLUMN forgetting.stale_candidates.rank IS
'The place of the memory in the partition, from 1. The least fresh first, then by id.';
COMMENT ON COLUMN forgetting.stale_candidates.memory_id IS 'The stale memory (memories.id).';
COMMENT ON COLUMN forgetting.stale_candidates.memory_type IS
'decision, preference, blocker or fact. A blocker is listed only with a newer neighbour.';
COMMENT ON COLUMN forgetting.stale_candidates.freshness IS
'The later of updated_at and last_reviewed_at when the row was written, UTC.';
COMMENT ON COLUMN forgetting.stale_candidates.in_pair IS
'TRUE when the memory is also in a pair of the partition: it is judged there and not as a single.';
COMMENT ON COLUMN forgetting.stale_candidates.newer_ids IS
'Up to three newer live memories of the same type and scope (memories.id), the most similar first. Empty = '
'none.';
COMMENT ON COLUMN forgetting.stale_candidates.newer_similarities IS
'Cosine similarity to each memory in newer_ids, -1 to 1, in the same order.';

COMMENT ON TABLE forgetting.judged_verdicts IS
'What the judge answered, one row an item and partition. Rows are only ever added. A verdict is final until '
'the freshness of a side moves past it, or, for a single, a newer neighbour appears.';
COMMENT ON COLUMN forgetting.judged_verdicts.id IS
'The verdict. A retention proposal made from it has the same id.';
COMMENT ON COLUMN forgetting.judged_verdicts.run_date IS 'The UTC day the partition judges.';
COMMENT ON COLUMN forgetting.judged_verdicts.user_id IS 'The tenant the row belongs to (users.id).';
COMMENT ON COLUMN forgetting.judged_verdicts.kind IS
'single = one stale memory, pair = two memories that may conflict.';
COMMENT ON COLUMN forgetting.judged_verdicts.memory_id IS
'The memory the verdict is about (memories.id). For a pair, the older side.';
COMMENT ON COLUMN forgetting.judged_verdicts.newer_id IS
'The newer side of a pair (memories.id). NULL = a single.';
COMMENT ON COLUMN forgetting.judged_verdicts.newer_ids IS
'The newer neighbours the judge was shown with a single, n0 first; empty for a pair.';
COMMENT ON COLUMN forgetting.judged_verdicts.memory_type IS 'The type of the memory when it was judged.';
COMMENT ON COLUMN forgetting.judged_verdicts.verdict IS
'keep, archive, supersede (the related memory replaces this one) or conflict (the two contradict).';
COMMENT ON COLUMN forgetting.judged_verdicts.related_memory_id IS
'The newer memory named by supersede or conflict (memories.id). For a pair, its newer side. NULL = the '
'verdict is keep or archive.';
COMMENT ON COLUMN forgetting.judged_verdicts.answer_key IS
'The answer chosen, such as keep_both or supersede_by:n1, where n1 is the second of newer_ids.';
COMMENT ON COLUMN forgetting.judged_verdicts.probability IS
'The probability the judge gave the answer it chose, 0 to 1.';
COMMENT ON COLUMN forgetting.judged_verdicts.probabilities IS
'The probability of every answer offered, a JSON object of answer key and number, 0 to 1. Rounded by the '
'judge, so the sum is about 1.';
COMMENT ON COLUMN forgetting.judged_verdicts.model IS 'The pinned judge model.';
COMMENT ON COLUMN forgetting.judged_verdicts.answer_model IS 'What the endpoint answered the model was.';
COMMENT ON COLUMN forgetting.judged_verdicts.input_digest IS
'SHA-256 of the rendered item without the date. A verdict is reused by it, for the same model.';
COMMENT ON COLUMN forgetting.judged_verdicts.memory_content_hash IS
'memories.content_hash of the memory when it was judged.';
COMMENT ON COLUMN forgetting.judged_verdicts.memory_freshness IS
'The later of updated_at and last_reviewed_at of the memory when it was judged, UTC.';
COMMENT ON COLUMN forgetting.judged_verdicts.related_content_hash IS
'memories.content_hash of the related memory when it was judged. NULL = no related memory.';
COMMENT ON COLUMN forgetting.judged_verdicts.related_freshness IS
'The later of updated_at and last_reviewed_at of the related memory when it was judged, UTC. NULL = no '
'related memory.';
COMMENT ON COLUMN forgetting.judged_verdicts.request_id IS
'What the endpoint called the request. NULL = it gave no id.';
COMMENT ON COLUMN forgetting.judged_verdicts.judged_at IS 'When the answer was recorded, UTC.';
COMMENT ON COLUMN forgetting.judged_verdicts.reused_from IS
'The verdict of another partition whose answer was reused without a call (id of this table). NULL = the '
'judge was called.';

COMMENT ON TABLE forgetting.archival_sweep IS
'What the sweep archived, one row an entry and partition, with the figures on which it was archived. '
'Whether the entry is archived now is in evidence.archived_at.';
COMMENT ON COLUMN forgetting.archival_sweep.run_date IS
'The UTC day of the partition that archived the entry.';
COMMENT ON COLUMN forgetting.archival_sweep.user_id IS 'The tenant the row belongs to (users.id).';
COMMENT ON COLUMN forgetting.archival_sweep.evidence_id IS 'The entry archived (evidence.id).';
COMMENT ON COLUMN forgetting.archival_sweep.kind IS
'The kind of the entry: trace, log, tool_input, tool_output or step_outcome.';
COMMENT ON COLUMN forgetting.archival_sweep.occurred_at IS
'When the entry happened, UTC, as read by the sweep. NULL = no known time, which the rule never archives.';
COMMENT ON COLUMN forgetting.archival_sweep.last_used_at IS
'The last retrieval or outcome the sweep saw, UTC. NULL = neither was recorded.';
COMMENT ON COLUMN forgetting.archival_sweep.success_count IS
'evidence.success_count as read by the sweep. 0 by the rule.';
COMMENT ON COLUMN forgetting.archival_sweep.reinforcement_count IS
'evidence.reinforcement_count as read by the sweep. 0 by the rule.';
COMMENT ON COLUMN forgetting.archival_sweep.content_sha256 IS
'SHA-256 of the bytes of the entry when it was archived, in hex. The entry must still give the same.';
COMMENT ON COLUMN forgetting.archival_sweep.due_before IS
'The limit of the sweep, UTC. The entry happened, and was last used, before it.';
COMMENT ON COLUMN forgetting.archival_sweep.archived_at IS 'When the entry was archived, UTC.';

COMMENT ON TABLE forgetting.invariant_results IS
'The result of every check of the invariant (zero episodic collapse), one row a check and run. Rows are '
'only ever added.';
COMMENT ON COLUMN forgetting.invariant_results.id IS 'The result.';
COMMENT ON COLUMN forgetting.invariant_results.run_date IS 'The UTC day of the partition checked.';
COMMENT ON COLUMN forgetting.invariant_results.user_id IS 'The tenant the row belongs to (users.id).';
COMMENT ON COLUMN forgetting.invariant_results.asset IS 'The asset checked, such as archival_sweep.';
COMMENT ON COLUMN forgetting.invariant_results.check_name IS 'The check.';
COMMENT ON COLUMN forgetting.invariant_results.passed IS 'TRUE when the check held. FALSE stops the run.';
COMMENT ON COLUMN forgetting.invariant_results.reasons IS
'What the check found, as JSON: ids and figures, never text of a memory.';
COMMENT ON COLUMN forgetting.invariant_results.run_id IS 'The Dagster run that made the check.';
COMMENT ON COLUMN forgetting.invariant_results.checked_at IS 'When the check was made, UTC.';
