"""`LLM`, the offline API: what it takes, in which order it answers, and that nothing breaks it."""

from __future__ import annotations

import signal
import sys
import threading

import pytest
import torch

from octavo import LLM, CapacityError, EngineFault, InvalidRequest, LoadError, RequestOutput, SamplingParams
from octavo.outputs import TextDelta
from tests.paged_routes import paged_routes
from tests.tiny_models import CHAT_TEMPLATE, EOS_TOKEN_ID, VOCAB_SIZE, save_hf

PROMPTS = ["The harbour was quiet", "A careful engineer", "def add(left, right):", "x", "Prices rose by 3.5 percent"]
GREEDY = SamplingParams(max_tokens=10, ignore_eos=True)


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    path = tmp_path_factory.mktemp("llama")
    save_hf(path, "llama")
    return path


@pytest.fixture(scope="module")
def shared(directory):
    return LLM(directory, threads=1, device="cpu", max_num_seqs=3)


@pytest.fixture
def llm(shared):
    """The shared engine; whatever a test did to it, it must be idle and whole afterwards."""
    start = shared.core.pool.num_free_blocks
    yield shared
    assert not shared.core.has_work
    assert shared.core.pool.num_free_blocks == start == tuple(pool.num_blocks for pool in shared.core.pool.pools)
    shared.core.pool.check_integrity()
    assert len(shared.generate("x", GREEDY)[0].outputs[0].token_ids) == 10


def ids_of(outputs: list[RequestOutput]) -> list[tuple[int, ...]]:
    return [output.outputs[0].token_ids for output in outputs]


# -- prompts ----------------------------------------------------------------------------------------------------


def test_a_text_its_ids_and_lists_of_either_give_the_same_answer(llm):
    ids = llm.tokenizer.encode(PROMPTS[0])
    expected = ids_of(llm.generate(PROMPTS[0], GREEDY))
    assert len(expected[0]) == 10
    for same in ([PROMPTS[0]], ids, tuple(ids), [ids], [tuple(ids)]):
        outputs = llm.generate(same, GREEDY)
        assert ids_of(outputs) == expected
        assert outputs[0].prompt_token_ids == tuple(ids)
    assert ids_of(llm.generate([PROMPTS[0], ids], GREEDY)) == expected * 2


def test_answers_come_in_the_order_of_the_prompts_and_as_if_each_were_alone(llm):
    params = [SamplingParams(max_tokens=n, ignore_eos=True) for n in (9, 1, 5, 7, 3)]  # they end in another order
    outputs = llm.generate(PROMPTS, params)
    for prompt, each, output in zip(PROMPTS, params, outputs, strict=True):
        assert output.prompt_token_ids == tuple(llm.tokenizer.encode(prompt))
        assert output.outputs[0].token_ids == ids_of(llm.generate(prompt, each))[0]
        assert len(output.outputs[0].token_ids) == each.max_tokens


def test_no_prompts_give_no_answers(llm):
    assert llm.generate([]) == []


def test_control_tokens_in_a_text_are_text_unless_asked_for(llm):
    marked = "<|im_start|>user"
    assert 1 not in llm.generate(marked, GREEDY)[0].prompt_token_ids
    assert llm.generate(marked, GREEDY, parse_special=True)[0].prompt_token_ids[0] == 1


def test_without_params_an_answer_runs_to_its_end_or_the_context(directory):
    llm = LLM(directory, threads=1, max_context=64)
    output = llm.generate("The harbour")[0]
    total = len(output.prompt_token_ids) + len(output.outputs[0].token_ids)
    assert total == 64 or output.outputs[0].finish_reason == "stop"


# -- answers ----------------------------------------------------------------------------------------------------


def test_an_output_tells_all_about_its_request(llm):
    output = llm.generate(PROMPTS[0], GREEDY)[0]
    completion = output.outputs[0]
    assert completion.text == llm.tokenizer.decode(completion.token_ids)
    assert (completion.index, completion.finish_reason, completion.logprobs) == (0, "length", None)
    assert output.usage.prompt_tokens == len(output.prompt_token_ids)
    assert output.usage.completion_tokens == 10
    times = output.timings
    assert min(times.load_s, times.prefill_s, times.decode_s) > 0
    assert times.prefill_tps == pytest.approx(output.usage.prompt_tokens / times.prefill_s)
    assert times.decode_tps == pytest.approx(9 / times.decode_s)


