import os
import subprocess
import sys

import nexuskv_core
from nexuskv_core import _index, reference, rules

WITHOUT_COMPILED = (
    "import sys; sys.modules['nexuskv_core._index'] = None; "
    "import nexuskv_core; print(nexuskv_core.IMPLEMENTATION)"
)


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    inherited = {k: v for k, v in os.environ.items() if k != "NEXUSKV_ALLOW_REFERENCE"}
    return subprocess.run(
        [sys.executable, "-c", code],
        env=inherited | environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_compiled_index_runs():
    assert nexuskv_core.IMPLEMENTATION == "compiled"
    assert nexuskv_core.PrefixIndex is _index.PrefixIndex


def test_a_missing_compiled_module_says_what_to_do():
    done = run(WITHOUT_COMPILED)
    assert done.returncode == 1
    assert "ImportError" in done.stderr
    assert "make setup" in done.stderr
    assert "NEXUSKV_ALLOW_REFERENCE=1" in done.stderr


def test_only_the_exact_word_allows_the_reference():
    assert run(WITHOUT_COMPILED, NEXUSKV_ALLOW_REFERENCE="0").returncode == 1
    allowed = run(WITHOUT_COMPILED, NEXUSKV_ALLOW_REFERENCE="1")
    assert (allowed.returncode, allowed.stdout.strip()) == (0, "reference")


def test_allowing_the_reference_does_not_choose_it():
    done = run("import nexuskv_core as n; print(n.IMPLEMENTATION)", NEXUSKV_ALLOW_REFERENCE="1")
    assert done.stdout.strip() == "compiled"


def test_both_implementations_have_the_same_interface():
    for name in ("PrefixIndex", "MatchSet"):
        compiled, plain = getattr(_index, name), getattr(reference, name)
        assert {n for n in dir(compiled) if n[0] != "_"} == {n for n in dir(plain) if n[0] != "_"}
    assert nexuskv_core.RULE_EXACT_ONLY == rules.RULE_EXACT_ONLY == 2
