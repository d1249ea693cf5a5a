"""A conversation's text is what transformers makes of it, in a sandbox."""

import pytest
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from solver.base.errors import HeptiError
from tests.kit.chat_templates import GEMMA, LLAMA_3, SPECIAL, TEMPLATES
from tests.sweeps import pairs
from weights.inputs.templates import ChatTemplate


def said(*contents, system=None):
    roles = ("user", "assistant") * len(contents)
    first = [] if system is None else [{"role": "system", "content": system}]
    return first + [{"role": role, "content": content} for role, content in zip(roles, contents, strict=False)]


CONVERSATIONS = {
    "question": said("Why is the sky <b>blue</b> & 'wide'?"),
    "turns": said(" hi \n", "<think>\nhm\n</think>\n\nHello  ", "and\nnow? 你好 {{ 7 * 7 }}"),
    "system": said("hi", "Hello", "bye", system="Be brief."),
    "answered": said("hi", "Hello"),
}


@pytest.mark.parametrize(("conversation", "template"), pairs(CONVERSATIONS, TEMPLATES))
def test_the_text_is_that_of_transformers(template, conversation):
    messages = CONVERSATIONS[conversation]
    reference = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE()), **SPECIAL)
    ours = ChatTemplate(TEMPLATES[template], SPECIAL)
    try:
        text = reference.apply_chat_template(
            messages, chat_template=TEMPLATES[template], tokenize=False, add_generation_prompt=True
        )
    except Exception as error:  # a template's own words
        with pytest.raises(HeptiError, match=f"chat template refuses this conversation: {error}"):
            ours.render(messages)
    else:
        assert ours.render(messages) == text


def test_a_template_that_raises_is_one_line_with_its_words(kept):
    with pytest.raises(HeptiError) as raised:
        ChatTemplate(GEMMA, SPECIAL).render(said("hi", system="x"))
    kept(raised.value)


@pytest.mark.parametrize("text", ["{% if %}", "{{ 1 +", "{% endfor %}", "{% nothing %}", "{{ x | no_such_filter }}"])
def test_what_is_no_template_is_refused_when_it_is_read(text):
    with pytest.raises(HeptiError, match="the chat template cannot be read: "):
        ChatTemplate(text, {})


@pytest.mark.parametrize(
    "text",
    [
        "{{ messages[0].content + 1 }}",
        "{{ 1 // 0 }}",
        "{{ messages[99].content }}",
        "{{ missing | tojson }}",
        "{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}",
        "{{ range(10 ** 9) }}",
    ],
)
def test_a_template_that_fails_is_one_line(text):
    with pytest.raises(HeptiError, match=r"^the chat template refuses this conversation: ") as raised:
        ChatTemplate(text, {}).render(said("hi"))

    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "text",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update(role='x') }}",
        "{{ namespace(__init__=1) }}",
        "{% set ns = namespace() %}{% set ns.__class__ = 1 %}",
        "{{ strftime_now.__globals__['json'] }}",
    ],
)
def test_a_template_cannot_leave_its_sandbox(text):
    messages = said("hi")
    with pytest.raises(HeptiError, match="chat template"):
        ChatTemplate(text, {}).render(messages)

    assert messages == said("hi")


@pytest.mark.parametrize("text", ["{{ raise_exception.__globals__ }}", "{{ '{0.__class__}'.format(1) }}"])
def test_what_lies_outside_of_the_sandbox_is_undefined(text):
    assert ChatTemplate(text, {}).render([]) == ""


def test_the_date_is_todays():
    text = ChatTemplate(LLAMA_3, SPECIAL).render(said("hi"))

    assert ChatTemplate("{{ strftime_now('%d %b %Y') }}", {}).render([]) in text
