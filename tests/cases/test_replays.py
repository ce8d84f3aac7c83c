"""Which tests replay which public bug report, by the report's number; every name here must be that of a test."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
D, E, F = (f"cases/test_reports_{kind}.py" for kind in "def")

REPLAYS: dict[str, dict[str, tuple[str, ...]]] = {
    # d: blocks and prefix cache
    "R020": {  # the whole prompt is cached: nothing would be left to run
        D: (
            "test_r020_a_prompt_sent_again_leaves_a_token_to_compute_and_gets_the_same_answer",
            "test_r020_a_prompt_that_is_an_earlier_one_and_its_answer_goes_on_as_if_it_were_new",
            "test_r020_the_same_text_again_has_the_same_answer_and_it_is_not_empty",
        ),
        "cache/test_prefix_cache.py": ("test_a_hit_is_whole_blocks_and_leaves_at_least_one_token_to_compute",),
    },
    "R021": {  # identical prompts at once share blocks before these are written
        D: (
            "test_r021_the_same_prompt_twice_in_one_step_gives_what_it_gives_alone",
            "test_r021_the_same_prompt_amid_a_chunked_prefill_shares_only_what_is_written",
            "test_r021_a_step_that_fails_between_two_layers_shares_nothing",
        ),
        "cache/test_prefix_cache.py": ("test_a_block_is_shared_only_once_it_was_written",),
        "engine/test_no_leaks.py": ("test_each_of_many_concurrent_conversations_has_the_bits_it_has_alone",),
    },
    "R023": {  # a digest that collides brings another prompt's blocks
        D: ("test_r023_fifty_prompts_whose_digests_collide_get_the_answers_of_an_engine_without_cache",),
        "cache/test_prefix_cache.py": (
            "test_colliding_hashes_mix_neither_tokens_nor_domains",
            "test_whatever_changes_keys_and_values_separates_prefixes",
            "test_the_same_text_in_another_field_is_another_domain",
        ),
    },
    "R026": {  # a preempted request samples, counts or streams otherwise
        D: (
            "test_r026_preempted_requests_go_on_as_if_nothing_had_happened",
            "test_r026_windows_come_back_with_a_preempted_request",
        ),
        "scheduler/test_scheduler.py": ("test_a_preempted_request_goes_on_with_its_tokens_and_computes_little_again",),
    },
    # e: continuous batching
    "R028": {  # the short row of a batch sees padding
        "engine/test_core.py": (
            "test_a_short_prompt_is_not_touched_by_a_longer_one_beside_it",
            "test_a_row_of_a_mixed_batch_has_the_very_logits_of_the_same_request_alone",
        ),
    },
    "R029": {  # a sliding window lets too many keys in
        "engine/test_windows.py": (
            "test_each_query_sees_its_own_last_window_of_keys",
            "test_paged_windows_hold_no_more_blocks_than_they_need",
        ),
    },
    "R031": {  # a block per request never comes back
        E: ("test_r031_two_hundred_requests_eight_at_a_time_give_every_block_back",),
        "engine/test_core_lifecycle.py": ("test_blocks_return_to_the_start_value_at_every_idle_point",),
        "scheduler/test_scheduler.py": (
            "test_two_hundred_requests_of_every_kind_of_end_leave_all_blocks_free_or_cached",
        ),
    },
    "R032": {  # generation goes on after the client has gone
        E: (
            "test_r032_forty_generations_left_at_once_cost_the_next_request_nothing",
            "test_r032_a_stream_that_is_closed_and_a_call_that_is_interrupted_stop_at_once",
        ),
        "engine/test_core_lifecycle.py": ("test_an_aborted_request_leaves_nothing_and_disturbs_nobody",),
        "test_llm.py": (
            "test_a_stream_left_early_frees_its_request_at_once",
            "test_ctrl_c_at_any_point_frees_everything_and_leaves_the_engine_usable",
        ),
    },
    # f: K/V in fewer bits
    "R034": {  # a head size that no group divides fails at the first request
        F: (
            "test_r034_every_codec_serves_these_head_sizes_with_a_small_error",
            "test_r034_a_head_size_of_72_is_refused_at_start_up_with_what_can_be_chosen",
            "test_r034_what_the_refusal_of_72_names_serves_it",
        ),
        "storage/test_codec_start_up.py": (
            "test_a_codec_that_cannot_hold_the_heads_is_refused_with_those_that_can",
            "test_a_model_is_refused_when_it_is_planned_before_any_weight_is_read",
        ),
        "storage/test_codec_storages.py": ("test_every_storage_and_schedule_gives_the_bits_of_a_whole_dense_prefill",),
    },
    "R035": {  # layers with windows have no such form, and that shows at the first request
        F: (
            "test_r035_prompts_beyond_the_window_are_answered_the_first_time_and_later",
            "test_r035_inspect_says_what_each_kind_of_layer_takes_and_the_engine_takes_it",
            "test_r035_a_model_with_recurrent_layers_is_refused_before_anything_is_read",
        ),
        "storage/test_codec_start_up.py": ("test_an_engine_takes_the_kv_memory_that_its_ledger_says",),
    },
}


@pytest.mark.parametrize("report", REPLAYS)
def test_a_report_is_replayed_by_the_tests_that_the_table_names(report: str) -> None:
    for file, names in REPLAYS[report].items():
        defined = set(re.findall(r"^def (test_\w+)\(", (TESTS / file).read_text(encoding="utf-8"), re.MULTILINE))
        assert set(names) <= defined


@pytest.mark.parametrize("file", [D, E, F])
def test_every_replay_is_in_the_table(file: str) -> None:
    defined = re.findall(r"^def (test_(r[0-9]+)_\w+)\(", (TESTS / file).read_text(encoding="utf-8"), re.MULTILINE)
    assert defined
    for name, report in defined:
        assert name in REPLAYS[report.upper()][file]
