"""Who is held back because somebody computes the beginning of its prompt, and for how long."""

from __future__ import annotations

from scheduler_simulation import make_state

from octavo.cache.prefix_types import PrefixDomain, encode_tokens
from octavo.scheduler.queue import WaitingRequest
from octavo.scheduler.siblings import Siblings
from octavo.step_batch import StorageKind

HERE = PrefixDomain()


DENSE, PAGED = StorageKind.DENSE, StorageKind.PAGED


def waiting(
    name: str, tokens: list[int], domain: PrefixDomain | None = HERE, storage: StorageKind = PAGED
) -> WaitingRequest:
    run = None if domain is None else encode_tokens(tokens)
    return WaitingRequest(make_state(name, 5, 5), storage, 5, (1,), (0,), domain, run)


def behind(tokens: list[int], other: list[int], computed: int, domain: PrefixDomain | None = HERE) -> bool:
    siblings = Siblings(16, rings=False)
    siblings.add(waiting("r1", other), computed)
    return siblings.behind(waiting("r2", tokens, domain)) == ("r1",)


def test_it_is_held_back_until_the_common_whole_blocks_are_computed() -> None:
    prompt = list(range(50))
    assert [behind(prompt, prompt, computed) for computed in (0, 16, 47, 48)] == [True, True, True, False]


def test_only_whole_common_blocks_count_and_one_token_is_left_to_compute() -> None:
    stem = list(range(16))
    assert behind([*stem, *range(100, 120)], [*stem, *range(200, 260)], 15)
    assert not behind([*stem, *range(100, 120)], [*stem, *range(200, 260)], 16)
    assert not behind([*stem[:15], 99, 98], [*stem, 97], 0), "they differ in the first block"
    assert not behind(stem, [*stem, *stem], 0), "a hit never covers the last token"
    assert behind([*stem, 1], [*stem, 2], 0)


def test_the_first_difference_is_found_wherever_it_is() -> None:
    prompt = list(range(16 * 9 + 1))
    for differs in range(1, 9):
        other = list(prompt)
        other[differs * 16 + 3] = 7
        assert behind(prompt, other, differs * 16 - 1)
        assert not behind(prompt, other, differs * 16)


def test_who_shares_with_nobody_or_with_others_is_not_held_back() -> None:
    prompt = list(range(50))
    assert not behind(prompt, prompt, 0, domain=None)
    assert not behind(prompt, prompt, 0, domain=PrefixDomain(salt="other"))


def test_with_rings_dense_requests_share_whole_prompts_and_nobody_shares_across_storages() -> None:
    prompt = list(range(50))

    def held(tokens: list[int], storage: StorageKind, other: StorageKind) -> bool:
        siblings = Siblings(16, rings=True)
        siblings.add(waiting("r1", prompt, storage=other), 0)
        return siblings.behind(waiting("r2", tokens, storage=storage)) == ("r1",)

    shorter = [*prompt[:40], 99, 98]
    assert held(shorter, PAGED, PAGED) and not held(shorter, DENSE, DENSE)
    assert held(prompt, DENSE, DENSE) and held([*prompt, *prompt], DENSE, DENSE)
    assert not held(prompt, DENSE, PAGED) and not held(prompt, PAGED, DENSE)
