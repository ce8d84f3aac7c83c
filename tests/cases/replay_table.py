"""Which tests replay which public bug report, by the report's number. Whether they are there is `test_replays.py`'s."""

from __future__ import annotations

A, B, D, E, F, G, H, KERNELS, J = (f"cases/test_reports_{kind}.py" for kind in "abdefghij")
E_SERVED = "cases/test_reports_e_served.py"
SCORES = "server/test_loglikelihood.py"

# The reports of each kind: a streaming, b the API's fields, c chat templates, d blocks and the prefix cache,
# e continuous batching, f K/V in fewer bits, g GGUF files, h recurrent and other state beside the blocks, i kernels,
# j a server's robustness, k the command line.
KINDS = {
    "a": ("R001", "R003", "R004", "R005"),
    "b": ("R007", "R008", "R010", "R011", "R013"),
    "c": ("R014", "R016", "R017", "R018"),
    "d": ("R020", "R021", "R023", "R024", "R026"),
    "e": ("R028", "R029", "R031", "R032"),
    "f": ("R034", "R035"),
    "g": ("R037", "R039", "R041", "R042", "R044"),
    "h": ("R045", "R047", "R048"),
    "i": ("R050", "R051", "R053"),
    "j": ("R055", "R056", "R058", "R059"),
    "k": ("R060", "R063"),
}

