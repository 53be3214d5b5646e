"""What the demo's invented data must hold, so that one run of the pass shows every case."""

import math
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from itertools import combinations, pairwise

import numpy as np
import pytest

from forgetting_assets.demo import generate, script, text_hash, written
from forgetting_assets.demo.generate import DemoEvidence, DemoMemory, DemoTenant

REFERENCE = datetime(2026, 12, 1, 4, 30, tzinfo=UTC)
FLOOR = 0.72
CLEARLY_BELOW = 0.62
STALE = timedelta(days=30)
NEIGHBOURS = 3
THRESHOLDS = {"archive": 0.85, "supersede": 0.85, "conflict": 0.6}
PAIRED_TYPES = {"decision", "preference", "fact"}
JUDGED_TYPES = {*PAIRED_TYPES, "blocker"}
ALL_TYPES = {*JUDGED_TYPES, "commitment", "pattern", "note", "event"}
TENANTS = {tenant.slug: tenant for tenant in generate.demo_tenants(REFERENCE)}
ENABLED = ["harbor-logistics", "juniper-clinic"]
WRITTEN = {tenant["slug"]: tenant for tenant in written.tenants()}


def order(memory: DemoMemory) -> tuple[datetime, str]:
    return memory.created_at, str(memory.id)


def cosine(one: DemoMemory, other: DemoMemory) -> float:
    return float(np.dot(one.embedding, other.embedding))


def same_group(tenant: DemoTenant) -> Iterator[tuple[DemoMemory, DemoMemory, float]]:
    """Older, newer and cosine of what may pair: same type, scope and project."""
    paired = [memory for memory in tenant.memories if memory.memory_type in PAIRED_TYPES]
    for older, newer in combinations(sorted(paired, key=order), 2):
        if (older.memory_type, older.scope, older.project) == (
            newer.memory_type,
            newer.scope,
            newer.project,
        ):
            yield older, newer, cosine(older, newer)


def mined_pairs(tenant: DemoTenant) -> list[tuple[DemoMemory, DemoMemory]]:
    return [(older, newer) for older, newer, near in same_group(tenant) if near >= FLOOR]


def newer_neighbours(memory: DemoMemory, tenant: DemoTenant) -> list[DemoMemory]:
    """The nearest newer memories of the same type and scope, as a single lists them."""
    newer = [
        other
        for other in tenant.memories
        if (other.memory_type, other.scope) == (memory.memory_type, memory.scope)
        and order(other) > order(memory)
    ]
    return sorted(newer, key=lambda other: -cosine(memory, other))[:NEIGHBOURS]


def stale_singles(tenant: DemoTenant) -> list[DemoMemory]:
    in_pairs = {side.id for pair in mined_pairs(tenant) for side in pair}
    return [
        memory
        for memory in tenant.memories
        if memory.memory_type in JUDGED_TYPES
        and memory.updated_at < REFERENCE - STALE
        and memory.id not in in_pairs
    ]


def verdict(memory: DemoMemory) -> str:
    answer = script.answers().get(memory.content)
    return "keep" if answer is None else answer.verdict


def due(entry: DemoEvidence) -> bool:
    before = REFERENCE - timedelta(days=7)
    return (
        entry.kind in generate.EPISODIC_KINDS
        and entry.occurred_at is not None
        and entry.occurred_at < before
        and entry.success_count == 0
        and entry.reinforcement_count == 0
        and all(
            used is None or used < before
            for used in (entry.last_retrieved_at, entry.last_outcome_at)
        )
    )


def test_tenants_and_their_switches() -> None:
    switches = {slug: (t.judgment_enabled, t.archival_enabled) for slug, t in TENANTS.items()}
    assert switches == {
        "harbor-logistics": (True, True),
        "juniper-clinic": (True, True),
        "solo-maya": (False, False),
    }


def test_two_calls_give_equal_records() -> None:
    assert generate.demo_tenants(REFERENCE) == generate.demo_tenants(REFERENCE)


