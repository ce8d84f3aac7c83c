"""How the served model writes calls and thinking: what its template shows, or what the settings say instead."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from octavo.server.errors import invalid
from octavo.server.parsers.detect import ToolSupport, detect_thinking, detect_tools
from octavo.server.parsers.forms import FORMS, PROMPTED, Form
from octavo.server.parsers.reasoning import THINKING, Thinking
from octavo.server.settings import ServerSettings
from octavo.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class ToolForm:
    """`described`: the template tells the model of its tools. Otherwise a message has to."""

    form: Form
    described: bool


@dataclass(slots=True)
class AnswerForms:
    """Looks at the template when it is first asked, and keeps what it found."""

    settings: ServerSettings
    _tools: ToolSupport | None = field(default=None, init=False)

    async def tools(self, tokenizer: Tokenizer) -> ToolForm:
        """How tools are offered and called. Raises a 400 `HttpError` naming `tools` if there is no way."""
        support, form = await asyncio.to_thread(self._found, tokenizer)
        if not support.described and (form is None or form.name not in PROMPTED):
            raise invalid(
                "tools cannot be used: the model's chat template does not write them; leave them out, "
                "or start the server with --tool-parser generic, which describes them in a message",
                param="tools",
                code="unsupported_parameter",
            )
        if form is None:
            raise invalid(
                "tools cannot be used: the model's chat template writes calls in a form that no parser reads; leave "
                f"them out, or choose a parser with --tool-parser ({', '.join(FORMS)})",
                param="tools",
                code="unsupported_parameter",
            )
        return ToolForm(form, support.described)

    def offers_tools(self, tokenizer: Tokenizer) -> bool:
        """Whether `tools` gives a way."""
        support, form = self._found(tokenizer)
        return form is not None and (support.described or form.name in PROMPTED)

    def _found(self, tokenizer: Tokenizer) -> tuple[ToolSupport, Form | None]:
        if self._tools is None:
            self._tools = detect_tools(tokenizer)
        chosen = self.settings.tool_parser
        return self._tools, self._tools.form if chosen == "auto" else FORMS[chosen]

    def thinking(self, tokenizer: Tokenizer) -> Thinking | None:
        """The markers around the model's thinking; None if it is not to be parted from the answer."""
        chosen = self.settings.reasoning_parser
        if chosen == "auto":
            return detect_thinking(tokenizer)
        return THINKING.get(chosen)
