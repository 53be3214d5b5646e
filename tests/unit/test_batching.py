"""Batches keep the order, lose nothing and stay within the sizes of the ADR."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forgetting_assets.judging.batching import (
    MAX_QUESTIONS,
    REFUSE_ABOVE,
    SPLIT_ABOVE,
    Batch,
    batches,
    halves,
)
from forgetting_assets.judging.items import Item, Memory, Pair, Single
from forgetting_assets.judging.rendering import refs_of, render
from tests.items import AS_OF, memory, single

thorough = settings(deadline=None, max_examples=25)

# Topics are not cut, so a topic's length sets the size of the state. Two of the characters grow
# when they are escaped, so that length alone does not tell the size.
sizes = st.one_of(
    st.integers(0, 300),
    st.integers(3_000, 15_000),
    st.integers(20_000, 50_000),
    st.integers(60_000, 70_000),
)


@st.composite
def sized_items(draw: st.DrawFn, largest: int = 70_000, most: int = 15) -> list[Item]:
    """Items of all sizes, each with ids of its own, so that no two are equal."""
    shapes = draw(
        st.lists(st.tuples(st.booleans(), sizes, st.sampled_from('x"\u2028')), max_size=most)
    )
    found: list[Item] = []
    for n, (is_pair, size, character) in enumerate(shapes):
        topic = character * min(size, largest)
        first, second = memory(topic=topic, number=2 * n), memory(number=2 * n + 1)
        found.append(Pair(first, second, 0.9) if is_pair else Single(first))
    return found


def size_of(*some: Item) -> int:
    return len(render(some, AS_OF)[0])


def item_of_size(characters: int, number: int = 0) -> Single:
    """A single whose state, alone in a call, is so long."""
    missing = characters - size_of(single(number=number))
    grown: Memory = memory(topic="topic" + "x" * missing, number=number)
    assert size_of(Single(grown)) == characters
    return Single(grown)


@thorough
@given(sized_items(), st.integers(1, MAX_QUESTIONS))
def test_batches_keep_the_order_and_lose_nothing(items: list[Item], batch_items: int) -> None:
    done, refused = batches(items, AS_OF, batch_items)
    kept = [item for batch in done for item in batch.items]
    assert kept == [item for item in items if item not in refused]
    assert refused == [item for item in items if item not in kept]
    assert len(kept) + len(refused) == len(items)
    # Only what no call can hold is refused, and all of it.
    assert all(size_of(item) > REFUSE_ABOVE for item in refused)
    assert all(size_of(item) <= REFUSE_ABOVE for item in kept)


@thorough
@given(sized_items(), st.integers(1, MAX_QUESTIONS))
def test_no_batch_passes_a_limit(items: list[Item], batch_items: int) -> None:
    for batch in batches(items, AS_OF, batch_items)[0]:
        assert 1 <= len(batch.items) <= batch_items
        assert len(batch.questions) == len(batch.items) <= MAX_QUESTIONS == 100
        assert len(batch.state) <= REFUSE_ABOVE == 64_000
        assert len(batch.state) <= SPLIT_ABOVE == 48_000 or len(batch.items) == 1


@thorough
@given(sized_items(), st.integers(1, 12))
def test_a_batch_ends_only_where_the_next_item_would_not_fit(
    items: list[Item], batch_items: int
) -> None:
    done, _ = batches(items, AS_OF, batch_items)
    for batch, following in pairwise(done):
        full = len(batch.items) == batch_items
        assert full or size_of(*batch.items, following.items[0]) > SPLIT_ABOVE


@thorough
@given(sized_items(), st.integers(1, MAX_QUESTIONS))
def test_a_batch_holds_the_rendering_of_exactly_its_own_items(
    items: list[Item], batch_items: int
) -> None:
    for batch in batches(items, AS_OF, batch_items)[0]:
        assert (batch.state, batch.questions) == render(batch.items, AS_OF)
        assert list(batch.questions) == refs_of(batch.items)


@thorough
@given(sized_items(largest=2_000), st.integers(2, MAX_QUESTIONS))
def test_the_halves_of_a_batch_cover_it_in_order_and_each_is_smaller(
    items: list[Item], batch_items: int
) -> None:
    for batch in batches(items, AS_OF, batch_items)[0]:
        if len(batch.items) < 2:
            continue
        first, second = halves(batch, AS_OF)
        assert first.items + second.items == batch.items
        for half in (first, second):
            assert 1 <= len(half.items) < len(batch.items)
            assert (half.state, half.questions) == render(half.items, AS_OF)
            assert len(half.state) < len(batch.state)


def test_halving_again_and_again_ends_with_each_item_alone() -> None:
    items = [single(number=n) for n in range(11)]
    (whole,), _ = batches(items, AS_OF, 12)
    waiting, alone = [whole], list[Batch]()
    while waiting:
        batch = waiting.pop(0)
        if len(batch.items) == 1:
            alone.append(batch)
        else:
            waiting[:0] = halves(batch, AS_OF)
    assert [batch.items for batch in alone] == [(item,) for item in items]


def test_a_state_of_exactly_48000_characters_is_not_split_and_one_more_is() -> None:
    first = single(number=1)
    frame = size_of(first, single(number=2)) - size_of(single(number=2))
    second = item_of_size(SPLIT_ABOVE - frame, number=2)
    assert size_of(first, second) == 48_000
    assert [batch.items for batch in batches([first, second], AS_OF, 12)[0]] == [(first, second)]

    longer = item_of_size(SPLIT_ABOVE - frame + 1, number=2)
    assert size_of(first, longer) == 48_001
    assert [batch.items for batch in batches([first, longer], AS_OF, 12)[0]] == [
        (first,),
        (longer,),
    ]


def test_an_item_of_exactly_64000_characters_is_sent_and_one_more_is_refused() -> None:
    fits, passes = item_of_size(64_000, number=1), item_of_size(64_001, number=2)
    done, refused = batches([fits, passes], AS_OF, 12)
    assert [batch.items for batch in done] == [(fits,)]
    assert refused == [passes]


def test_a_refused_item_does_not_split_the_batch_around_it() -> None:
    before, after = single(number=1), single(number=2)
    done, refused = batches([before, item_of_size(64_001, number=3), after], AS_OF, 12)
    assert [batch.items for batch in done] == [(before, after)]
    assert len(refused) == 1


def test_twelve_items_of_the_adrs_largest_content_make_one_batch() -> None:
    content = "x" * 5_000
    items = [
        Pair(memory(content, number=2 * n), memory(content, number=2 * n + 1), 0.9)
        for n in range(13)
    ]
    done, refused = batches(items, AS_OF, 12)
    assert [len(batch.items) for batch in done] == [12, 1]
    assert len(done[0].state) < 40_000
    assert refused == []


def test_one_call_takes_at_most_a_hundred_questions() -> None:
    items = [single(number=n) for n in range(101)]
    assert [len(batch.items) for batch in batches(items, AS_OF, 100)[0]] == [100, 1]
    for wrong in (0, -1, 101):
        with pytest.raises(ValueError, match="1 to 100"):
            batches(items, AS_OF, wrong)


def test_nothing_to_judge_is_no_call() -> None:
    assert batches([], AS_OF, 12) == ([], [])