def test_another_reference_day_moves_the_times_only() -> None:
    later = REFERENCE + timedelta(days=1)
    for slug, tenant in TENANTS.items():
        moved = generate.demo_tenant(slug, later)
        assert [e.content for e in moved.evidence] == [e.content for e in tenant.evidence]
        assert [e.id for e in moved.evidence] == [e.id for e in tenant.evidence]
        standing = len(WRITTEN[slug]["memories"])
        for now, before in zip(moved.memories[:standing], tenant.memories[:standing], strict=True):
            assert now.created_at - before.created_at == timedelta(days=1)
            assert (now.id, now.content, now.cites) == (before.id, before.content, before.cites)


@pytest.mark.parametrize("zone", [None, timezone(timedelta(hours=2))])
def test_a_reference_day_outside_utc_is_refused(zone: timezone | None) -> None:
    with pytest.raises(ValueError, match="UTC"):
        generate.demo_tenants(REFERENCE.replace(tzinfo=zone))


@pytest.mark.parametrize("text", ["", "  ", "?!"])
def test_a_text_without_a_word_has_no_vector(text: str) -> None:
    with pytest.raises(ValueError, match="word"):
        text_hash.embed(text)


def test_vectors_are_of_unit_length_and_blind_to_case() -> None:
    vector = text_hash.embed("Berths 13 and 17 do not exist")
    assert len(vector) == 1536
    assert math.isclose(math.hypot(*vector), 1.0, abs_tol=1e-4)
    assert vector == text_hash.embed("BERTHS 13 and 17 do not exist!")


def test_keys_ids_and_contents_are_unique() -> None:
    for tenant in TENANTS.values():
        assert len({m.key for m in tenant.memories}) == len(tenant.memories)
        assert len({m.content for m in tenant.memories}) == len(tenant.memories)
    memories = [m for t in TENANTS.values() for m in t.memories]
    evidence = [e for t in TENANTS.values() for e in t.evidence]
    assert len({m.content for m in memories}) == len(memories)
    ids = [m.id for m in memories] + [e.id for e in evidence]
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize("slug", TENANTS)
def test_every_type_both_scopes_and_several_projects_occur(slug: str) -> None:
    memories = WRITTEN[slug]["memories"]
    assert {m["memory_type"] for m in memories} == ALL_TYPES
    assert {m["scope"] for m in memories} == {"work", "personal"}
    projects = {m["project"] for m in memories}
    assert None in projects
    assert len(projects) >= 4
    assert 55 <= len(memories) <= 80


@pytest.mark.parametrize("slug", TENANTS)
def test_no_text_is_cut_before_the_judge_sees_it(slug: str) -> None:
    assert all(len(m["content"]) <= 300 for m in WRITTEN[slug]["memories"])


@pytest.mark.parametrize("slug", TENANTS)
def test_times_are_in_order_and_not_after_the_reference(slug: str) -> None:
    tenant = TENANTS[slug]
    for memory in tenant.memories:
        assert memory.created_at <= memory.updated_at <= REFERENCE
    for entry in tenant.evidence:
        assert REFERENCE - timedelta(days=91) < entry.recorded_at <= REFERENCE
        assert entry.occurred_at is None or entry.occurred_at <= entry.recorded_at
        for used in (entry.last_retrieved_at, entry.last_outcome_at):
            assert used is None or entry.recorded_at <= used <= REFERENCE


@pytest.mark.parametrize("slug", TENANTS)
def test_no_memory_sits_on_the_edge_of_staleness(slug: str) -> None:
    ages = [
        m["touched_days"] for m in WRITTEN[slug]["memories"] if m["memory_type"] in JUDGED_TYPES
    ]
    assert all(age < 30 or age > 35 for age in ages)
    assert sum(age < 20 for age in ages) >= 5


@pytest.mark.parametrize("slug", ENABLED)
def test_at_least_eight_pairs_are_mined_and_no_memory_is_in_two(slug: str) -> None:
    pairs = mined_pairs(TENANTS[slug])
    assert len(pairs) >= 8
    sides = Counter(side.key for pair in pairs for side in pair)
    assert max(sides.values()) == 1