def test_routes_are_those_of_this_call_alone(llm):
    assert llm.core.storage.value == "paged"
    for _ in range(2):
        output = llm.generate(PROMPTS[0], GREEDY)[0]
        assert (output.storage, dict(output.routes)) == ("paged", paged_routes(1, 9))


def test_the_same_call_again_gives_the_same_result(llm):
    params = SamplingParams(max_tokens=10, temperature=0.9, seed=3, ignore_eos=True)
    first = llm.generate(PROMPTS, params)
    again = llm.generate(PROMPTS, params)
    assert ids_of(again) == ids_of(first)
    assert [o.outputs[0].text for o in again] == [o.outputs[0].text for o in first]


def test_unseeded_sampling_differs_from_call_to_call(llm):
    params = SamplingParams(max_tokens=10, temperature=2.0, ignore_eos=True)
    assert ids_of(llm.generate(PROMPTS, params)) != ids_of(llm.generate(PROMPTS, params))


def test_n_choices_differ_and_are_reproducible(llm):
    params = SamplingParams(max_tokens=8, temperature=1.5, seed=5, n=4, ignore_eos=True)
    output = llm.generate(PROMPTS[0], params)[0]
    assert [choice.index for choice in output.outputs] == [0, 1, 2, 3]
    assert len({choice.token_ids for choice in output.outputs}) == 4
    assert output.usage.completion_tokens == 32
    assert llm.generate([PROMPTS[1], PROMPTS[0]], params)[1].outputs == output.outputs


def test_logprobs_are_those_of_the_chosen_token_and_the_best(llm):
    completion = llm.generate(PROMPTS[0], SamplingParams(max_tokens=5, logprobs=3, ignore_eos=True))[0].outputs[0]
    assert completion.logprobs is not None
    assert [each.token_id for each in completion.logprobs] == list(completion.token_ids)
    for each in completion.logprobs:
        assert len(each.top) == 3
        assert each.top[0] == (each.token_id, pytest.approx(each.logprob))  # greedy: the best is the chosen one
        assert each.top[0][1] >= each.top[1][1] >= each.top[2][1]
        assert each.logprob < 0


def test_a_stop_string_cuts_the_text(llm):
    whole = llm.generate(PROMPTS[0], GREEDY)[0].outputs[0].text
    stop = whole[2:5]
    completion = llm.generate(PROMPTS[0], SamplingParams(max_tokens=10, stop=["never", stop], ignore_eos=True))[0]
    assert completion.outputs[0].text == whole[: whole.index(stop)]
    assert completion.outputs[0].finish_reason == "stop"


def test_an_end_token_stops_unless_it_is_ignored(llm):
    bias = {EOS_TOKEN_ID: 1e4}
    completion = llm.generate("x", SamplingParams(max_tokens=4, logit_bias=bias))[0].outputs[0]
    assert (completion.token_ids, completion.text, completion.finish_reason) == ((EOS_TOKEN_ID,), "", "stop")
    ignoring = SamplingParams(max_tokens=4, logit_bias=bias, ignore_eos=True)
    assert llm.generate("x", ignoring)[0].outputs[0].token_ids == (EOS_TOKEN_ID,) * 4


def test_chat_goes_through_the_template(llm):
    conversation = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello <|im_end|>"}]
    output = llm.chat(conversation, GREEDY)[0]
    text = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHello {}<|im_end|>\n<|im_start|>assistant\n"
    assert llm.tokenizer.decode(output.prompt_token_ids, skip_special_tokens=False) == text.format("<|im_end|>")
    assert output.prompt_token_ids.count(EOS_TOKEN_ID) == 2  # what the user spelled stays text
    assert llm.tokenizer.chat_template == CHAT_TEMPLATE


def test_several_conversations_are_answered_in_order(llm):
    conversations = [[{"role": "user", "content": text}] for text in PROMPTS]
    outputs = llm.chat(conversations, GREEDY)
    assert ids_of(outputs) == [ids_of(llm.chat(each, GREEDY))[0] for each in conversations]


# -- bad input --------------------------------------------------------------------------------------------------

