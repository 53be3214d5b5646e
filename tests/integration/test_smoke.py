from tests.support import Pass, Store, TestJudge, say


def test_pass_proposes(store: Store) -> None:
    acme = store.tenant()
    store.memory(acme, age=60)
    store.pair(acme)
    done = Pass(store, TestJudge.that(say("archive"))).run(store.partition())
    assert dict(done.proposed) == {"archive": 1}