REPLAYS: dict[str, dict[str, tuple[str, ...]]] = {
    # a: streaming
    "R001": {  # parts of a stop string are streamed before it is complete
        A: (
            "test_r001_no_delta_shows_any_part_of_a_stop_string_wherever_it_is_cut_from_the_answer",
            "test_r001_of_two_stops_with_one_beginning_the_first_that_is_complete_cuts",
            "test_r001_text_that_only_looked_like_a_stop_is_released_as_soon_as_it_cannot_be_one",
        ),
        "engine/test_output_processor.py": (
            "test_whatever_the_tokens_no_delta_ever_shows_part_of_the_stop_string",
            "test_held_text_is_exactly_what_can_still_become_a_stop_string",
        ),
        "engine/test_output_processor_tokenizers.py": (
            "test_every_stop_string_in_a_counting_answer_cuts_before_its_first_match",
        ),
    },
    "R003": {  # characters of several tokens become replacement characters in streams that run together
        A: (
            "test_r003_emoji_and_korean_streamed_at_once_are_whole_characters_as_alone",
            "test_r003_a_character_that_the_limit_cuts_is_told_once_at_the_end",
            "test_r003_bytes_that_are_no_utf8_harm_nobody",
            "test_r003_a_real_model_streams_emoji_and_korean_at_once_as_it_does_alone",
        ),
        "engine/test_output_processor_tokenizers.py": (
            "test_characters_of_many_tokens_are_shown_whole_and_equal_the_full_decode",
        ),
    },
    "R004": {  # a streamed answer loses a space at its front, or keeps one too many
        "tokenizer/test_detokenizer.py": (
            "test_exactly_one_leading_space_is_stripped_and_only_where_encoding_adds_one",
            "test_byte_level_text_keeps_its_real_leading_space",
            "test_joined_deltas_equal_the_full_decode_for_any_ids",
        ),
        "tokenizer/test_real_tokenizers.py": ("test_streams_of_random_ids_equal_their_full_decode",),
    },
    "R005": {  # a stream that ends by itself has no finish reason
        A: ("test_r005_every_way_to_end_is_told_once_and_every_other_chunk_says_null",),
        "server/test_streaming.py": ("test_usage_comes_last_without_choices_if_it_was_asked_for",),
    },
    # b: what fields mean
    "R007": {  # a null is used as a number; one of the two names of the limit is ignored
        B: (
            "test_r007_a_null_is_the_default_and_both_limits_are_limits",
            "test_r007_a_limit_that_is_none_is_refused_by_its_name",
        ),
        "server/test_protocol.py": ("test_null_means_absent_in_every_field",),
    },
    "R008": {  # numbers without a bound bring the engine down
        B: ("test_r008_hostile_numbers_are_refused_at_once_and_touch_no_request_in_flight",),
        "server/test_protocol.py": (
            "test_a_value_that_cannot_be_is_refused_by_the_name_of_its_field",
            "test_large_wrong_lists_are_refused_in_no_time",
        ),
    },
    "R010": {  # nothing is answered any more after an empty prompt
        B: (
            "test_r010_a_prompt_of_no_tokens_is_refused_and_the_server_goes_on",
            "test_r010_a_conversation_of_no_messages_is_refused_and_one_of_no_words_is_answered",
        ),
        "server/test_completions.py": ("test_an_empty_text_is_the_first_token_of_a_model_that_has_one",),
    },
    "R011": {  # token ids are taken for many prompts; answers change places
        B: (
            "test_r011_a_flat_list_of_ids_is_one_prompt_taken_verbatim",
            "test_r011_each_of_five_prompts_has_its_own_two_answers_in_its_own_place",
            "test_r011_every_prompt_of_several_has_log_probabilities",
        ),
        "server/test_completions.py": (
            "test_a_prompt_is_text_or_ids_and_several_are_a_list_of_either",
            "test_choices_are_numbered_prompt_by_prompt_and_have_the_text_of_their_own",
        ),
    },
    "R013": {  # the bytes of tokens are those of a replacement character
        B: ("test_r013_log_probabilities_have_the_true_bytes_of_each_token_by_itself",),
        "server/test_logprobs.py": (
            "test_the_bytes_of_chat_entries_are_the_tokens_own_and_join_to_the_text",
            "test_a_token_of_half_a_character_is_told_by_its_bytes_and_all_names_differ",
        ),
    },
    # c: chat templates
    "R014": {  # null or absent content, and contents of several parts
        "server/test_chat.py": (
            "test_an_earlier_tool_call_and_its_result_reach_the_template",
            "test_text_parts_are_all_honoured_in_their_order",
            "test_a_message_that_cannot_be_is_refused_by_its_place",
        ),
        "tokenizer/test_chat_template.py": (
            "test_null_and_absent_content_render_as_empty_text",
            "test_text_parts_reach_a_template_of_strings_joined_in_order",
            "test_text_parts_reach_a_template_of_parts_as_parts_and_strings_are_wrapped_for_it",
            "test_content_that_is_not_text_is_refused_by_its_type",
        ),
    },
    "R016": {  # a template's language has more than stock Jinja; a model has no template
        "tokenizer/test_template_oracle.py": (
            "test_all_that_the_dialect_offers_renders_as_in_transformers",
            "test_a_real_template_renders_as_in_transformers",
        ),
        "tokenizer/test_chat_template.py": ("test_a_model_without_a_template_says_so_and_names_the_remedy",),
        "server/test_chat.py": ("test_a_model_without_a_template_refuses_conversations",),
    },
    "R017": {  # tojson escapes and sorts; arguments of tool calls are text where a mapping is wanted
        "tokenizer/test_chat_template.py": (
            "test_tojson_prints_raw_unicode_without_html_escapes_in_order_of_insertion",
            "test_tool_call_arguments_in_json_are_a_mapping_for_the_template",
            "test_tool_call_arguments_that_are_no_json_object_stay_text",
        ),
        "server/test_chat.py": ("test_arguments_of_a_tool_call_that_are_no_json_object_are_text_or_a_400",),
    },
    "R018": {  # a role that a template refuses becomes a 500
        "server/test_chat.py": (
            "test_roles_that_a_template_does_not_take_are_a_400_before_any_of_a_stream",
            "test_a_template_that_refuses_is_a_400_with_its_own_message",
        ),
        "tokenizer/test_template_oracle.py": (
            "test_a_template_that_takes_no_system_message_refuses_it_in_its_own_words",
        ),
    },
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
            "test_r021_the_same_prompt_twice_at_once_gives_what_it_gives_alone",
            "test_r021_the_same_prompt_amid_a_chunked_prefill_waits_until_all_it_shares_is_written",
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
    "R024": {  # scores of a prompt whose beginning is cached are incomplete or stale
        SCORES: (
            "test_r024_scores_are_complete_and_the_same_after_the_prompt_was_cached",
            "test_r024_overlapping_prompts_have_their_scores_in_either_order",
        ),
        "engine/test_prompt_logprobs.py": ("test_scores_do_not_depend_on_what_was_cached_or_how_it_was_cut",),
    },
    "R026": {  # a preempted request samples, counts or streams otherwise
        D: (
            "test_r026_preempted_requests_go_on_as_if_nothing_had_happened",
            "test_r026_windows_come_back_with_a_preempted_request",
        ),
        "scheduler/test_scheduler_prefixes.py": (
            "test_a_preempted_request_goes_on_with_its_tokens_and_computes_little_again",
        ),
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
        E_SERVED: ("test_r031_two_hundred_calls_of_every_kind_of_end_leave_every_block_free_or_cached",),
        "engine/test_core_lifecycle.py": ("test_blocks_return_to_the_start_value_at_every_idle_point",),
        "scheduler/test_scheduler_prefixes.py": (
            "test_two_hundred_requests_of_every_kind_of_end_leave_all_blocks_free_or_cached",
        ),
    },
    "R032": {  # generation goes on after the client has gone
        E: (
            "test_r032_forty_generations_left_at_once_cost_the_next_request_nothing",
            "test_r032_a_stream_that_is_closed_and_a_call_that_is_interrupted_stop_at_once",
        ),
        E_SERVED: ("test_r032_forty_clients_that_close_their_sockets_stop_their_work_and_delay_nobody",),
        "engine/test_core_lifecycle.py": ("test_an_aborted_request_leaves_nothing_and_disturbs_nobody",),
        "server/test_connection.py": ("test_a_client_that_leaves_ends_its_request",),
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
    # g: GGUF files
    "R037": {  # the rows of q and k come back in another order
        "loaders/test_gguf_models.py": (
            "test_llama_q_and_k_rows_come_back_in_hugging_face_order",
            "test_llama_q_and_k_biases_are_put_back_in_order_too",
            "test_q_and_k_of_other_families_are_never_reordered",
            "test_slices_of_a_reordered_quantised_matrix_match_the_dequantised_original",
        ),
        "models/test_families.py": ("test_a_gguf_file_gives_the_logits_of_its_original",),
    },
    "R039": {  # a rotary scaling is read and not used
        "models/test_families.py": ("test_llama3_scaling_holds_far_beyond_the_original_context",),
        "loaders/test_hf_config.py": (
            "test_llama3_scaling_is_read_under_every_key_it_ever_had",
            "test_an_unknown_scaling_kind_is_refused_by_name",
        ),
        "loaders/test_gguf_models.py": (
            "test_rope_frequency_factors_become_part_of_the_configuration",
            "test_metadata_that_would_change_the_output_is_refused_by_name",
        ),
        "layers/test_rotary.py": ("test_scaled_frequencies_equal_those_of_transformers",),
    },
    "R041": {  # text is cut into other words than the original's
        G: (
            "test_r041_a_gguf_tokenizer_gives_the_ids_of_the_original",
            "test_r041_these_pre_tokenisers_cut_the_probes_in_different_ways",
        ),
        "tokenizer/test_vocab_oracle.py": ("test_ids_match_the_recorded_ones_for_every_text",),
        "tokenizer/test_gguf_metadata.py": (
            "test_pre_tokenisers_cut_digits_contractions_and_line_ends_each_in_their_way",
            "test_an_unknown_or_missing_pre_tokeniser_is_refused_with_its_name_and_the_supported_ones",
        ),
    },
    "R042": {  # a truncated or hostile file is read past its end
        "loaders/test_gguf_file.py": (
            "test_a_file_cut_in_its_tensors_is_refused_with_tensor_and_both_sizes",
            "test_a_file_cut_in_its_header_or_metadata_is_refused",
            "test_an_offset_past_the_end_or_near_the_wrap_is_refused",
            "test_absurd_lengths_of_strings_and_arrays_are_refused_by_key",
            "test_an_absurd_number_of_dimensions_is_refused",
            "test_another_formats_magic_is_refused_and_shown",
            "test_a_big_endian_file_is_refused_as_such",
        ),
        "loaders/test_safetensors.py": (
            "test_a_truncated_file_is_refused_with_its_size",
            "test_a_missing_shard_is_refused_by_name",
        ),
        "cli/test_bad_input.py": ("test_a_model_that_cannot_be",),
    },
    "R044": {  # a tied head is demanded, or an own one ignored
        G: (
            "test_r044_logits_come_from_the_head_that_the_file_has_or_else_from_the_embedding",
            "test_r044_a_directory_that_says_untied_and_has_no_head_is_refused_by_the_tensors_name",
        ),
        "loaders/test_gguf_models.py": (
            "test_tied_without_a_head_uses_the_embedding",
            "test_tied_with_a_duplicated_head_has_the_embedding_as_its_head",
            "test_untied_uses_its_own_head",
            "test_a_quantised_embedding_is_decoded_to_the_same_values_for_lookup_and_logits",
        ),
        "loaders/test_safetensors.py": ("test_untied_uses_its_own_head_and_is_refused_without_one",),
    },
    # h: state beside the blocks
    "R045": {  # a slot is given on with what the last request left in it
        H: (
            "test_r045_a_slot_that_another_request_had_gives_what_a_fresh_one_gives",
            "test_r045_a_gguf_file_with_recurrent_layers_is_refused_by_its_name",
        ),
        "engine/test_no_leaks.py": ("test_each_of_many_concurrent_conversations_has_the_bits_it_has_alone",),
    },
    "R047": {  # a prefix brings its blocks and not its state
        H: ("test_r047_a_prefix_is_taken_only_as_far_as_the_state_of_every_layer_is_there",),
        "engine/test_dense_prefixes.py": (
            "test_a_prompt_sent_again_and_the_next_turn_begin_with_what_was_computed",
            "test_requests_that_share_a_prompt_with_one_that_runs_get_copies",
        ),
    },
    "R048": {  # the time step of a recurrent layer has a floor that the model has not
        H: ("test_r048_a_configuration_with_recurrent_layers_is_refused_by_its_name_whatever_its_time_steps",),
    },
    # i: kernels
    "R050": {  # offsets of blocks overflow 32 bits
        KERNELS: (
            "test_r050_blocks_beyond_two_to_the_31_elements_are_written_copied_and_read_as_low_ones",
            "test_r050_the_fused_decode_reads_blocks_beyond_two_to_the_31_elements",
        ),
        "gpu/test_fused_decode_cuda.py": ("test_pools_past_two_to_the_31_elements_are_addressed",),
    },
    "R051": {  # merging what saw nothing gives NaN
        KERNELS: (
            "test_r051_an_empty_part_is_nothing_whatever_its_buffer_holds",
            "test_r051_sequences_of_no_tokens_and_windows_that_hide_whole_parts_touch_no_other_row",
        ),
        "kernels/triton/test_fused_decode.py": (
            "test_empty_sequences_and_negative_lengths_give_zeros_and_padding_is_left_alone",
            "test_poisoned_partial_results_of_earlier_steps_are_not_merged",
        ),
    },
    "R053": {  # more rows than a launch or 16 bits can count
        KERNELS: (
            "test_r053_norms_rotations_and_gates_reach_every_row",
            "test_r053_keys_and_values_of_so_many_tokens_are_all_stored",
            "test_r053_so_many_tokens_are_looked_up_and_multiplied",
            "test_r053_so_many_rows_are_sampled_each_for_itself",
            "test_r053_a_decode_of_more_parts_than_a_launch_may_have_takes_several",
        ),
        "engine/test_windows.py": ("test_positions_beyond_two_to_the_sixteenth_are_right",),
        "gpu/test_many_sequences.py": ("test_r053_more_sequences_than_a_grid_may_have_parts_are_all_decoded",),
        "gpu/test_many_rows.py": (
            "test_r053_chunks_of_any_number_of_sequences_attend",
            "test_r053_any_number_of_rows_is_normalised_gated_and_looked_up",
            "test_r053_any_number_of_rows_is_multiplied",
            "test_r053_heads_of_any_number_of_tokens_are_turned_and_stored",
            "test_r053_tokens_of_any_number_of_rows_are_drawn",
        ),
    },
    # j: a server's robustness
    "R055": {  # a key that is not ASCII becomes a 500
        J: (
            "test_r055_the_right_key_opens_and_nothing_else_does",
            "test_r055_probes_need_no_key_as_documented",
        ),
        "server/test_auth.py": (
            "test_anything_else_is_refused_in_openai_s_shape",
            "test_a_key_is_never_logged_or_shown",
        ),
    },
    "R056": {  # a body without a length, or of another kind than JSON, becomes a 500
        J: (
            "test_r056_a_body_of_any_kind_is_answered_at_once_in_one_shape",
            "test_r056_a_body_shorter_than_its_length_holds_up_nobody",
        ),
        "server/test_lifecycle.py": ("test_a_body_of_200_mb_is_refused_without_being_kept",),
        "server/test_bodies.py": ("test_a_body_that_does_not_come_is_408",),
    },
    "R058": {  # a second server on a port goes on, or finds out after loading
        "server/test_lifecycle.py": (
            "test_a_port_that_is_taken_is_told_before_the_model_is_looked_for",
            "test_a_second_server_on_a_port_ends_and_the_first_goes_on",
            "test_what_cannot_be_is_one_line_and_status_2",
        ),
    },
    "R059": {  # whole answers are kept for readers that do not read, or the others wait for these
        J: ("test_r059_clients_that_read_nothing_or_a_byte_a_second_slow_nobody_and_cost_little",),
        "server/test_connection.py": ("test_a_client_that_does_not_read_is_cut_off_and_its_handler_is_told",),
        "server/test_streaming.py": ("test_a_client_that_reads_nothing_is_cut_off",),
        "server/test_lifecycle.py": ("test_idle_connections_and_half_sent_headers_hurt_nobody",),
        "engine/test_engine_process.py": ("test_a_slow_reader_is_ended_and_holds_nobody",),
    },
    # k: the command line
    "R060": {  # captured output has control characters, or a prompt that nobody asked for
        "cli/test_process.py": ("test_captured_output_is_the_answer_and_one_newline",),
        "cli/test_prompt.py": (
            "test_without_any_prompt_and_any_terminal_the_command_ends_at_once",
            "test_a_terminal_without_a_prompt_is_a_usage_error_not_a_hidden_conversation",
        ),
    },
    "R063": {  # standard input is read by lines, or waited for
        "cli/test_prompt.py": (
            "test_the_whole_of_standard_input_is_one_prompt_and_a_final_newline_counts",
            "test_a_file_and_standard_input_are_taken_verbatim",
            "test_what_is_empty_or_not_utf8_is_refused_in_one_line",
            "test_a_prompt_argument_does_not_wait_for_an_idle_pipe",
        ),
    },
}