BAD_PROMPTS = {
    "empty text": ("", "0 tokens"),
    "no ids": ([[]], "0 tokens"),
    "a negative id": ([5, -1], "-1"),
    "an id past the vocabulary": ([5, VOCAB_SIZE], f"{VOCAB_SIZE}.*0 to {VOCAB_SIZE - 1}"),
    "a boolean id": ([5, True], "True"),
    "only booleans": ([True, False], "True"),
    "a fraction": ([5, 1.5], "1.5"),
    "text among ids": ([5, "x"], "5"),
    "a number": (5, "5"),
    "nothing": (None, "None"),
    "bytes": (b"x", "a bytes"),
    "too long": ([7] * 512, "512 tokens.*at most 511"),
    "an unpaired surrogate": ("a\ud800", "U\\+D800"),
}


@pytest.mark.parametrize(("bad", "said"), BAD_PROMPTS.values(), ids=BAD_PROMPTS)
def test_a_bad_prompt_is_refused_in_one_line_and_the_engine_works_on(llm, bad, said):
    good = ids_of(llm.generate(PROMPTS[0], GREEDY))
    with pytest.raises(InvalidRequest, match=said) as caught:
        llm.generate(bad, GREEDY)
    assert "\n" not in str(caught.value)
    assert ids_of(llm.generate(PROMPTS[0], GREEDY)) == good


@pytest.mark.parametrize("bad", [[5, -1], [7] * 512, [True], []], ids=str)
def test_one_bad_prompt_among_good_ones_refuses_the_call_and_leaves_nothing_queued(llm, bad):
    with pytest.raises(InvalidRequest):
        llm.generate([PROMPTS[0], PROMPTS[1], bad, PROMPTS[2]], GREEDY)
    assert not llm.core.has_work


@pytest.mark.parametrize(
    "params",
    [[GREEDY], [GREEDY] * 3, [GREEDY, None], {"max_tokens": 3}, "greedy", SamplingParams(logit_bias={VOCAB_SIZE: 1.0})],
    ids=["too few", "too many", "none among them", "a mapping", "text", "a bias past the vocabulary"],
)
def test_params_that_do_not_fit_the_prompts_are_refused(llm, params):
    with pytest.raises(InvalidRequest):
        llm.generate(PROMPTS[:2], params)


