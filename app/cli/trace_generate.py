"""The project's own traces: chats over shared system prompts, in the format of `trace_format`.

A chat opens with one of a few system prompts and grows turn by turn: each input holds the one
before it, its answer and a new question. Some requests are cold (a prompt of their own, asked
once) and some repeat the previous input of their chat, as a client that retries does. Everything
follows from the seed, by a counter that is hashed, so that a trace is the same on every machine
and every Python.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

from app.cli.trace_format import TraceRequest

SYSTEM_PROMPTS = 4
OPEN_CHATS = 12
MAX_INPUT_BLOCKS = 40
LONGEST_INPUT_BLOCKS = MAX_INPUT_BLOCKS + 3  # a chat stops after the turn that passes the mark
PERCENT_COLD = 10
PERCENT_REPEATED = 3
PERCENT_NEW_CHAT = 20

BlockContent = tuple[str, int, int, int]


class Draws:
    """Uniform integers from a seed: the n-th draw is a hash of (seed, n)."""

    def __init__(self, seed: int) -> None:
        self._key = b"nexuskv-trace-v1:%d:" % seed
        self._count = 0

    def between(self, low: int, high: int) -> int:
        """An integer of low..high, both included."""
        digest = hashlib.blake2b(self._key + b"%d" % self._count, digest_size=8).digest()
        self._count += 1
        return low + int.from_bytes(digest, "big") % (high - low + 1)

    def percent(self, share: int) -> bool:
        return self.between(1, 100) <= share


@dataclass(slots=True)
class _Chat:
    """One conversation: the stream of tokens is its system prompt, then text of its own."""

    number: int
    prompt: int
    prompt_tokens: int
    input_length: int
    output_length: int = 0


class _BlockIds:
    """Numbers contents in the order of their first appearance, as the published traces do."""

    def __init__(self, block_tokens: int) -> None:
        self._block_tokens = block_tokens
        self._ids: dict[BlockContent, int] = {}

    def of(self, chat: _Chat) -> tuple[int, ...]:
        """The ids of the chat's present input, one a block, the partial one included."""
        count = -(-chat.input_length // self._block_tokens)
        contents = (self._content(chat, index) for index in range(count))
        return tuple(self._ids.setdefault(content, len(self._ids)) for content in contents)

    def _content(self, chat: _Chat, index: int) -> BlockContent:
        end = min((index + 1) * self._block_tokens, chat.input_length)
        # A block that ends inside the system prompt is every chat's of that prompt; one that ends
        # later holds words of this chat alone. A cut block is other content than the whole one.
        if end <= chat.prompt_tokens:
            return ("prompt", chat.prompt, index, end)
        return ("chat", chat.number, index, end)


def generate(*, requests: int, seed: int, block_tokens: int) -> Iterator[TraceRequest]:
    """Yield `requests` requests; lengths scale with `block_tokens`, so the shape is the same."""
    draws = Draws(seed)
    ids = _BlockIds(block_tokens)
    prompts = [draws.between(block_tokens, 5 * block_tokens) for _ in range(SYSTEM_PROMPTS)]
    chats: list[_Chat] = []
    timestamp = 0
    opened = 0
    for _ in range(requests):
        timestamp += draws.between(0, 400)
        cold = draws.percent(PERCENT_COLD)
        if cold or not chats or draws.percent(PERCENT_NEW_CHAT):
            chat = _open(draws, opened, None if cold else prompts, block_tokens)
            opened += 1
            if not cold:
                chats.append(chat)
                del chats[:-OPEN_CHATS]
        else:
            chat = chats[draws.between(0, len(chats) - 1)]
            _continue(draws, chat, block_tokens)
        chat.output_length = draws.between(1, block_tokens)
        yield TraceRequest(timestamp, chat.input_length, chat.output_length, ids.of(chat))
        if chat.input_length >= MAX_INPUT_BLOCKS * block_tokens and chat in chats:
            chats.remove(chat)


def _open(draws: Draws, number: int, prompts: list[int] | None, block_tokens: int) -> _Chat:
    question = draws.between(1, 2 * block_tokens)
    if prompts is None:
        alone = draws.between(0, 6 * block_tokens)
        return _Chat(number, prompt=-1, prompt_tokens=0, input_length=alone + question)
    prompt = draws.between(0, len(prompts) - 1)
    return _Chat(number, prompt, prompts[prompt], prompts[prompt] + question)


def _continue(draws: Draws, chat: _Chat, block_tokens: int) -> None:
    if draws.percent(PERCENT_REPEATED):
        return
    chat.input_length += chat.output_length + draws.between(1, 2 * block_tokens)