@pytest.mark.parametrize("slug", TENANTS)
def test_what_is_no_pair_is_clearly_below_the_floor(slug: str) -> None:
    between = [
        (older.key, newer.key, near)
        for older, newer, near in same_group(TENANTS[slug])
        if CLEARLY_BELOW <= near < FLOOR + 0.01
    ]
    assert between == []


@pytest.mark.parametrize("slug", ENABLED)
def test_pairs_cover_every_answer(slug: str) -> None:
    answers = script.answers()
    found: Counter[tuple[str, bool]] = Counter()
    for older, newer in mined_pairs(TENANTS[slug]):
        answer = answers[older.content]
        assert newer.content not in answers
        assert answer.by_content in (None, newer.content)
        clears = answer.verdict == "keep" or answer.probability >= THRESHOLDS[answer.verdict]
        found[answer.verdict, clears] += 1
    assert found["supersede", True] >= 3
    assert found["conflict", True] >= 2
    assert found["keep", True] >= 3
    assert found["archive", True] >= 1
    assert found["supersede", False] >= 1
    assert found["conflict", False] >= 1


@pytest.mark.parametrize("slug", ENABLED)
def test_stale_singles_cover_every_answer(slug: str) -> None:
    answers = script.answers()
    found: Counter[tuple[str, str, bool]] = Counter()
    for memory in stale_singles(TENANTS[slug]):
        answer = answers.get(memory.content)
        group = "blocker" if memory.memory_type == "blocker" else "other"
        if answer is None or answer.verdict == "keep":
            found[group, "keep", True] += 1
            continue
        clears = answer.probability >= THRESHOLDS[answer.verdict]
        found[group, answer.verdict, clears] += 1
        if answer.by_content is not None:
            listed = [other.content for other in newer_neighbours(memory, TENANTS[slug])]
            assert answer.by_content in listed
    assert found["other", "keep", True] >= 5
    assert found["other", "archive", True] >= 3
    assert found["other", "archive", False] >= 1
    assert found["other", "supersede", True] >= 3
    assert found["other", "supersede", False] >= 1
    assert found["blocker", "conflict", True] >= 1
    assert found["blocker", "conflict", False] >= 1
    assert found["blocker", "keep", True] >= 1
    assert all(choice != "conflict" for group, choice, _ in found if group == "other")


@pytest.mark.parametrize("slug", ENABLED)
def test_stale_blockers_have_newer_ones_and_one_has_none(slug: str) -> None:
    tenant = TENANTS[slug]
    stale = [memory for memory in stale_singles(tenant) if memory.memory_type == "blocker"]
    with_newer = [memory for memory in stale if newer_neighbours(memory, tenant)]
    assert len(with_newer) >= 3
    assert len(stale) > len(with_newer)


@pytest.mark.parametrize("slug", TENANTS)
def test_near_texts_in_another_project_or_scope_stay_apart(slug: str) -> None:
    paired = [m for m in TENANTS[slug].memories if m.memory_type in PAIRED_TYPES]
    apart = [
        (one.key, other.key)
        for one, other in combinations(paired, 2)
        if one.memory_type == other.memory_type
        and (one.scope, one.project) != (other.scope, other.project)
        and cosine(one, other) >= FLOOR
    ]
    assert apart


def test_answers_name_a_newer_memory_of_the_same_type_and_scope() -> None:
    answers = script.answers()
    assert answers
    for slug in ENABLED:
        by_content = {memory.content: memory for memory in TENANTS[slug].memories}
        for content, memory in by_content.items():
            answer = answers.pop(content, None)
            if answer is None:
                continue
            assert memory.memory_type in JUDGED_TYPES
            assert answer.verdict in {"keep", "archive", "supersede", "conflict"}
            assert 0.5 < answer.probability <= 0.99
            assert (answer.by_content is not None) == (answer.verdict in {"supersede", "conflict"})
            if answer.by_content is not None:
                newer = by_content[answer.by_content]
                assert (newer.memory_type, newer.scope) == (memory.memory_type, memory.scope)
                assert newer.created_at > memory.created_at
    assert answers == {}, "a tenant without judgment has no script"