@pytest.mark.parametrize("messages", [[], "hello", [{"content": "x"}], [5], None, {}], ids=repr)
def test_bad_conversations_are_refused(llm, messages):
    with pytest.raises(InvalidRequest):
        llm.chat(messages, GREEDY)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"block_size": 17}, "17.*16, 32, 64"),
        ({"max_context": 10**6}, "1000000.*512"),
        ({"max_context": 0}, "0"),
        ({"storage": "heap"}, "'heap'.*dense.*paged"),
        ({"dtype": "int3"}, "'int3'"),
        ({"threads": 0}, "threads is 0"),
        ({"blocksize": 16}, "'blocksize'.*block_size"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_bad_settings_are_refused(directory, settings, said):
    with pytest.raises(InvalidRequest, match=said):
        LLM(directory, **settings)


def test_a_missing_model_is_a_load_error(tmp_path):
    with pytest.raises(LoadError, match=r"absent\.gguf"):
        LLM(tmp_path / "absent.gguf")


def test_a_prompt_longer_than_the_pool_is_refused_with_what_fits(directory):
    llm = LLM(directory, threads=1, num_kv_blocks=4)
    with pytest.raises(CapacityError, match=r"70 tokens.*at most 63"):
        llm.generate([7] * 70, GREEDY)
    assert llm.generate([7] * 63, GREEDY)[0].outputs[0].finish_reason == "length"


def test_logits_that_break_raise_a_fault_and_the_engine_works_on(llm, monkeypatch):
    def broken(request_id: str, logits: torch.Tensor) -> None:
        logits.fill_(float("nan"))

    with monkeypatch.context() as patch:
        patch.setattr(llm.core._steps, "_on_logits", broken)
        with pytest.raises(EngineFault, match="NaN"):
            llm.generate(PROMPTS, GREEDY)
    assert not llm.core.has_work


# -- streams ----------------------------------------------------------------------------------------------------


def test_joined_deltas_are_the_text_and_the_output_comes_last(llm):
    whole = llm.generate(PROMPTS[0], GREEDY)[0]
    *deltas, output = llm.stream(PROMPTS[0], GREEDY)
    assert all(isinstance(delta, TextDelta) for delta in deltas)
    assert "".join(delta.text for delta in deltas) == output.outputs[0].text == whole.outputs[0].text
    assert output.outputs == whole.outputs
    assert [delta.finish_reason for delta in deltas] == [None] * 9 + ["length"]


def test_a_stream_left_early_frees_its_request_at_once(llm):
    stream = llm.stream(llm.tokenizer.encode(PROMPTS[0]), GREEDY)
    next(stream)
    assert llm.core.has_work
    stream.close()
    assert not llm.core.has_work


def test_streams_taken_in_turns_do_not_mix(llm):
    expected = [llm.generate(prompt, GREEDY)[0].outputs[0] for prompt in PROMPTS[:2]]
    first, second = (llm.stream(prompt, GREEDY) for prompt in PROMPTS[:2])
    got = [item for pair in zip(first, second, strict=True) for item in pair]
    assert [item.outputs[0] for item in got[-2:]] == expected


def test_a_call_in_the_middle_of_a_stream_disturbs_neither(llm):
    expected = [llm.generate(prompt, GREEDY)[0].outputs[0] for prompt in PROMPTS[:2]]
    stream = llm.stream(PROMPTS[0], GREEDY)
    next(stream)
    assert llm.generate(PROMPTS[1], GREEDY)[0].outputs[0] == expected[1]
    *_, output = stream
    assert output.outputs[0] == expected[0]


@pytest.mark.parametrize("params", [SamplingParams(n=2), [GREEDY, GREEDY], "x"], ids=["n of 2", "two", "text"])
def test_a_stream_has_one_choice(llm, params):
    with pytest.raises(InvalidRequest):
        next(llm.stream("x", params))


# -- interrupts -------------------------------------------------------------------------------------------------


class InterruptAt:
    """Sends this process SIGINT when the n-th line of Octavo's engine, scheduler or cache code is about to run."""

    def __init__(self, line: int) -> None:
        self.left = line

    def __enter__(self) -> None:
        sys.settrace(self._on_call)

    def __exit__(self, *exception: object) -> None:
        sys.settrace(None)

    def _on_call(self, frame, event, argument):
        name = frame.f_globals.get("__name__", "")
        return self._on_line if name.startswith(("octavo.engine", "octavo.scheduler", "octavo.cache")) else None

    def _on_line(self, frame, event, argument):
        if event == "line":
            self.left -= 1
            if self.left == 0:
                signal.raise_signal(signal.SIGINT)
        return self._on_line


@pytest.mark.skipif(sys.gettrace() is not None, reason="a debugger or coverage traces already")
@pytest.mark.parametrize("line", [*range(1, 60, 7), *range(60, 4000, 271)])
def test_ctrl_c_at_any_point_frees_everything_and_leaves_the_engine_usable(llm, line):
    with pytest.raises(KeyboardInterrupt), InterruptAt(line):
        llm.generate(PROMPTS, SamplingParams(max_tokens=60, ignore_eos=True))
    assert not llm.core.has_work


def test_the_handler_of_sigint_is_the_users_own_again(llm):
    before = signal.getsignal(signal.SIGINT)
    llm.generate(PROMPTS, GREEDY)
    assert signal.getsignal(signal.SIGINT) is before


def test_another_thread_than_the_main_one_can_generate(llm):
    results = []
    thread = threading.Thread(target=lambda: results.append(llm.generate(PROMPTS[0], GREEDY)))
    thread.start()
    thread.join()
    assert ids_of(results[0]) == ids_of(llm.generate(PROMPTS[0], GREEDY))


def test_threads_share_one_engine_and_each_gets_its_own_answers(llm):
    expected = [ids_of([output]) for output in llm.generate(PROMPTS, GREEDY)]
    got = {}
    failures = []

    def work(number):
        try:
            got[number] = [ids_of(llm.generate(prompt, GREEDY)) for prompt in PROMPTS]
        except BaseException as error:
            failures.append(error)
            raise

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert not failures
    assert got == dict.fromkeys(range(4), expected)
