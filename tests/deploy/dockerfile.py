"""Just enough of the Dockerfile and .dockerignore languages to carry the build out in a folder."""

import json
import re
import shlex
from dataclasses import dataclass, field
from fnmatch import translate
from pathlib import Path

_INSTRUCTION = re.compile(r"([A-Z]+)\s+(.*)", re.DOTALL)


@dataclass
class Stage:
    """One FROM and what follows it, as (instruction, argument) in order."""

    image: str
    name: str | None
    steps: list[tuple[str, str]] = field(default_factory=list)

    def arguments(self, instruction: str) -> list[str]:
        return [argument for name, argument in self.steps if name == instruction]

    def exec_form(self, instruction: str) -> list[str]:
        """The last `instruction`, which must be a JSON list: no shell, so signals arrive."""
        return json.loads(self.arguments(instruction)[-1])


def parse_stages(text: str) -> list[Stage]:
    joined = re.sub(r"\\\n", " ", re.sub(r"^\s*#.*\n", "", text, flags=re.MULTILINE))
    stages: list[Stage] = []
    for line in filter(str.strip, joined.splitlines()):
        matched = _INSTRUCTION.fullmatch(line.strip())
        assert matched is not None, f"not an instruction: {line}"
        instruction, argument = matched[1], matched[2].strip()
        if instruction == "FROM":
            image, _, name = argument.partition(" AS ")
            stages.append(Stage(image, name or None))
        else:
            stages[-1].steps.append((instruction, argument))
    return stages


@dataclass(frozen=True)
class Copy:
    """A COPY: `stage` is None where the sources are in the build context."""

    sources: list[str]
    target: str
    stage: str | None


def parse_copy(argument: str) -> Copy:
    words = shlex.split(argument)
    flags = [word for word in words if word.startswith("--")]
    *sources, target = [word for word in words if not word.startswith("--")]
    stages = [flag.removeprefix("--from=") for flag in flags if flag.startswith("--from=")]
    return Copy(sources, target, stages[0] if stages else None)


class DockerIgnore:
    """Later rules win; a rule that names a folder covers what is in it."""

    def __init__(self, text: str) -> None:
        lines = [line.strip() for line in text.splitlines()]
        self._rules = [self._rule(line) for line in lines if line and not line.startswith("#")]

    def ignores(self, path: Path) -> bool:
        """`path` is relative to the build context."""
        names = [path.as_posix(), *(parent.as_posix() for parent in path.parents)]
        ignored = False
        for pattern, keeps in self._rules:
            if any(pattern.fullmatch(name) for name in names if name != "."):
                ignored = not keeps
        return ignored

    def files_below(self, root: Path, source: str) -> list[Path]:
        """What the build context holds of `source`, relative to `root`."""
        top = root / source
        found = [top] if top.is_file() else [path for path in top.rglob("*") if path.is_file()]
        return [p.relative_to(root) for p in found if not self.ignores(p.relative_to(root))]

    @staticmethod
    def _rule(line: str) -> tuple[re.Pattern[str], bool]:
        glob = line.removeprefix("!").strip("/")
        anywhere = glob.startswith("**/")
        # fnmatch's * crosses slashes, which only ** may.
        body = translate(glob.removeprefix("**/")).replace(".*", "[^/]*")
        return re.compile(f"(?s:(?:.*/)?){body}" if anywhere else body), line.startswith("!")