def test_blockers_are_only_kept_or_in_conflict() -> None:
    blockers = [m for t in TENANTS.values() for m in t.memories if m.memory_type == "blocker"]
    assert {verdict(memory) for memory in blockers} == {"keep", "conflict"}


@pytest.mark.parametrize("slug", ENABLED)
def test_no_memory_is_named_by_two_verdicts(slug: str) -> None:
    answers = script.answers()
    named = Counter(
        content
        for memory in TENANTS[slug].memories
        if (answer := answers.get(memory.content)) and answer.verdict != "keep"
        for content in (memory.content, answer.by_content)
        if content is not None
    )
    assert max(named.values()) == 1


@pytest.mark.parametrize("slug", ENABLED)
def test_cited_evidence_exists_and_precedes_the_last_touch_of_the_memory(slug: str) -> None:
    answers = script.answers()
    evidence = {entry.id: entry for entry in TENANTS[slug].evidence}
    citing = [memory for memory in TENANTS[slug].memories if memory.cites]
    assert 3 <= len(citing) <= 4
    for memory in citing:
        answer = answers[memory.content]
        assert answer.verdict != "keep"
        assert answer.probability >= THRESHOLDS[answer.verdict]
        cited = [evidence[entry_id] for entry_id in memory.cites]
        assert len({entry.session_id for entry in cited}) == 1
        assert all(entry.recorded_at <= memory.updated_at for entry in cited)
        assert any(due(entry) for entry in cited)


@pytest.mark.parametrize("slug", TENANTS)
def test_every_cited_session_is_generated(slug: str) -> None:
    sessions = {entry.session_id for entry in TENANTS[slug].evidence}
    cited = {m["cites_session"] for m in WRITTEN[slug]["memories"] if "cites_session" in m}
    assert cited <= sessions


@pytest.mark.parametrize("slug", TENANTS)
def test_recurring_episodes_look_alike_and_are_all_told_apart(slug: str) -> None:
    tenant = TENANTS[slug]
    written_keys = {memory["key"] for memory in WRITTEN[slug]["memories"]}
    recurring = [memory for memory in tenant.memories if memory.key not in written_keys]
    assert 38 <= len(recurring) <= 42
    assert {memory.memory_type for memory in recurring} == {"event", "note"}
    for kind in ("event", "note"):
        series = [memory for memory in recurring if memory.memory_type == kind]
        vectors = np.array([memory.embedding for memory in series])
        assert float((vectors @ vectors.T).min()) > 0.9
        assert all(memory.created_at.date().isoformat() in memory.content for memory in series)
        days = sorted(memory.created_at for memory in series)
        assert all(earlier < later for earlier, later in pairwise(days))
        assert days[-1] - days[0] > timedelta(days=90)
        assert days[0] > REFERENCE - timedelta(days=122)


@pytest.mark.parametrize("slug", TENANTS)
def test_evidence_shares(slug: str) -> None:
    evidence = TENANTS[slug].evidence
    total = len(evidence)
    assert total == 1200
    assert Counter(entry.kind for entry in evidence) == generate.ENTRIES_BY_KIND
    credited = [e for e in evidence if e.success_count or e.reinforcement_count]
    lately = REFERENCE - timedelta(days=7)
    retrieved = [e for e in evidence if e.last_retrieved_at and e.last_retrieved_at > lately]
    timeless = [e for e in evidence if e.occurred_at is None]
    assert all(entry.last_outcome_at is not None for entry in credited)
    assert 0.08 <= len(credited) / total <= 0.12
    assert 0.08 <= len(retrieved) / total <= 0.12
    assert 0.02 <= len(timeless) / total <= 0.04
    assert len({entry.content for entry in evidence}) > 1000
    young = [e for e in evidence if e.recorded_at > REFERENCE - timedelta(days=3)]
    old = [e for e in evidence if e.recorded_at < REFERENCE - timedelta(days=85)]
    assert young
    assert old
    assert sum(due(entry) for entry in evidence) > 500
